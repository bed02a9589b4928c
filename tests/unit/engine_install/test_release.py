import hashlib
import socket

import pytest

from pannier.engine.release import Asset, Releases
from pannier.errors import EngineError

from .conftest import ReleaseServer

REPO, TAG = "mostlygeek/llama-swap", "v250"


async def get(server: ReleaseServer, name: str, into):
    async with Releases(server.url, {}) as releases:
        assets = await releases.assets(REPO, TAG)
        return await releases.fetch(assets[name], into, others=assets)


async def test_an_archive_with_the_right_digest_is_taken(releases, tmp_path):
    releases.offer("a.tar.gz", b"content")
    file = await get(releases, "a.tar.gz", tmp_path)
    assert file.read_bytes() == b"content"
    assert releases.asked == [f"/repos/{REPO}/releases/tags/{TAG}", "/files/a.tar.gz"]


async def test_the_parts_of_a_download_are_told(releases, tmp_path):
    releases.offer("a.tar.gz", b"x" * 1_000_000)
    parts: list[float] = []
    async with Releases(releases.url, {}) as source:
        assets = await source.assets(REPO, TAG)
        await source.fetch(assets["a.tar.gz"], tmp_path, others=assets, on_part=parts.append)
    assert parts == sorted(parts)
    assert parts[-1] == 1.0


async def test_another_digest_is_refused_and_the_file_is_gone(releases, tmp_path):
    releases.offer("a.tar.gz", b"content", digest="sha256:" + "0" * 64)
    with pytest.raises(EngineError, match="is not what the release says"):
        await get(releases, "a.tar.gz", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("digest", [None, "md5:0123", "sha256:short"])
async def test_without_a_digest_nothing_is_taken(releases, tmp_path, digest):
    releases.offer("a.tar.gz", b"content", digest=digest)
    with pytest.raises(EngineError, match="gives no SHA-256"):
        await get(releases, "a.tar.gz", tmp_path)
    assert "/files/a.tar.gz" not in releases.asked


async def test_a_list_of_checksums_stands_in_for_a_digest(releases, tmp_path):
    releases.offer("a.tar.gz", b"content", digest=None)
    right = hashlib.sha256(b"content").hexdigest()
    releases.offer("x_checksums.txt", f"{'0' * 64}  b\n{right}  a.tar.gz\n".encode(), digest=None)
    assert (await get(releases, "a.tar.gz", tmp_path)).read_bytes() == b"content"


async def test_a_wrong_checksum_is_refused(releases, tmp_path):
    releases.offer("a.tar.gz", b"content", digest=None)
    releases.offer("x_checksums.txt", f"{'0' * 64}  a.tar.gz\n".encode(), digest=None)
    with pytest.raises(EngineError, match="is not what the release says"):
        await get(releases, "a.tar.gz", tmp_path)


@pytest.mark.parametrize(
    "target", ["http://192.0.2.1/a", "file:///etc/passwd", "ftp://127.0.0.1/a"]
)
async def test_a_redirect_to_what_is_not_https_is_refused_unasked(releases, tmp_path, target):
    releases.offer("a.tar.gz", b"content")
    releases.redirect = target
    with pytest.raises(EngineError, match="not https"):
        await get(releases, "a.tar.gz", tmp_path)


async def test_an_endless_redirect_ends(releases, tmp_path):
    releases.offer("a.tar.gz", b"content")
    releases.redirect = "/files/a.tar.gz"
    with pytest.raises(EngineError, match="for ever"):
        await get(releases, "a.tar.gz", tmp_path)


@pytest.mark.parametrize("base", ["http://releases.example", "ftp://127.0.0.1", "releases"])
def test_a_release_server_without_tls_is_refused(base):
    with pytest.raises(EngineError, match="not https"):
        Releases(base, {})


def test_the_address_may_come_from_the_environment():
    with pytest.raises(EngineError, match=r"http://releases\.example is not https"):
        Releases(None, {"PANNIER_RELEASES": "http://releases.example"})


async def test_a_server_that_is_not_there_is_not_asked_twice():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        async with Releases(url, {}) as releases:
            with pytest.raises(EngineError, match="cannot be reached"):
                await releases.assets(REPO, TAG)
            free.listen()
            with pytest.raises(EngineError, match="cannot be reached"):
                await releases.assets("other/repo", "v1")


async def test_a_release_that_is_not_there_is_told(releases):
    async with Releases(releases.url + "/elsewhere", {}) as source:
        with pytest.raises(EngineError, match="answered 404"):
            await source.assets(REPO, TAG)


async def test_a_name_that_is_a_path_is_refused(releases, tmp_path):
    asset = Asset(
        name="../a", browser_download_url=f"{releases.url}/files/a", digest="sha256:" + "0" * 64
    )
    async with Releases(releases.url, {}) as source:
        with pytest.raises(EngineError, match="names a file"):
            await source.fetch(asset, tmp_path / "x", others={})
