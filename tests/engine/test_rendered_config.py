"""The real llama-swap takes every config that is rendered, and every argv arrives (SC-19)."""

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pannier.render.argv import Launch
from pannier.render.llama_swap import group_launch, render

ROOT = Path(__file__).parents[2]
LLAMA_SWAP = Path(
    os.environ.get("PANNIER_LLAMA_SWAP") or ROOT.parent / "shared" / "bin" / "llama-swap"
)
GOLDEN = sorted((ROOT / "tests" / "golden").glob("*.json"))
KEY = "a-key-for-one-run"
PATIENCE = 30.0

pytestmark = pytest.mark.skipif(
    not LLAMA_SWAP.exists(), reason="no llama-swap: set PANNIER_LLAMA_SWAP to its path"
)

WITNESS = """#!{python}
import http.server, json, os, sys
with open({out!r}, "w", encoding="utf-8", errors="surrogateescape") as file:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ)}}, file, ensure_ascii=False)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(port: int, path: str) -> tuple[int, bytes]:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {KEY}"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@contextlib.contextmanager
def llama_swap(config: bytes, folder: Path) -> Iterator[int]:
    """A real llama-swap with this config, on a port; it says in its log what it dislikes."""
    path = folder / "config.yaml"
    path.write_bytes(config)
    port = free_port()
    with (folder / "log").open("w+b") as log:
        process = subprocess.Popen(
            [LLAMA_SWAP, "-config", path, "-listen", f"127.0.0.1:{port}"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            end = time.monotonic() + PATIENCE
            while True:
                said = (folder / "log").read_text(errors="replace")
                assert process.poll() is None, said
                with contextlib.suppress(OSError):
                    if get(port, "/health")[0] == 200:
                        break
                assert time.monotonic() < end, said
                time.sleep(0.02)
            yield port
        finally:
            process.terminate()
            process.wait(PATIENCE)


def rendered_configs() -> list[tuple[str, dict[str, object]]]:
    found = []
    for path in GOLDEN:
        for group, document in json.loads(path.read_text())["llama-swap"].items():
            found.append((f"{path.stem}-{group}", document))
    return found


@pytest.mark.parametrize(("name", "document"), rendered_configs(), ids=lambda each: str(each)[:40])
def test_sc_19_a_rendered_config_is_accepted_and_offers_its_members(name, document, tmp_path):
    data = msgspec.json.format(msgspec.json.encode(document), indent=2)
    with llama_swap(data, tmp_path) as port:
        status, body = get(port, "/v1/models")
    assert status == 200
    offered = {model["id"] for model in json.loads(body)["data"]}
    assert offered == set(document["models"])


ARGUMENTS = [
    "plain", "two words", " edges ", "", "$HOME", "$", "a$b", "{b}", "#no-comment", "a\\b", "\\",
    "C:\\path\\", "'", '"', "it's \"so\"", "ü", "模型", "😀", "\u200b", "\ufeff", "a=b", "--x",
    "`id`", "$(id)", ";", "&&", "*", "~", "%s", "\u00a0", "{\"json\": [1, 2]}", "a" * 3000,
]  # fmt: skip
ENVIRONMENT = {
    "PLAIN": "1", "SPACES": " a b ", "DOLLAR": "$HOME and $", "QUOTES": "'\"", "BACK": "\\n\\",
    "UNI": "ü😀", "HASH": "# no comment", "EMPTY": "", "EQUALS": "a=b", "COLON": "a: b",
}  # fmt: skip


def test_sc_19_every_argument_and_variable_arrives_at_a_real_child_unchanged(tmp_path):
    folder = tmp_path / "a folder with spaces, 'quotes', $x and ü"
    folder.mkdir()
    out = tmp_path / "seen.json"
    program = folder / "witness"
    program.write_text(WITNESS.format(python=sys.executable, out=str(out)), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    name = "org/model #1 ü😀"
    launch = Launch(
        instance=name, argv=(str(program), *ARGUMENTS), env=ENVIRONMENT, ttl_s=0.0, preload=True,
        load_timeout_s=60, file_bytes=0, devices=(),
    )  # fmt: skip
    group = group_launch("g", [launch], swap=False, host="llama-swap", launcher=())
    bare = msgspec.structs.replace(group, launches=(launch,))
    port = free_port()
    with llama_swap(render(bare, {name: port}, key=KEY), tmp_path) as swap:
        status, body = get(swap, f"/upstream/{urllib.request.quote(name, safe='')}/health")
        assert (status, body) == (200, b"ok")
    seen = json.loads(out.read_text(encoding="utf-8"))
    assert seen["argv"] == [*ARGUMENTS, "--port", str(port)]
    assert {key: seen["env"].get(key) for key in ENVIRONMENT} == ENVIRONMENT


def test_sc_2_nobody_without_the_key_of_this_run_can_unload(tmp_path):
    (_, document) = rendered_configs()[0]
    data = msgspec.json.encode(document)
    with llama_swap(data, tmp_path) as port:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/unload", timeout=PATIENCE)
        with refused.value as error:
            assert error.code == 401
