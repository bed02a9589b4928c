"""Finds, asks and installs the programs that Pannier runs: llama-server and llama-swap."""
