"""The HTTP side: routes over an immutable snapshot."""
