"""Unpacks archives that come from outside, as if they were hostile.

A release archive needs plain files, folders and links to a neighbour; everything else is refused
before a byte is written: paths that leave the folder, links that point elsewhere, hard links and
devices, more files or bytes than any real release has. tarfile's own `data` filter stands behind
our check, not instead of it: it follows links, and has been led astray by them.

Must not: start anything, or look at what the files are.
"""

import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pannier.errors import EngineError

MOST_BYTES = 6 << 30
MOST_FILES = 5000


def unpack(archive: Path, into: Path, *, most_bytes: int = MOST_BYTES) -> None:
    """Unpack a .tar.gz or .zip (a wheel is one) into the folder *into*."""
    into.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, into, most_bytes)
        else:
            _unpack_tar(archive, into, most_bytes)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise EngineError(f"{archive.name} could not be unpacked: {error}") from error


def find_program(folder: Path, name: str) -> Path:
    """The one program *name* anywhere under *folder*."""
    found = sorted(file for file in folder.rglob(name) if file.is_file() and not file.is_symlink())
    if not found:
        raise EngineError(f"there is no {name} in the archive")
    return found[0]


def link_neighbours(folder: Path, links: dict[str, str]) -> None:
    """Make links in *folder*, each from a name to a neighbour."""
    for name, target in links.items():
        if not (_is_plain(name) and _is_plain(target)):
            raise EngineError(f"the archive wants a link {name!r} to {target!r}")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)


def _is_plain(name: str) -> bool:
    return bool(name) and name not in {".", ".."} and "/" not in name and "\\" not in name


def _check_name(name: str) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name or "\0" in name:
        raise EngineError(f"the archive holds a path that leaves its folder: {name!r}")


class _Bounds:
    """Counts what an archive wants to write."""

    def __init__(self, most_bytes: int) -> None:
        self._bytes_left = most_bytes
        self._files_left = MOST_FILES

    def take(self, size: int) -> None:
        self._bytes_left -= size
        self._files_left -= 1
        if self._bytes_left < 0 or self._files_left < 0:
            raise EngineError("the archive is larger than any real one")


def _unpack_tar(archive: Path, into: Path, most_bytes: int) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise EngineError("this Python cannot unpack safely", hint="use Python 3.11.4 or newer")
    with tarfile.open(archive, "r:gz") as opened:
        for member in _checked(opened, most_bytes):
            opened.extract(member, into, filter="data")


def _checked(opened: tarfile.TarFile, most_bytes: int) -> list[tarfile.TarInfo]:
    # All of them before the first is written. The header comes before the data that it announces,
    # so a bomb is refused before it is inflated.
    bounds = _Bounds(most_bytes)
    members = []
    for member in opened:
        _check_name(member.name)
        bounds.take(member.size)
        if member.issym():
            if not _is_plain(member.linkname):
                raise EngineError(f"the archive links {member.name!r} to {member.linkname!r}")
        elif not (member.isreg() or member.isdir()):
            raise EngineError(f"the archive holds {member.name!r}, which is not a file")
        members.append(member)
    return members


def _unpack_zip(archive: Path, into: Path, most_bytes: int) -> None:
    with zipfile.ZipFile(archive) as opened:
        for member in list(_checked_zip(opened, most_bytes)):
            target = into / member.filename
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            # zipfile stops at the size that the directory announces, which was counted.
            with opened.open(member) as source, target.open("wb") as written:
                shutil.copyfileobj(source, written)
            target.chmod(0o644 | ((member.external_attr >> 16) & 0o111))


def _checked_zip(opened: zipfile.ZipFile, most_bytes: int) -> Iterator[zipfile.ZipInfo]:
    bounds = _Bounds(most_bytes)
    for member in opened.infolist():
        _check_name(member.filename)
        bounds.take(member.file_size)
        kind = (member.external_attr >> 28) & 0xF
        if kind not in {0, 0o4, 0o10}:
            raise EngineError(f"the archive holds {member.filename!r}, which is not a file")
        yield member
