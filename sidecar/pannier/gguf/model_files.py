"""The files of one model as a value: what the plan, the progress and the launch need of them.

Apart from the code that finds them, so that the pure parts can hold it without touching a disk.

Must not: look anything up.
"""

import msgspec


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one model, absolute paths and bytes; `missing` names what is not there."""

    path: str
    weights: int = 0
    projector: str | None = None
    projector_bytes: int = 0
    draft: str | None = None
    draft_bytes: int = 0
    missing: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Bytes that a load reads."""
        return self.weights + self.projector_bytes + self.draft_bytes
