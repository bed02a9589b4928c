"""The state folder: one Pannier at a time, files that are whole or not there.

It holds the lock, the rendered configs, the sessions that were started (so that the next start can
sweep what a power cut or a kill left) and how long earlier loads took. The Unix socket of the
launchers is in the runtime folder: a socket path has about 100 bytes, and a state folder may be
deep.

Must not: keep anything that a person edits.
"""

import contextlib
import errno
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from pannier.errors import StoreError
from pannier.fleet.sweep import Session, boot_id

if sys.platform != "win32":
    import fcntl

_LONGEST_SOCKET_PATH = 100
"""sun_path holds 108 bytes on Linux and 104 on macOS, the final zero included (unix(7))."""

_LONGEST_FOLDER = _LONGEST_SOCKET_PATH - len("/pannier-4294967295/0123456789abcdef/launchers.sock")

_KEPT_LOADS = 3
"""A median of the last three loads follows a changed disk and forgives one odd load."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What one run leaves to the next. `loads` are seconds of the last loads per model file."""

    boot: str = ""
    sessions: tuple[Session, ...] = ()
    loads: dict[str, tuple[float, ...]] = {}


def state_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Where the state is kept unless told: systemd's folder, or the XDG state home."""
    given = environ.get("STATE_DIRECTORY")
    if given:
        return Path(given.split(":")[0])
    xdg = environ.get("XDG_STATE_HOME")
    return (Path(xdg) if xdg else home / ".local" / "state") / "pannier"


def runtime_folder(environ: Mapping[str, str], state: Path) -> Path:
    """Where the socket of a state folder is; the same at every start, so that launchers find it."""
    name = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    given = environ.get("XDG_RUNTIME_DIR")
    if given and len(os.fsencode(given)) <= _LONGEST_FOLDER and os.access(given, os.W_OK):
        return Path(given) / "pannier" / name
    shared = tempfile.gettempdir()
    if len(os.fsencode(shared)) > _LONGEST_FOLDER:
        shared = "/tmp"  # noqa: S108  what is made there is checked to be ours
    return Path(shared) / f"pannier-{os.getuid()}" / name


def atomic_write(path: Path, content: bytes) -> None:
    """Replaces a file by a whole new one, or leaves the old: temp file, fsync, rename, fsync.

    Mode 0600: a rendered config may hold keys. Raises OSError.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Store:
    """The state folder while it is held. Made by `hold`; its owner is the service."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        self.runtime = runtime
        self.socket = runtime / "launchers.sock"
        self.previous = self._read()
        self._sessions: tuple[Session, ...] = ()
        self._loads = dict(self.previous.loads)

    @property
    def groups(self) -> Path:
        """Folder of the rendered configs."""
        return self.folder / "groups"

    def remember_session(self, session: Session) -> None:
        """A session was started: written before anything else can happen to it."""
        self._sessions = (*self._sessions, session)
        self._write()

    def forget_session(self, pid: int) -> None:
        """A session is gone."""
        self._sessions = tuple(session for session in self._sessions if session.pid != pid)
        self._write()

    def remember_load(self, file: str, seconds: float) -> None:
        """A model file was loaded in so many seconds."""
        self._loads[file] = (*self._loads.get(file, ()), round(seconds, 3))[-_KEPT_LOADS:]
        self._write()

    def usual_load(self, file: str) -> float | None:
        """Median seconds of the last loads of a model file, None when it was never loaded."""
        known = sorted(self._loads.get(file, ()))
        return known[len(known) // 2] if known else None

    def _read(self) -> Memory:
        try:
            return msgspec.toml.decode((self.folder / "memory.toml").read_bytes(), type=Memory)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return Memory()  # a first start, or a file of another version: nothing is remembered

    def _write(self) -> None:
        memory = Memory(boot=boot_id(), sessions=self._sessions, loads=self._loads)
        # A full disk must not stop a load: the sessions are then swept by the launchers alone.
        with contextlib.suppress(OSError):
            atomic_write(self.folder / "memory.toml", msgspec.toml.encode(memory))


@contextlib.contextmanager
def hold(folder: Path, runtime: Path) -> Iterator[Store]:
    """Holds the state folder for as long as the block runs.

    Raises StoreError when it cannot be made or written, or when another Pannier holds it.
    """
    lock = _make_and_lock(folder, runtime)
    try:
        yield Store(folder, runtime)
    finally:
        with contextlib.suppress(OSError):
            (runtime / "launchers.sock").unlink(missing_ok=True)
            runtime.rmdir()
        os.close(lock)


def _make_and_lock(folder: Path, runtime: Path) -> int:
    hint = "name another folder with --state"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "groups").mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"the state folder {folder} cannot be used: {error.strerror}", hint=hint
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    except OSError as error:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        if error.errno in (errno.EAGAIN, errno.EACCES) and holder:
            raise StoreError(
                f"another pannier (process {holder}) is using the state folder {folder}", hint=hint
            ) from error
        raise StoreError(
            f"the state folder {folder} cannot be used: {error.strerror}", hint=hint
        ) from error
    try:
        _make_runtime(runtime)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _make_runtime(runtime: Path) -> None:
    """A folder that is ours alone: the parent may be /tmp, where anybody can make one before us."""
    hint = "set XDG_RUNTIME_DIR to a folder of yours"
    for folder in (runtime.parent, runtime):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise StoreError(f"{folder} belongs to somebody else", hint=hint)
            folder.chmod(0o700)
        except OSError as error:
            raise StoreError(f"{folder} cannot be used: {error.strerror}", hint=hint) from error
