"""Model files: what there is on disk, and what is inside."""
