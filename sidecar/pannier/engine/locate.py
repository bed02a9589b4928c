"""Where llama-server and llama-swap are, and what they can do.

Finding is cheap and starts nothing: the configured path, the environment, PATH, then the managed
folder that `pannier engine install` fills. A path that a person wrote down and that is not there is
an error, never a reason to take another program silently. Asking a program for its version and its
features starts it, bounded in time, and is remembered for as long as the file stays the same.

Must not: install, download or change anything.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from pannier.engine.process import run
from pannier.errors import EngineError

Source = Literal["config", "environment", "path", "managed"]

PROBE_SECONDS = 10.0
ORIGIN = "pannier.json"
"""Beside a managed program: what it is and how it was got."""

_PROGRESS_MARK = b"cmd_child_to_router:state"
_LARGEST_LIBRARY = 256 << 20


class Configured(msgspec.Struct, frozen=True, kw_only=True):
    """What config.toml says about the programs; `base` is its folder."""

    llama_server: str = "llama-server"
    llama_swap: str = "llama-swap"
    base: Path | None = None


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program that was found: its path, and who named it."""

    path: str
    source: Source


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What Pannier would like a llama-server to have; each has a fallback."""

    progress_lines: bool
    load_mode: bool
    fit_params: bool
    rpc: bool


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """How a managed program came here."""

    program: str
    version: str
    backend: str | None
    way: str


def managed_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the programs that Pannier installed itself."""
    home = environ.get("XDG_DATA_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    base = Path(home) if Path(home).is_absolute() else _home(environ) / ".local" / "share"
    return base / "pannier" / "engine"


def find_llama_server(
    configured: str = "llama-server",
    *,
    base: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Program | None:
    """Find llama-server; *base* is the folder of config.toml. Raises EngineError: a wrong path."""
    return _find("llama-server", configured, base, environ)


def find_llama_swap(
    configured: str = "llama-swap",
    *,
    base: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Program | None:
    """Find llama-swap; *base* is the folder of config.toml. Raises EngineError for a wrong path."""
    return _find("llama-swap", configured, base, environ)


def _find(
    name: str, configured: str, base: Path | None, environ: Mapping[str, str]
) -> Program | None:
    key = name.replace("-", "_")
    if configured != name:
        path = _named(configured, f"[engine] {key}", base, environ)
        return Program(path=path, source="config")
    variable = f"PANNIER_{key.upper()}"
    if environ.get(variable):
        path = _named(environ[variable], variable, None, environ)
        return Program(path=path, source="environment")
    if (on_path := _which(name, environ)) is not None:
        return Program(path=on_path, source="path")
    managed = managed_folder(environ) / "bin" / name
    if os.access(managed, os.X_OK) and managed.is_file():
        # Resolved: a later install moves the link, not the program that a plan names.
        return Program(path=str(managed.resolve()), source="managed")
    return None


def _named(value: str, where: str, base: Path | None, environ: Mapping[str, str]) -> str:
    if "/" not in value and os.sep not in value:
        if (found := _which(value, environ)) is not None:
            return found
        raise EngineError(
            f"{where} names {value!r}, which is not on PATH",
            hint="write the whole path of the program, or leave the setting out",
        )
    path = Path(value)
    if value.startswith("~/"):
        path = _home(environ) / value[2:]
    path = Path(os.path.abspath((base or Path.cwd()) / path))  # noqa: PTH100 (keeps links as written)
    if path.is_file() and os.access(path, os.X_OK):
        return str(path)
    if not path.exists():
        problem, hint = "which does not exist", "correct the path, or leave the setting out"
    elif path.is_dir():
        problem, hint = "which is a folder", "name the program in it"
    else:
        problem, hint = "which cannot be executed", f"chmod +x {path}"
    raise EngineError(f"{where} names {path}, {problem}", hint=hint)


def _which(name: str, environ: Mapping[str, str]) -> str | None:
    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    return os.path.abspath(found) if found else None  # noqa: PTH100


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


_Key = tuple[str, int, int]
_servers: dict[_Key, tuple[str, Features]] = {}
_swaps: dict[_Key, str] = {}


async def probe_llama_server(path: str | Path) -> tuple[str, Features]:
    """Ask a llama-server for its version and its features.

    Raises EngineError when it does not start, or not within ten seconds.
    """
    key = _key(path)
    if key not in _servers:
        said = await _ask(path, "--version")
        help_text = await _ask(path, "--help")
        _servers[key] = (
            llama_version(said, origin(path)),
            Features(
                progress_lines=await asyncio.to_thread(_has_progress_lines, Path(path)),
                load_mode="--load-mode" in help_text,
                fit_params=beside(path, "llama-fit-params") is not None,
                rpc="--rpc" in help_text,
            ),
        )
    return _servers[key]


async def probe_llama_swap(path: str | Path) -> str:
    """Ask a llama-swap for its version (`250`; `0` for a build that was not told).

    Raises EngineError when it does not start, or not within ten seconds.
    """
    key = _key(path)
    if key not in _swaps:
        _swaps[key] = swap_version(await _ask(path, "-version"))
    return _swaps[key]


def llama_version(said: str, known: Origin | None = None) -> str:
    """The version in what `--version` printed: `b11434`, or llama.cpp's own number, or `unknown`.

    A build from an archive of the source does not know its build number; *known* may.
    """
    build = re.search(r"^version: (?:\S+ \(build )?(\d+)[ ,]", said, re.MULTILINE)
    if build and int(build[1]) > 0:
        return f"b{build[1]}"
    if known is not None:
        return known.version
    number = re.search(r"^version: (\S+)", said, re.MULTILINE)
    return number[1] if number else "unknown"


def swap_version(said: str) -> str:
    """The version in what `llama-swap -version` printed."""
    number = re.search(r"^version: (\S+)", said, re.MULTILINE)
    return number[1] if number else "unknown"


def beside(path: str | Path, name: str) -> str | None:
    """The program *name* in the folder of *path*: as it is written, or behind its links."""
    for folder in (Path(path).parent, Path(path).resolve().parent):
        other = folder / name
        if other.is_file() and os.access(other, os.X_OK):
            return str(other)
    return None


def origin(path: str | Path) -> Origin | None:
    """What is known about a managed program; None for any other."""
    try:
        found = (Path(path).resolve().parent / ORIGIN).read_bytes()
        return msgspec.json.decode(found, type=Origin)
    except (OSError, msgspec.MsgspecError):
        return None


async def _ask(path: str | Path, flag: str) -> str:
    try:
        ended = await run([str(path), flag], seconds=PROBE_SECONDS)
    except OSError as error:
        raise EngineError(
            f"{path} cannot be started: {error.strerror or error}",
            hint="was it made for this system?",
        ) from error
    if ended.code != 0:
        raise EngineError(
            f"{path} {flag} {ended.reason()}: {ended.tail(3) or 'it said nothing'}",
            hint="`pannier engine install` gets one that runs here",
        )
    return ended.output


def _has_progress_lines(path: Path) -> bool:
    # Which file carries the text depends on the build: the program, or a library beside it.
    return any(_contains(file, _PROGRESS_MARK) for file in _parts(path.resolve()))


def _parts(path: Path) -> Iterator[Path]:
    yield path
    library = path.parent.parent / "lib"
    for folder, deep in ((path.parent, ""), (library, ""), (library, "*/")):
        for pattern in (f"{deep}libllama*.so*", f"{deep}libllama*.dylib"):
            yield from sorted(file for file in folder.glob(pattern) if not file.is_symlink())


def _contains(file: Path, mark: bytes) -> bool:
    try:
        if file.stat().st_size > _LARGEST_LIBRARY:
            return False
        kept = b""
        with file.open("rb") as opened:
            while chunk := opened.read(1 << 20):
                if mark in kept + chunk:
                    return True
                kept = chunk[-len(mark) :]
    except OSError:
        return False
    return False


def _key(path: str | Path) -> _Key:
    try:
        found = Path(path).stat()
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror or error}") from error
    return str(path), found.st_size, found.st_mtime_ns
