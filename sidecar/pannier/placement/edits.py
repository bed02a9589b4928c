"""config.toml with another placement, as bytes. Pure.

The one step between a spec and the file for every surface: only the `placement` tables change, and
a spec that says nothing takes them out.

Must not: write; what is returned is planned first.
"""

from pannier.config.edit import edit_placement
from pannier.errors import ConfigError, Problem
from pannier.plan.spec import PlacementSpec, placements_of


def with_spec(content: bytes, spec: PlacementSpec) -> bytes:
    """The content with exactly this placement. Raises ConfigError and EditError."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        message = f"it is not UTF-8 text (byte {error.start})"
        raise ConfigError([Problem(code="encoding", where="", message=message)]) from error
    # Line breaks as they are: the text is never split, and encoded again as it was.
    return edit_placement(text, placements_of(spec)).encode()
