"""The placement service: inspect, preview, set, wait. One implementation for every surface."""
