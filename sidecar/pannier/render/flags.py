"""The few llama-server flags that more than one part of Pannier must agree on.

Standard library only and nothing but constants: the launcher imports this module, and it has to
start in milliseconds.
"""

PORT_FLAG = "--port"
"""Written last in every command line, after everything else (spec SC-6, SC-8): the launcher finds
its port by it, and the sweep recognises our servers by it."""

HOST_ADDRESS = "127.0.0.1"
"""The one address that anything we start listens on. Never `localhost`, which may be ::1 (SC-5)."""
