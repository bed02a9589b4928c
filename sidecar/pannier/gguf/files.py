"""Finds the files of a model: its shards, its projector, its draft model, and their sizes.

The edge of the folder: it looks at names and sizes and opens nothing. A file that is missing is an
answer, not an error: such a model is listed as not installed and starts when the file appears.

Must not: read tensors, or guess a model that the config does not name.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pannier.config.schema import Config, Model
from pannier.gguf.model_files import ModelFiles

_SHARD = re.compile(r"^(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf$")


def find_files(config: Config, base: Path) -> dict[str, ModelFiles]:
    """The files of every model of the config; relative paths are relative to `base`."""
    return {name: find_model(model, base) for name, model in config.models.items()}


def find_model(model: Model, base: Path) -> ModelFiles:
    """The files of one model."""
    path = _absolute(model.path, base)
    parts = [path, *_other_shards(path)]
    projector = _projector(model, path, base)
    draft = _absolute(model.draft, base) if model.draft else None
    wanted = [*parts, *(extra for extra in (projector, draft) if extra)]
    sizes = {file: _size(file) for file in wanted}
    return ModelFiles(
        path=str(path),
        weights=sum(sizes[part] or 0 for part in parts),
        projector=str(projector) if projector else None,
        projector_bytes=(sizes[projector] or 0) if projector else 0,
        draft=str(draft) if draft else None,
        draft_bytes=(sizes[draft] or 0) if draft else 0,
        missing=tuple(str(file) for file in wanted if sizes[file] is None),
    )


def _absolute(text: str, base: Path) -> Path:
    return base / Path(text).expanduser()


def _size(path: Path) -> int | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if path.is_file() else None


def _other_shards(first: Path) -> Iterator[Path]:
    match = _SHARD.match(first.name)
    if match:
        for part in range(1, int(match["count"]) + 1):
            name = f"{match['stem']}-{part:05d}-of-{match['count']}.gguf"
            if name != first.name:
                yield first.with_name(name)


def _projector(model: Model, path: Path, base: Path) -> Path | None:
    """The projector of a vision model: named, or the one `mmproj*.gguf` beside the model.

    With several beside it, the smallest kind that people ship full quality in (f16) is preferred,
    then the first by name: the same choice on every run.
    """
    if model.role != "vision" or model.mmproj == "none":
        return None
    if model.mmproj != "auto":
        return _absolute(model.mmproj, base)
    found = sorted(path.parent.glob("mmproj*.gguf")) if path.parent.is_dir() else []
    f16 = [file for file in found if re.search(r"(?<![a-z])f16", file.name, re.IGNORECASE)]
    return next(iter(f16 or found), path.with_name("mmproj.gguf"))
