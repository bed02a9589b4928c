"""What a model takes in memory, per device and on the host, computed from its header alone."""
