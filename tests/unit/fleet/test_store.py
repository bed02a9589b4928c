"""The state folder: one holder, whole files, and a memory that forgives."""

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pannier.errors import StoreError
from pannier.fleet import store as store_module
from pannier.fleet.store import Memory, atomic_write, hold, runtime_folder, state_folder
from pannier.fleet.sweep import Session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state"


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    return tmp_path / "run" / "pannier" / "name"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- holding --------------------------------------------------------------------------------------


def test_the_folder_is_made_for_its_owner_alone(folder, runtime):
    with hold(folder, runtime) as store:
        assert [mode(each) for each in (folder, store.groups, runtime)] == [0o700] * 3
        assert mode(folder / "lock") == 0o600
        assert store.socket.parent == runtime


def test_a_second_holder_is_refused_and_told_who_holds_it(folder, runtime):
    with hold(folder, runtime):
        with pytest.raises(StoreError) as caught, hold(folder, runtime):
            pass
        assert f"process {os.getpid()}" in str(caught.value)
        assert "--state" in str(caught.value)


def test_a_folder_that_was_let_go_can_be_held_again(folder, runtime):
    for _ in range(2):
        with hold(folder, runtime):
            pass
    assert not runtime.exists()


def test_a_holder_that_was_killed_does_not_keep_the_folder(folder, runtime):
    program = (
        "import os, sys; from pathlib import Path; from pannier.fleet.store import hold\n"
        "with hold(Path(sys.argv[1]), Path(sys.argv[2])): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, folder, runtime]).returncode == -9
    with hold(folder, runtime):
        pass


def test_a_child_does_not_keep_the_folder(folder, runtime):
    with hold(folder, runtime):
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False
        )
    try:
        with hold(folder, runtime):
            pass
    finally:
        child.communicate(b"\n")


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path, runtime):
    (tmp_path / "state").write_text("a file")
    with (
        pytest.raises(StoreError, match="state cannot be used: File exists"),
        hold(tmp_path / "state", runtime),
    ):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path, runtime):
    (tmp_path / "file").write_text("a file")
    with (
        pytest.raises(StoreError, match="cannot be used: Not a directory"),
        hold(tmp_path / "file" / "state", runtime),
    ):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path, runtime):
    (tmp_path / "state").mkdir(mode=0o500)
    with (
        pytest.raises(StoreError, match="cannot be used: Permission denied"),
        hold(tmp_path / "state", runtime),
    ):
        pass


def test_a_runtime_folder_that_cannot_be_made_is_named_and_the_lock_let_go(tmp_path, folder):
    (tmp_path / "file").write_text("a file")
    blocked = tmp_path / "file" / "pannier" / "name"
    with pytest.raises(StoreError, match=r"file/pannier.* cannot be used"), hold(folder, blocked):
        pass
    with hold(folder, tmp_path / "run" / "pannier" / "name"):
        pass


def test_a_runtime_folder_that_may_not_be_made_is_not_blamed_on_another_pannier(
    folder, runtime, monkeypatch
):
    def refused(path, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(StoreError) as caught, hold(folder, runtime):
        pass
    assert "another pannier" not in str(caught.value)
    assert str(runtime.parent) in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to another")
def test_a_runtime_folder_of_another_user_is_refused(tmp_path, folder):
    hostile = tmp_path / "pannier-0"
    hostile.mkdir()
    os.chown(hostile, 12345, 12345)
    with (
        pytest.raises(StoreError, match="belongs to somebody else"),
        hold(folder, hostile / "name"),
    ):
        pass
    with hold(folder, tmp_path / "run" / "name"):
        pass


def test_a_link_in_the_place_of_the_runtime_folder_is_refused(tmp_path, folder):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "pannier-0").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(StoreError, match="belongs to somebody else"),
        hold(folder, tmp_path / "pannier-0" / "name"),
    ):
        pass


def test_an_open_runtime_folder_is_closed_to_others(folder, runtime):
    runtime.parent.mkdir(parents=True)
    runtime.parent.chmod(0o777)
    with hold(folder, runtime):
        assert mode(runtime.parent) == 0o700


# --- where ----------------------------------------------------------------------------------------


def test_the_state_is_where_systemd_or_the_desktop_says(tmp_path):
    home = tmp_path
    assert state_folder({}, home) == home / ".local" / "state" / "pannier"
    assert state_folder({"XDG_STATE_HOME": "/x"}, home) == Path("/x/pannier")
    assert state_folder({"STATE_DIRECTORY": "/var/lib/a:/b", "XDG_STATE_HOME": "/x"}, home) == Path(
        "/var/lib/a"
    )


def test_two_state_folders_have_two_sockets_and_one_has_the_same_each_time(tmp_path):
    given = {"XDG_RUNTIME_DIR": "/run"}
    one, two = runtime_folder(given, Path("/one")), runtime_folder(given, Path("/two"))
    assert one != two
    assert one == runtime_folder(given, Path("/one"))
    assert one.parent == Path("/run/pannier")


@pytest.mark.parametrize("name", ["x" * 120, "ü" * 40, "missing"])
def test_the_path_of_the_socket_always_fits(tmp_path, name, monkeypatch):
    deep = tmp_path / name
    if name != "missing":
        deep.mkdir()
    for elsewhere in ("/tmp", str(tmp_path / ("t" * 100))):
        Path(elsewhere).mkdir(exist_ok=True)
        monkeypatch.setattr(store_module.tempfile, "tempdir", elsewhere)
        found = runtime_folder({"XDG_RUNTIME_DIR": str(deep)}, Path("/state" * 30))
        assert len(os.fsencode(found / "launchers.sock")) <= 100


# --- writing --------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_and_is_private(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    target.chmod(0o644)
    atomic_write(target, b"new")
    assert target.read_bytes() == b"new"
    assert mode(target) == 0o600
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_is_interrupted_leaves_the_old_file_and_no_other(
    tmp_path, monkeypatch, moment, error
):
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def fail(*given):
        raise error

    where = os if moment == "fsync" else Path
    monkeypatch.setattr(where, moment, fail)
    with pytest.raises(type(error)):
        atomic_write(target, b"new" * 100_000)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_is_not_replaced_by_a_file(tmp_path):
    (tmp_path / "target").mkdir()
    with pytest.raises(OSError, match="directory"):
        atomic_write(tmp_path / "target", b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["target"]


def test_a_link_is_replaced_and_what_it_names_is_not_written(tmp_path):
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "target").symlink_to(tmp_path / "theirs")
    atomic_write(tmp_path / "target", b"new")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert not (tmp_path / "target").is_symlink()


# --- memory ---------------------------------------------------------------------------------------


def test_what_was_remembered_is_known_to_the_next_run(folder, runtime):
    with hold(folder, runtime) as store:
        store.remember_session(Session(41, 7))
        store.remember_session(Session(42, 8))
        store.forget_session(41)
        store.remember_load("/models/ä b.gguf", 12.5)
    with hold(folder, runtime) as store:
        assert store.previous.sessions == (Session(42, 8),)
        assert store.usual_load("/models/ä b.gguf") == 12.5
        assert mode(folder / "memory.toml") == 0o600


def test_a_load_takes_as_long_as_the_median_of_the_last_three(folder, runtime):
    with hold(folder, runtime) as store:
        assert store.usual_load("m") is None
        for seconds in (100.0, 5.0, 1.0, 3.0):
            store.remember_load("m", seconds)
        assert store.usual_load("m") == 3.0
        store.remember_load("m", 90.0)
        assert store.usual_load("m") == 3.0


GARBAGE = [
    b"",
    b"\xff\xfe",
    b"boot = 1",
    b"sessions = [{pid = 'x'}]",
    b"[loads]\na = 3",
    b"a = [" * 5000,
    b"]] not toml",
]


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_a_memory_that_cannot_be_read_is_an_empty_one(folder, runtime, content):
    folder.mkdir(parents=True)
    (folder / "memory.toml").write_bytes(content)
    with hold(folder, runtime) as store:
        assert store.previous == Memory()
        store.remember_load("m", 1.0)
    with hold(folder, runtime) as store:
        assert store.usual_load("m") == 1.0


def test_a_disk_that_is_full_stops_nothing(folder, runtime, monkeypatch):
    with hold(folder, runtime) as store:
        monkeypatch.setattr(store_module.os, "fsync", full)
        store.remember_session(Session(1, 2))
        store.remember_load("m", 1.0)
        assert store.usual_load("m") == 1.0


def full(handle: int) -> None:
    raise OSError(28, "No space left on device")


def test_letting_go_survives_a_runtime_folder_that_was_taken_away(folder, runtime):
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold(folder, runtime))
        runtime.rmdir()
