"""Finds the files of a model: its shards, its projector, its draft model, and their sizes.

The edge of the folder: it looks at names and sizes and opens nothing. A file that is missing is an
answer, not an error: such a model is listed as not installed and starts when the file appears.

Must not: read tensors, or guess a model that the config does not name.
"""

import re
import stat
from pathlib import Path

from pannier.config.schema import Config, Model
from pannier.gguf.model_files import ModelFiles

_SHARD = re.compile(r"^(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf$")


def find_files(config: Config, base: Path) -> dict[str, ModelFiles]:
    """The files of every model of the config; relative paths are relative to `base`."""
    return {name: find_model(model, base) for name, model in config.models.items()}


def find_model(model: Model, base: Path) -> ModelFiles:
    """The files of one model."""
    parts = _parts(absolute(model.path, base))
    projector = _projector(model, parts[0], base)
    draft = _parts(absolute(model.draft, base)) if model.draft else []
    wanted = [*parts, *([projector] if projector else []), *draft]
    sizes = {file: _size(file) for file in wanted}
    return ModelFiles(
        path=str(parts[0]),
        weights=sum(sizes[part] or 0 for part in parts),
        projector=str(projector) if projector else None,
        projector_bytes=(sizes[projector] or 0) if projector else 0,
        draft=str(draft[0]) if draft else None,
        draft_bytes=sum(sizes[part] or 0 for part in draft),
        missing=tuple(str(file) for file in wanted if sizes[file] is None),
    )


def absolute(text: str, base: Path) -> Path:
    """A path of the config: relative to `base`, and with a home folder where one is meant."""
    try:
        return base / Path(text).expanduser()
    except RuntimeError:  # the home of a user whom this machine does not know
        return base / text


def _size(path: Path) -> int | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _parts(path: Path) -> list[Path]:
    """All shards of a model of which one is named, the one that the engine is given first."""
    match = _SHARD.match(path.name)
    if not match or not 1 <= int(match["part"]) <= int(match["count"]):
        return [path]
    return [
        path.with_name(f"{match['stem']}-{part:05d}-of-{match['count']}.gguf")
        for part in range(1, int(match["count"]) + 1)
    ]


def _projector(model: Model, path: Path, base: Path) -> Path | None:
    """The projector of a vision model: named, or the one `mmproj*.gguf` beside the model.

    With several beside it, the smallest kind that people ship full quality in (f16) is preferred,
    then the first by name: the same choice on every run.
    """
    if model.role != "vision" or model.mmproj == "none":
        return None
    if model.mmproj != "auto":
        return absolute(model.mmproj, base)
    try:
        found = sorted(path.parent.glob("mmproj*.gguf"))
    except OSError:  # a folder that cannot be looked at
        found = []
    f16 = [file for file in found if re.search(r"(?<![a-z])f16", file.name, re.IGNORECASE)]
    return next(iter(f16 or found), path.with_name("mmproj.gguf"))
