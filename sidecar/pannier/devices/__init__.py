"""The cards of this machine: an inventory as a value, and the edges that read it."""
