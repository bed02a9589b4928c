"""What is asked of the placement service, and how it refuses, the same for every surface.

A spec, or nothing: null, an empty text and an empty object are all "no placement", which is the
automatic plan. A refusal tells three things apart: what was asked is malformed; it is well formed
and does not fit; somebody else was first.

Must not: know HTTP; a surface maps these errors to its own.
"""

from collections.abc import Collection

from pannier.errors import PannierError
from pannier.plan.spec import PlacementError, PlacementSpec, parse_spec

AUTOMATIC = PlacementSpec()
"""The spec that says nothing: the planner decides everything."""

LARGEST_SPEC = 1 << 20
"""Bytes; the config that it ends up in takes no more."""


class MalformedSpecError(PlacementError):
    """What was given is no placement spec."""

    code = "malformed-placement"


class StaleError(PannierError):
    """The plan is not the one that the change was made for (AP-23)."""

    code = "placement-changed"


class ApplyError(PannierError):
    """The new placement did not come to life; the file and what runs were put back (AP-22)."""

    code = "placement-not-applied"


class NotAllowedError(PannierError):
    """Changes are not allowed on this surface (AP-15)."""

    code = "placement-not-allowed"


HTTP_REFUSAL = (
    "the placement is not changed over HTTP, as a change reaches every client of this Pannier:"
    " `allow_http_placement` under [server] of config.toml is false"
)
"""The one text of every surface (AP-15)."""

HTTP_WAYS = (
    "set it to true in the file, or change the [placement] tables there, by hand or with"
    " `pannier placement set`"
)


def read_spec(text: str | bytes | None, models: Collection[str]) -> PlacementSpec:
    """The spec that a person or client sent. Raises MalformedSpecError."""
    if text is None or not text.strip() or text.strip() in ("null", b"null"):
        return AUTOMATIC
    if len(text) > LARGEST_SPEC:
        raise MalformedSpecError(f"a placement spec has at most {LARGEST_SPEC} bytes")
    try:
        return parse_spec(text, models=models)
    except PlacementError as error:
        raise MalformedSpecError(error.message, hint=error.hint, code=error.code) from error
