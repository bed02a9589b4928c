"""Finds the files of a model (shards, projector, draft model), and reads their headers.

The edge of the folder. A file that is missing is an answer, not an error: such a model is listed as
not installed and starts when the file appears. What else a file system can do to a file (a folder
or a pipe in its place, not ours to read, written on while we look) ends here in a GgufError with
words. Reading blocks and is meant to run in a thread; several may read at the same time.

Must not: read tensors, guess a model that the config does not name, keep a file open, or let a
part that is damaged spoil the others.
"""

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import msgspec

from pannier.config.schema import Config, Model
from pannier.errors import GgufError
from pannier.gguf.header import Header, join, read_header
from pannier.gguf.model_files import ModelFiles, ModelHeaders

CACHE_BYTES = 64 << 20
"""What the headers of a cache may take together; one of a usual model takes some 200 KiB."""

_TENSOR_BYTES = 400
_HEADER_BYTES = 4096
"""About what a tensor, and a header without its tensors and texts, take in CPython 3.11."""

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
        shards=tuple(map(str, parts)),
        draft_shards=tuple(map(str, draft)),
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


# --- headers --------------------------------------------------------------------------------------


class _Damage(msgspec.Struct, frozen=True):
    """Why the files are no model: a GgufError that can be raised more than once."""

    reason: str
    offset: int
    path: str


_Identity = tuple[int, int, int, int, int]
_Kept = tuple[tuple[_Identity, ...], Header | _Damage]


class HeaderCache:
    """The headers that were read, by path, size and times of change; one owner makes it.

    Files that are damaged are remembered too, with their error; what only the file system refused
    is not, as that may change without a trace on the file. Bounded by the memory that `limit`
    bytes are: what was not asked for the longest goes first.
    """

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._lock = Lock()
        self._kept: dict[tuple[str, ...], _Kept] = {}

    def read(self, paths: Sequence[str]) -> Header:
        """The header of a file, or of all shards of a model in their order as one.

        Raises GgufError, with the path of the file that is wrong, for whatever cannot be read.
        """
        key = tuple(paths)
        identities = tuple(_identity(path) for path in key)
        found = self._find(key, identities)
        if found is None:
            found = _read_all(key)
            if tuple(_identity(path) for path in key) != identities:
                raise GgufError(
                    "the file changes while it is read: is it still being copied?", path=key[0]
                )
            self._keep(key, identities, found)
        if isinstance(found, _Damage):
            raise GgufError(found.reason, offset=found.offset, path=found.path)
        return found

    def _find(
        self, key: tuple[str, ...], identities: tuple[_Identity, ...]
    ) -> Header | _Damage | None:
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is None or kept[0] != identities:
                return None
            self._kept[key] = kept  # the youngest now
            return kept[1]

    def _keep(
        self, key: tuple[str, ...], identities: tuple[_Identity, ...], found: Header | _Damage
    ) -> None:
        with self._lock:
            self._kept[key] = identities, found
            total = sum(_cost(each) for _, each in self._kept.values())
            while total > self._limit and len(self._kept) > 1:
                _, oldest = self._kept.pop(next(iter(self._kept)))
                total -= _cost(oldest)


def read_model(files: ModelFiles, cache: HeaderCache) -> ModelHeaders:
    """The headers of a model's files. Never raises: each part can be damaged by itself."""
    model, model_error = _part(files, files.shards or (files.path,), cache)
    projector, projector_error = _part(files, (files.projector,), cache)
    draft, draft_error = _part(files, files.draft_shards or (files.draft,), cache)
    return ModelHeaders(
        model=model,
        projector=projector,
        draft=draft,
        model_error=model_error,
        projector_error=projector_error,
        draft_error=draft_error,
    )


def _part(
    files: ModelFiles, paths: Sequence[str | None], cache: HeaderCache
) -> tuple[Header | None, str | None]:
    known = [path for path in paths if path is not None]
    if not known or any(path in files.missing for path in known):
        return None, None
    try:
        return cache.read(known), None
    except GgufError as error:
        return None, str(error)


def _read_all(paths: Sequence[str]) -> Header | _Damage:
    """What the files are; raises GgufError when the file system does not let them be read."""
    headers: list[Header] = []
    for path in paths:
        try:
            headers.append(_read(path))
        except GgufError as error:
            return _Damage(error.reason, error.offset, path)
        except OSError as error:
            raise _refused(error, path) from error
    try:
        return join(headers)
    except GgufError as error:
        return _Damage(error.reason, error.offset, paths[0])


def _read(path: str) -> Header:
    with open(path, "rb", buffering=0, opener=_open) as file:
        return read_header(file, os.fstat(file.fileno()).st_size)


def _open(path: str, flags: int) -> int:
    # Should the file be a pipe by now, opening it must not wait for somebody who writes.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _identity(path: str) -> _Identity:
    """What changes when a file does; raises GgufError for what is no file."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise _refused(error, path) from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or device"
        raise GgufError(f"this is {kind}, not a file", path=path)
    changed = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_size, *changed)


def _refused(error: Exception, path: str) -> GgufError:
    match error:
        case FileNotFoundError():
            reason = "the file is not there any more"
        case PermissionError():
            reason = "the file may not be read by the user that Pannier runs as"
        case OSError():
            reason = f"the file cannot be read: {error.strerror or error}"
        case _:
            reason = f"this cannot be the path of a file: {error}"
    return GgufError(reason, path=path)


def _cost(found: Header | _Damage) -> int:
    if isinstance(found, _Damage):
        return _HEADER_BYTES
    texts = sum(len(value) for value in found.metadata.values() if isinstance(value, str))
    return _HEADER_BYTES + _TENSOR_BYTES * len(found.tensors) + texts
