"""config.toml: its schema, its reader, its rules, and the watch on the file."""
