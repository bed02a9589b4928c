"""Reads config.toml and the key files that it names: the edge around the pure reader.

A file that is caught while an editor writes it is read again until two readings agree, so that
half a file is not taken for an edit.

Must not: parse; `load.py` does.
"""

import asyncio
from pathlib import Path

from pannier.config.load import MAX_BYTES
from pannier.config.schema import Server
from pannier.errors import ConfigError, Problem

SETTLE_S = 0.1
_MOST_READINGS = 20
_SHORTEST_KEY = 16


async def read_settled(path: Path) -> bytes:
    """The content once it stands still. Raises ConfigError when there is no file to read."""
    before = await asyncio.to_thread(_read, path)
    for _ in range(_MOST_READINGS):
        await asyncio.sleep(SETTLE_S)
        now = await asyncio.to_thread(_read, path)
        if _same(before, now):
            break
        before = now
    if isinstance(before, OSError):
        raise unreadable(before)
    return before


def read_now(path: Path) -> bytes:
    """The content as it is. Raises ConfigError when there is no file to read."""
    content = _read(path)
    if isinstance(content, OSError):
        raise unreadable(content)
    return content


def unreadable(error: OSError) -> ConfigError:
    """No file, no permission, a folder: as a problem like any other."""
    missing = isinstance(error, FileNotFoundError)
    return ConfigError(
        [
            Problem(
                code="missing" if missing else "unreadable",
                where="",
                message=f"cannot be read: {error.strerror or error}",
                hint="`pannier init` writes an example" if missing else None,
            )
        ]
    )


def read_keys(server: Server, base: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Client and admin keys, one per line. Raises ConfigError naming the key of config.toml."""
    problems: list[Problem] = []
    found = []
    for key, name in (
        ("api_key_file", server.api_key_file),
        ("admin_key_file", server.admin_key_file),
    ):
        try:
            found.append(_keys(base / Path(name).expanduser()) if name else ())
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of nobody here
            reason = error.strerror if isinstance(error, OSError) else str(error)
            problems.append(
                Problem(code="key-file", where=f"server.{key}", message=f"{name}: {reason}")
            )
    if problems:
        raise ConfigError(problems)
    return found[0], found[1]


def _read(path: Path) -> bytes | OSError:
    """At most one byte more than is accepted: a model named by mistake has a hundred gigabytes."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        return error


def _same(one: bytes | OSError, other: bytes | OSError) -> bool:
    """Whether two readings agree; two errors do when their reason is the same."""
    if isinstance(one, OSError) and isinstance(other, OSError):
        return one.errno == other.errno
    return one == other


def _keys(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        # Its own words would quote the file.
        raise ValueError("is not UTF-8 text") from None
    lines = [line.strip() for line in text.splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ValueError("holds no key")
    if min(map(len, keys)) < _SHORTEST_KEY:
        raise ValueError(f"holds a key of less than {_SHORTEST_KEY} characters")
    return keys
