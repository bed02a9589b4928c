"""How much RAM there is for models: the machine's, or less where a control group says so.

In a container /proc/meminfo is the host's, while the kernel ends whoever passes the limit of the
container's control group; so the least of both holds, on every level from our own group up. File
cache counts as available, as it does in the kernel's own MemAvailable: model files that are mapped
are cache. Files: proc_meminfo(5) and the kernel's cgroup-v2.rst and cgroup-v1/memory.rst.

Must not: raise. What cannot be read does not limit; nothing at all is zero, "not known".
"""

from collections.abc import Iterator
from pathlib import Path

from pannier.devices.inventory import HostMemory

_V2 = (("memory.max", "memory.high"), "memory.current", "")
_V1 = (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_")
"""Limits (above "high" the kernel slows a group down until it is useless), what is used, and how
the entries of memory.stat that cover the groups below begin."""

_CACHE = ("active_file", "inactive_file")


def host_memory(
    meminfo: Path = Path("/proc/meminfo"),
    groups: Path = Path("/proc/self/cgroup"),
    mount: Path = Path("/sys/fs/cgroup"),
) -> HostMemory:
    """RAM in bytes as far as this process may use it; zeros on systems that do not tell."""
    kib = _numbers(_text(meminfo).replace(":", " "))
    total, available = kib.get("MemTotal", 0) * 1024, kib.get("MemAvailable", 0) * 1024
    for limit, used in _limits(_text(groups), mount):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return HostMemory(total=total, available=available)


def _limits(groups: str, mount: Path) -> Iterator[tuple[int, int]]:
    """Limit and what is used of it, in bytes, for every group that has one and holds us."""
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            # On a hybrid system this tree is elsewhere and knows no memory: nothing is found.
            yield from _walk(mount, path, *_V2)
        elif "memory" in controllers.split(","):
            yield from _walk(mount / "memory", path, *_V1)


def _walk(
    root: Path, path: str, limits: tuple[str, ...], current: str, prefix: str
) -> Iterator[tuple[int, int]]:
    """From the group of this path up to the root of the tree.

    The path may be the host's while the mount shows the container's part alone: then only the root
    is there, and it is the container's own group.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        group = root.joinpath(*parts[:depth])
        found = [int(text) for name in limits if (text := _text(group / name).strip()).isdecimal()]
        used = _text(group / current).strip()
        if found and used.isdecimal():
            stat = _numbers(_text(group / "memory.stat"))
            cache = sum(stat.get(prefix + name, 0) for name in _CACHE)
            yield min(found), max(0, int(used) - cache)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):  # ValueError: a NUL in a name
        return ""


def _numbers(text: str) -> dict[str, int]:
    """The lines "name number ..." of a file, the rest left out."""
    words = (line.split() for line in text.splitlines())
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}
