"""The files of one model as a value: what the plan, the progress and the launch need of them.

Apart from the code that finds and opens them, so that the pure parts can hold them without touching
a disk.

Must not: look anything up.
"""

import msgspec

from pannier.gguf.header import Header


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one model, absolute paths and bytes; `missing` names what is not there.

    `path` and `draft` are what the engine is given: the first of their shards, which `shards` and
    `draft_shards` name all, the first included; none: the file is the only one.
    """

    path: str
    weights: int = 0
    projector: str | None = None
    projector_bytes: int = 0
    draft: str | None = None
    draft_bytes: int = 0
    missing: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    draft_shards: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Bytes that a load reads."""
        return self.weights + self.projector_bytes + self.draft_bytes


class ModelHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """The headers of one model's files, shards joined, and why there is none.

    A part that the model does not have, or that `ModelFiles.missing` names, has neither a header
    nor an error. A part that is there but cannot be read has its error, in words that name the
    file; the others are whole nevertheless.
    """

    model: Header | None = None
    projector: Header | None = None
    draft: Header | None = None
    model_error: str | None = None
    projector_error: str | None = None
    draft_error: str | None = None

    @property
    def errors(self) -> tuple[str, ...]:
        """All errors there are."""
        found = (self.model_error, self.projector_error, self.draft_error)
        return tuple(error for error in found if error)
