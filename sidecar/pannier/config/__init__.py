"""config.toml: what may stand in it, how it is read, and how Pannier learns that it was saved.

Reading is pure: bytes in, a `Config` or all problems of the file out (`load.parse`). What a key
means and defaults to is said once, in `schema`; the reader, the editor's JSON Schema and the words
of every message are made from it.

Must not: know what the machine has. A config is right or wrong by itself.
"""
