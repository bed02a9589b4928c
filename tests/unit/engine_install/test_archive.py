import io
import tarfile
import zipfile

import pytest

from pannier.engine.archive import find_program, link_neighbours, unpack
from pannier.errors import EngineError

from .conftest import tar_gz


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_a_release_archive_is_unpacked_with_its_links(tmp_path):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(
        tar_gz(
            {
                "llama-b1/llama-server": "#!/bin/sh\n",
                "llama-b1/libllama.so.0": "library",
                "": link("llama-b1/libllama.so", "libllama.so.0"),
            }
        )
    )
    unpack(archive, tmp_path / "out")
    found = find_program(tmp_path / "out", "llama-server")
    assert found == tmp_path / "out" / "llama-b1" / "llama-server"
    assert found.stat().st_mode & 0o111
    assert (found.parent / "libllama.so").read_text() == "library"


@pytest.mark.parametrize(
    "member",
    [
        "../escaped",
        "/escaped",
        "a/../../escaped",
        link("a", "/etc/passwd"),
        link("a", "../escaped"),
        link("a", "b/c"),
        link("a", "b", tarfile.LNKTYPE),
        link("a", "", tarfile.FIFOTYPE),
        link("a", "", tarfile.CHRTYPE),
    ],
    ids=(
        "up",
        "absolute",
        "up further",
        "link away",
        "link up",
        "link to a path",
        "hard link",
        "pipe",
        "device",
    ),
)
def test_what_leaves_the_folder_is_refused_before_anything_is_written(tmp_path, member):
    name = member if isinstance(member, str) else member.name
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tar_gz({"good": "x", name: "x" if isinstance(member, str) else member}))
    with pytest.raises(EngineError, match="the archive"):
        unpack(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "escaped").exists()


def test_more_bytes_than_any_real_release_are_refused(tmp_path):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tar_gz({"bomb": "0" * 100_000}))
    with pytest.raises(EngineError, match="larger"):
        unpack(archive, tmp_path / "out", most_bytes=99_999)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "content",
    # Named: an archive holds the second in which it was made, and no two workers agree on that.
    [b"", b"not an archive", tar_gz({"a": "x" * 9999})[:60]],
    ids=["empty", "none", "cut"],
)
def test_a_broken_archive_is_an_error_of_ours(tmp_path, content):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(EngineError, match="could not be unpacked"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("name", ["../escaped", "/escaped", "a\\..\\..\\escaped", "C:/escaped"])
def test_a_zip_that_leaves_the_folder_is_refused(tmp_path, name):
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("good", "x")
        opened.writestr(name, "x")
    with pytest.raises(EngineError, match="leaves its folder"):
        unpack(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_in_a_zip_is_refused(tmp_path):
    member = zipfile.ZipInfo("a")
    member.external_attr = 0o120777 << 16
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr(member, "/etc/passwd")
    with pytest.raises(EngineError, match="not a file"):
        unpack(archive, tmp_path / "out")


def test_a_zip_keeps_what_can_be_executed(tmp_path):
    member = zipfile.ZipInfo("bin/tool")
    member.external_attr = 0o100755 << 16
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as opened:
        opened.writestr(member, "x")
        opened.writestr("bin/text", "x")
    (tmp_path / "a.whl").write_bytes(whole.getvalue())
    unpack(tmp_path / "a.whl", tmp_path / "out")
    assert (tmp_path / "out/bin/tool").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out/bin/text").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "links", [{"a": "../b"}, {"../a": "b"}, {"a": "/b"}, {"": "b"}, {"a": ".."}]
)
def test_links_that_a_wheel_asks_for_stay_beside_it(tmp_path, links):
    with pytest.raises(EngineError, match="wants a link"):
        link_neighbours(tmp_path, links)


def test_an_archive_without_the_program_is_an_error(tmp_path):
    with pytest.raises(EngineError, match="no llama-server"):
        find_program(tmp_path, "llama-server")
