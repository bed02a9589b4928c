"""How much RAM may be used: the machine's, and what the control groups above us leave of it."""

from pathlib import Path

import pytest

from pannier.devices.host import host_memory

KIB, MIB = 1024, 1024 * 1024
V1_NO_LIMIT = 9223372036854771712


def machine(folder: Path, meminfo: str = "MemTotal: 1024000 kB\nMemAvailable: 819200 kB\n") -> Path:
    """1000 MiB, of which 800 are available."""
    (folder / "cgroup").mkdir()
    (folder / "self").write_text("0::/\n")
    (folder / "meminfo").write_text(meminfo)
    return folder


def group(
    folder: Path, path: str, *, limit: object = None, high: object = None, used: int = 0,
    cache: int = 0, cold: int = 0,
) -> None:  # fmt: skip
    """A group of the second version; sizes in MiB."""
    place = folder / "cgroup" / path
    place.mkdir(parents=True, exist_ok=True)
    for name, value in (("memory.max", limit), ("memory.high", high)):
        if value is not None:
            text = str(value * MIB) if isinstance(value, int) else str(value)
            (place / name).write_text(text + "\n")
    (place / "memory.current").write_text(f"{used * MIB}\n")
    stat = f"anon {used}\nfile {cache * MIB}\nshmem 9\n"
    stat += f"active_file {(cache - cold) * MIB}\ninactive_file {cold * MIB}\n"
    (place / "memory.stat").write_text(stat)


def read(folder: Path) -> tuple[float, float]:
    memory = host_memory(folder / "meminfo", folder / "self", folder / "cgroup")
    return memory.total / MIB, memory.available / MIB


def test_without_limits_it_is_the_machines(tmp_path):
    assert read(machine(tmp_path)) == (1000, 800)


def test_a_machine_without_control_groups_has_what_it_has(tmp_path):
    machine(tmp_path)
    (tmp_path / "self").unlink()
    assert read(tmp_path) == (1000, 800)


@pytest.mark.parametrize(
    "content", [None, "", "MemTotal:\nx\n: 5 kB\n", "MemTotal: lots\n", "\0\xff"]
)
def test_what_is_told_in_no_way_is_zero(tmp_path, content):
    machine(tmp_path, content or "")
    if content is None:
        (tmp_path / "meminfo").unlink()
    group(tmp_path, "", limit=400)
    assert read(tmp_path) == (0, 0)


def test_the_limit_of_our_group_is_all_there_is(tmp_path):
    group(machine(tmp_path), "", limit=400, used=100)
    assert read(tmp_path) == (400, 300)


def test_a_limit_above_what_the_machine_has_left_changes_nothing(tmp_path):
    group(machine(tmp_path), "", limit=5000, used=10)
    assert read(tmp_path) == (1000, 800)


def test_no_limit_is_no_limit(tmp_path):
    group(machine(tmp_path), "", limit="max", high="max", used=999)
    assert read(tmp_path) == (1000, 800)


def test_above_high_nothing_is_counted_on(tmp_path):
    group(machine(tmp_path), "", limit=400, high=300, used=100)
    assert read(tmp_path) == (300, 200)


def test_file_cache_is_available_as_it_is_to_the_kernel(tmp_path):
    group(machine(tmp_path), "", limit=400, used=350, cache=300, cold=200)
    assert read(tmp_path) == (400, 350)


def test_a_group_that_is_over_its_limit_has_nothing_left(tmp_path):
    group(machine(tmp_path), "", limit=400, used=450)
    assert read(tmp_path) == (400, 0)


def test_the_least_of_all_levels_holds(tmp_path):
    machine(tmp_path)
    (tmp_path / "self").write_text("0::/slice/service\n")
    group(tmp_path, "slice", limit=500, used=480)
    group(tmp_path, "slice/service", limit=600, used=100)
    assert read(tmp_path) == (500, 20)


def test_a_path_of_the_host_leads_to_the_root_that_a_container_sees(tmp_path):
    machine(tmp_path)
    (tmp_path / "self").write_text("0::/docker/0123abc\n")
    group(tmp_path, "", limit=400, used=50)
    assert read(tmp_path) == (400, 350)


def test_a_path_above_the_root_stays_within_the_tree(tmp_path):
    machine(tmp_path)
    (tmp_path / "self").write_text("0::/../../other\n")
    group(tmp_path, "", limit=400, used=50)
    assert read(tmp_path) == (400, 350)


@pytest.mark.parametrize(
    ("limit", "expected"), [(400 * MIB, (400, 350)), (V1_NO_LIMIT, (1000, 800))]
)
def test_the_first_version_of_control_groups_limits_too(tmp_path, limit, expected):
    machine(tmp_path)
    (tmp_path / "self").write_text("9:name=systemd:/x\n4:cpu,memory:/docker/abc\n0::/x\n")
    place = tmp_path / "cgroup" / "memory" / "docker" / "abc"
    place.mkdir(parents=True)
    (place / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (place / "memory.usage_in_bytes").write_text(f"{150 * MIB}\n")
    stat = f"inactive_file 5\ntotal_inactive_file {60 * MIB}\ntotal_active_file {40 * MIB}\n"
    (place / "memory.stat").write_text(stat)
    assert read(tmp_path) == expected


@pytest.mark.parametrize("text", ["", "nonsense", "0::", ":::::\n\n", "0::/a\0b\n", "4:memory:\n"])
def test_a_group_file_that_says_nothing_limits_nothing(tmp_path, text):
    machine(tmp_path)
    (tmp_path / "self").write_text(text)
    assert read(tmp_path) == (1000, 800)


@pytest.mark.parametrize("used", [None, "", "much"])
def test_a_group_whose_use_is_not_told_limits_nothing(tmp_path, used):
    group(machine(tmp_path), "", limit=400)
    current = tmp_path / "cgroup" / "memory.current"
    if used is None:
        current.unlink()
    else:
        current.write_text(used)
    assert read(tmp_path) == (1000, 800)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="a system without /proc")
def test_this_machine_has_memory():
    memory = host_memory()
    assert 0 < memory.available <= memory.total
    assert memory.total >= 64 * MIB
