"""What runs: groups, their owners, the hosts that carry them out, the processes."""
