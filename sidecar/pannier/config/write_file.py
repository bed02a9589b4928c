"""Writes an edit of config.toml to the disk: the whole new file or the old one, never half of it.

A temporary file in the same folder takes the old one's mode, owner and attributes, reaches the disk
and is renamed over it. A link stays a link: the file that it leads to is replaced. Where renaming
would not do (the file is a mount point of its own, as containers have it; it has a second name; its
owner cannot be kept) the file is written in place, after a copy of the old content was put beside
it. An edit is made from what was read a moment ago, so a file that has changed since is left alone.

Must not: follow anything but a regular file, write a file that its owner has made read-only, or
leave a temporary file behind.
"""

import contextlib
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from pannier.errors import PannierError

if sys.platform != "win32":
    import fcntl

BACKUP_SUFFIX = ".pannier-backup"
_NO_RENAME = (errno.EBUSY, errno.EXDEV)
"""What rename(2) says of a mount point, and of a file that lies on another file system."""

Rename = Callable[[Path, Path], object]


class WriteError(PannierError):
    """The file was not written; its content is what it was, unless the message says otherwise.

    `code` is "changed" where somebody else has changed it meanwhile, "busy" where somebody else is
    writing it, and "unwritable" for the rest.
    """

    code = "unwritable"


def write_file(path: Path, content: bytes, *, before: bytes, rename: Rename = Path.replace) -> None:
    """Replace the content of a file that holds `before`. Raises WriteError.

    Nothing is written where the content is the same.
    """
    try:
        target = Path(os.path.realpath(path, strict=True))
        with _locked(target) as file:
            _check_unchanged(target, before)
            if content != before:
                _write(target, file, content, before, rename)
    except OSError as error:
        raise WriteError(
            f"{path} cannot be written: {error.strerror or error}",
            hint=f"Pannier must be allowed to write it, and new files in {path.parent}",
        ) from error


def _write(target: Path, file: BinaryIO, content: bytes, before: bytes, rename: Rename) -> None:
    temporary = _beside(target, content)
    try:
        keeps = target.stat().st_nlink == 1 and _take_over(target, temporary)
        _check_unchanged(target, before)
        if keeps and _renamed(temporary, target, rename):
            _sync_folder(target.parent)
            return
    finally:
        temporary.unlink(missing_ok=True)
    _write_in_place(target, file, content, before)


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[BinaryIO]:
    """The file, open for writing and locked against another edit."""
    if not stat.S_ISREG(target.stat().st_mode):  # before it is opened: a pipe would block
        raise WriteError(f"{target} is no regular file")
    with target.open("r+b", buffering=0) as file:
        try:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"{target} is being written by another program"
            raise WriteError(message, hint="try again in a moment", code="busy") from error
        except OSError:
            pass  # a file system without locks: the comparison has to be enough
        yield file


def _check_unchanged(target: Path, before: bytes) -> None:
    with target.open("rb") as file:
        now = file.read(len(before) + 1)
    if now != before:
        raise WriteError(
            f"{target} has been changed meanwhile",
            hint="the change is kept; make the edit again on what is there now",
            code="changed",
        )


def _beside(target: Path, content: bytes) -> Path:
    """A new file in the same folder, for the owner alone, that has reached the disk."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:64]}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _take_over(target: Path, temporary: Path) -> bool:
    """Give a file the owner, attributes and mode of another one; False where it cannot have them.

    The mode comes last: a change of owner clears some of its bits.
    """
    old, new = target.stat(), temporary.stat()
    try:
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.chown(temporary, old.st_uid, old.st_gid)
        if sys.platform == "linux":  # access lists and security labels
            given = {name: os.getxattr(temporary, name) for name in os.listxattr(temporary)}
            for name in os.listxattr(target):
                if (value := os.getxattr(target, name)) != given.get(name):
                    os.setxattr(temporary, name, value)
        temporary.chmod(stat.S_IMODE(old.st_mode))
    except OSError:
        return False
    return True


def _renamed(temporary: Path, target: Path, rename: Rename) -> bool:
    try:
        rename(temporary, target)
    except OSError as error:
        if error.errno in _NO_RENAME:
            return False
        raise
    return True


def _write_in_place(target: Path, file: BinaryIO, content: bytes, before: bytes) -> None:
    """Write over the old content, which is put beside it first and stays there."""
    backup = target.with_name(target.name + BACKUP_SUFFIX)
    copy = _beside(target, before)
    try:
        _take_over(target, copy)  # it may hold no more than its owner's: then it stays private
        copy.replace(backup)
    finally:
        copy.unlink(missing_ok=True)
    _sync_folder(target.parent)
    _check_unchanged(target, before)
    try:
        _overwrite(file, content)
    except OSError as error:
        reason = error.strerror or str(error)
        try:
            _overwrite(file, before)
        except OSError:
            message = f"{target} was only written in part: {reason}"
            raise WriteError(message, hint=f"its content before is in {backup}") from error
        raise


def _overwrite(file: BinaryIO, content: bytes) -> None:
    file.seek(0)
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
    file.truncate(len(content))
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """So that a power cut does not undo a rename; where it cannot be done, it is renamed still."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
