"""Writing the user's file: whole or not at all, and the file stays the file that it was."""

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pannier.config.write_file import BACKUP_SUFFIX, WriteError, write_file
from pannier.errors import PannierError

OLD = b"# mine\n[server]\n"
NEW = b"# mine\n[server]\n\n[placement.chat]\ndevices = [0]\n"
NOBODY = 65534


def may_mount():
    """Whether a bind mount can be made, in a mount namespace that ends with its process."""
    command = ["unshare", "-m", "mount", "--bind", "/tmp", "/tmp"]
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(OLD)
    return path


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def refused(path, content=NEW, **options):
    with pytest.raises(WriteError) as error:
        write_file(path, content, before=OLD, **options)
    assert isinstance(error.value, PannierError)
    return error.value


def failing(code):
    def rename(temporary, target):
        assert temporary.read_bytes() == NEW, "what is renamed is whole"
        raise OSError(code, os.strerror(code))

    return rename


@contextlib.contextmanager
def without_privileges():
    """A folder of an ordinary user, as whom the block runs: root may write everything."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "config.toml"
    path.write_bytes(OLD)
    root = os.geteuid() == 0
    if root:
        os.chown(folder, NOBODY, NOBODY)
        os.chown(path, NOBODY, NOBODY)
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    try:
        yield path
    finally:
        if root:
            os.seteuid(0)
            os.setegid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)


# --- replacing ------------------------------------------------------------------------------------


def test_the_file_is_replaced_by_a_whole_new_one(path):
    before = path.stat()
    with path.open("rb") as reader:
        write_file(path, NEW, before=OLD)
        assert reader.read() == OLD, "who has it open goes on reading the old one"
    assert path.read_bytes() == NEW
    assert path.stat().st_ino != before.st_ino
    assert names(path.parent) == ["config.toml"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o664, 0o755])
def test_the_mode_is_kept_whatever_the_umask(path, mode):
    path.chmod(mode)
    umask = os.umask(0o077)
    try:
        write_file(path, NEW, before=OLD)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_owner_is_kept(path):
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o640)
    write_file(path, NEW, before=OLD)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, NOBODY, 0o640)


@pytest.mark.skipif(sys.platform != "linux", reason="extended attributes as Linux has them")
def test_extended_attributes_are_kept(path):
    try:
        os.setxattr(path, "user.note", b"mine")
    except OSError:
        pytest.skip("the file system keeps no attributes of users")
    write_file(path, NEW, before=OLD)
    assert os.getxattr(path, "user.note") == b"mine"


def test_a_link_stays_and_what_it_leads_to_is_replaced(path, tmp_path):
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "again").symlink_to("../config.toml")
    link = folder / "link.toml"
    link.symlink_to("again")
    write_file(link, NEW, before=OLD)
    assert link.readlink() == Path("again")
    assert (folder / "again").readlink() == Path("../config.toml")
    assert not path.is_symlink()
    assert path.read_bytes() == NEW
    assert names(folder) == ["again", "link.toml"]


def test_the_same_content_is_not_written(path):
    before = path.stat()
    write_file(path, OLD, before=OLD, rename=failing(errno.EIO))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino


def test_a_name_as_long_as_names_can_be_is_written(tmp_path):
    path = tmp_path / ("c" * 250 + ".toml")
    path.write_bytes(OLD)
    write_file(path, NEW, before=OLD)
    assert path.read_bytes() == NEW


# --- what others do meanwhile ---------------------------------------------------------------------


@pytest.mark.parametrize("now", [b"", OLD[:-1], OLD + b"#", OLD.replace(b"mine", b"MINE")])
def test_a_file_that_has_changed_since_is_left_alone(path, now):
    path.write_bytes(now)
    error = refused(path)
    assert error.code == "changed"
    assert "again" in error.hint
    assert path.read_bytes() == now
    assert names(path.parent) == ["config.toml"]


def test_a_change_while_the_new_file_is_made_is_found(path):
    def rename(temporary, target):
        target.write_bytes(b"theirs")
        raise OSError(errno.EBUSY, "busy")

    assert refused(path, rename=rename).code == "changed"
    assert path.read_bytes() == b"theirs"


def test_a_file_that_is_gone_is_not_made_anew(path):
    path.unlink()
    assert "No such file" in refused(path).message
    assert names(path.parent) == []


def test_a_file_that_another_edit_holds_is_left_alone(path):
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        error = refused(path)
    assert error.code == "busy"
    assert path.read_bytes() == OLD
    assert names(path.parent) == ["config.toml"]
    write_file(path, NEW, before=OLD)


def test_an_edit_holds_the_file_while_it_renames(path):
    def rename(temporary, target):
        assert refused(target).code == "busy"
        temporary.replace(target)

    write_file(path, NEW, before=OLD, rename=rename)
    assert path.read_bytes() == NEW


def test_many_edits_at_once_are_made_one_after_the_other(path):
    """Each adds a line to what it has read; none may be lost."""
    program = """if True:
        import sys
        from pathlib import Path
        from pannier.config.write_file import WriteError, write_file
        path = Path(sys.argv[1])
        left = 15
        while left:
            before = path.read_bytes()
            try:
                write_file(path, before + b"x\\n", before=before)
            except WriteError as error:
                assert error.code in ("changed", "busy"), error
            else:
                left -= 1
    """
    path.write_bytes(b"")
    running = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(3)]
    assert [each.wait(timeout=50) for each in running] == [0, 0, 0]
    assert path.read_bytes() == b"x\n" * 45
    assert names(path.parent) == ["config.toml"]


# --- in place -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EXDEV], ids=errno.errorcode.get)
@pytest.mark.parametrize("content", [NEW, b"[server]"], ids=["longer", "shorter"])
def test_a_file_that_cannot_be_renamed_over_is_written_in_place(path, code, content):
    path.chmod(0o640)
    before = path.stat()

    def rename(temporary, target):
        raise OSError(code, os.strerror(code))

    write_file(path, content, before=OLD, rename=rename)
    assert path.read_bytes() == content
    assert path.stat().st_ino == before.st_ino
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    assert backup.read_bytes() == OLD
    assert stat.S_IMODE(backup.stat().st_mode) == 0o640
    assert names(path.parent) == ["config.toml", backup.name]
    write_file(path, OLD, before=content, rename=rename)
    assert backup.read_bytes() == content


def test_a_file_with_a_second_name_keeps_it(path):
    second = path.with_name("second.toml")
    second.hardlink_to(path)
    write_file(path, NEW, before=OLD)
    assert second.read_bytes() == NEW
    assert path.samefile(second)


def test_over_a_real_mount_point_the_file_is_written_in_place(path, tmp_path):
    """As a container has it that was given one file: the name in the folder is the mount."""
    if not may_mount():
        pytest.skip("mounting is not allowed here")
    inner = tmp_path / "container"
    inner.mkdir()
    (inner / "config.toml").touch()
    program = f"""if True:
        from pathlib import Path
        from pannier.config.write_file import write_file
        path = Path({str(inner / "config.toml")!r})
        write_file(path, {NEW!r}, before={OLD!r})
        assert path.read_bytes() == {NEW!r}
        assert str(path) in Path("/proc/self/mountinfo").read_text()
    """
    mount = 'mount --bind "$1" "$2" && exec "$3" -c "$4"'
    subprocess.run(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            mount,
            "sh",
            path,
            inner / path.name,
            sys.executable,
            program,
        ],
        check=True,
        timeout=30,
    )
    assert path.read_bytes() == NEW, "the file outside, which is the user's"
    assert names(inner) == ["config.toml", "config.toml" + BACKUP_SUFFIX]
    assert (inner / ("config.toml" + BACKUP_SUFFIX)).read_bytes() == OLD


def test_a_disk_that_is_full_in_the_middle_leaves_the_old_content(path):
    """The limit on the size of files stands for the disk: writing fails after some bytes."""
    large = NEW * 10_000

    def rename(temporary, target):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        raise OSError(errno.EBUSY, "busy")

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        error = refused(path, large, rename=rename)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert "too large" in error.message.lower()
    assert path.read_bytes() == OLD
    assert names(path.parent) == ["config.toml", "config.toml" + BACKUP_SUFFIX]


# --- what cannot be written -----------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.ENOSPC], ids=errno.errorcode.get)
def test_another_reason_not_to_rename_is_told_and_leaves_no_file_behind(path, code):
    error = refused(path, rename=failing(code))
    assert os.strerror(code) in error.message
    assert str(path) in error.message
    assert str(path.parent) in error.hint
    assert path.read_bytes() == OLD
    assert names(path.parent) == ["config.toml"]


def test_whatever_fails_no_temporary_file_is_left(path):
    def rename(temporary, target):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(path, NEW, before=OLD, rename=rename)
    assert path.read_bytes() == OLD
    assert names(path.parent) == ["config.toml"]


def test_a_disk_without_room_for_the_new_file_leaves_none(path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        refused(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == OLD
    assert names(path.parent) == ["config.toml"]


def test_a_folder_that_may_not_be_written_is_told_with_the_way_out():
    with without_privileges() as path:
        path.parent.chmod(0o500)
        error = refused(path)
        assert "Permission denied" in error.message
        assert str(path.parent) in error.hint
        assert path.read_bytes() == OLD
        assert names(path.parent) == ["config.toml"]


def test_a_file_that_its_owner_made_read_only_stays_as_it_is():
    with without_privileges() as path:
        path.chmod(0o444)
        assert "Permission denied" in refused(path).message
        assert path.read_bytes() == OLD
        assert names(path.parent) == ["config.toml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of somebody else")
def test_a_file_of_somebody_else_is_written_in_place_and_stays_theirs():
    with without_privileges() as path:
        os.seteuid(0)
        os.chown(path, 0, 0)
        path.chmod(0o666)
        os.seteuid(NOBODY)
        write_file(path, NEW, before=OLD)
        assert path.stat().st_uid == 0
        assert path.read_bytes() == NEW
        assert names(path.parent) == ["config.toml", "config.toml" + BACKUP_SUFFIX]


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "no regular file" in refused(pipe).message
    assert "no regular file" in refused(tmp_path).message
    assert "no regular file" in refused(Path(os.devnull)).message


def test_a_link_to_itself_is_refused(tmp_path):
    link = tmp_path / "config.toml"
    link.symlink_to(link)
    assert refused(link).code == "unwritable"
