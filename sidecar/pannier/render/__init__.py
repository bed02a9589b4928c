"""From a plan to what is started: command lines and llama-swap configs."""
