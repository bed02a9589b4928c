"""The real llama-swap takes every config that is rendered, and every argv arrives (SC-19)."""

import contextlib
import http.client
import json
import os
import random
import re
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from tests.engine.programs import Programs
from tests.fakes.values import LAUNCHER
from tests.golden.test_golden import CASES, plan_of_case

from pannier.render.argv import EngineFlavour, Launch
from pannier.render.groups import render_plan
from pannier.render.llama_swap import group_launch, render
from pannier.render.quoting import unrenderable
from pannier.render.settings import SETTINGS

ROOT = Path(__file__).parents[2]
LLAMA_SWAP = Path(
    os.environ.get("PANNIER_LLAMA_SWAP") or ROOT.parent / "shared" / "bin" / "llama-swap"
)
KEY = "a-key-for-one-run"
PATIENCE = 30.0
ENGINE = EngineFlavour(path="/opt/llama-server")

needs_swap = pytest.mark.skipif(
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


def rendered_groups() -> list[bytes]:
    """The configs of all groups of the golden cases."""
    found = []
    for case in CASES:
        plan, cast = plan_of_case(case.read_text(encoding="utf-8"))
        groups, problems = render_plan(
            plan, cast.config, cast.files, ENGINE, host="llama-swap", launcher=LAUNCHER
        )
        assert problems == ()
        for group in groups.values():
            ports = {launch.instance: 9000 + at for at, launch in enumerate(group.launches)}
            found.append(render(group, ports, key=KEY))
    return found


def offered(data: bytes, folder: Path) -> set[str]:
    """The models that a llama-swap with this config offers."""
    folder.mkdir()
    with llama_swap(data, folder) as port:
        status, body = get(port, "/v1/models")
    assert status == 200
    return {model["id"] for model in json.loads(body)["data"]}


@needs_swap
def test_sc_19_every_rendered_config_is_accepted_and_offers_its_members(tmp_path):
    rendered = rendered_groups()
    assert len(rendered) > 100
    folders = [tmp_path / str(number) for number in range(len(rendered))]
    # Each spends most of its start waiting for what it asks of the machine.
    with ThreadPoolExecutor(6) as pool:
        for data, found in zip(rendered, pool.map(offered, rendered, folders), strict=True):
            assert found == set(json.loads(data)["models"])


ARGUMENTS = [
    "plain", "two words", " edges ", "", "$HOME", "$", "a$b", "{b}", "#no-comment", "a\\b", "\\",
    "C:\\path\\", "'", '"', "it's \"so\"", "ü", "模型", "😀", "\u200b", "\ufeff", "a=b", "--x",
    "`id`", "$(id)", ";", "&&", "*", "~", "%s", "\u00a0", "{\"json\": [1, 2]}", "a" * 3000,
]  # fmt: skip
ENVIRONMENT = {
    "PLAIN": "1", "SPACES": " a b ", "DOLLAR": "$HOME and $", "QUOTES": "'\"", "BACK": "\\n\\",
    "UNI": "ü😀", "HASH": "# no comment", "EMPTY": "", "EQUALS": "a=b", "COLON": "a: b",
}  # fmt: skip


@needs_swap
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


PIECES = [*ARGUMENTS, "--no-mmap", "-c", "a/b", "C:\\a b\\", '\\"', "''", "=", "$", " # ", "\u3000"]
MANY = 5000

RECORDER = """#!/bin/sh
out=$1
shift
printf '%s\\0' "$@" >"$out"
"""
"""It writes down what it was given, and ends: a shell starts in a millisecond."""


def random_argv(rng: random.Random) -> tuple[str, ...]:
    def piece() -> str:
        if rng.random() < 0.4:
            return rng.choice(PIECES)[:80]
        alphabet = rng.choice(["ab \\\"'$#{}", 'abc \\\\""', "*?~!&|;<>()[]`%^", None])
        length = rng.randrange(12)
        if alphabet:
            return "".join(rng.choices(alphabet, k=length))
        return "".join(chr(rng.randrange(0x20, 0x3000)) for _ in range(length))

    argv = tuple(piece() for _ in range(rng.randrange(12)))
    return argv if not any(map(unrenderable, argv)) else random_argv(rng)


def ask(port: int, paths: list[str]) -> None:
    """Asks for each of them; what comes back does not matter, as nobody answers there."""
    for path in paths:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {KEY}"})
            connection.getresponse().read()


@needs_swap
@pytest.mark.timeout(180)
def test_sc_19_thousands_of_random_command_lines_arrive_as_they_were(tmp_path):
    rng = random.Random(20)  # the same ones every time
    program = tmp_path / "record it"
    program.write_text(RECORDER)
    program.chmod(0o755)
    out = tmp_path / "out"
    out.mkdir()
    launches = [
        Launch(
            instance=f"m{number}", argv=(str(program), str(out / str(number)), *random_argv(rng)),
            env={}, ttl_s=0.0, preload=False, load_timeout_s=60, file_bytes=0, devices=(),
        )
        for number in range(MANY)
    ]  # fmt: skip
    group = group_launch("g", launches, swap=False, host="llama-swap", launcher=())
    bare = msgspec.structs.replace(group, launches=tuple(launches))
    document = json.loads(render(bare, dict.fromkeys([e.instance for e in launches], 9), key=KEY))
    for entry in document["models"].values():
        entry["checkEndpoint"] = "none"  # the child serves nothing
    with llama_swap(msgspec.json.encode(document), tmp_path) as port:
        paths = [f"/upstream/m{number}/x" for number in range(MANY)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, [port] * 8, [paths[start::8] for start in range(8)]))
        # The last answers may be there before the last children have written.
        end = time.monotonic() + PATIENCE
        ending = b"--port\09\0"
        for number in range(MANY):
            path = out / str(number)
            while not (path.exists() and path.read_bytes().endswith(ending)):
                assert time.monotonic() < end, launches[number].argv
                time.sleep(0.02)
    wrong = []
    for number, launch in enumerate(launches):
        seen = (out / str(number)).read_bytes().decode().split("\0")[:-1]
        if seen != [*launch.argv[2:], "--port", "9"]:
            wrong.append((launch.argv[2:], seen))
    assert wrong == []


def help_of(program: str) -> list[tuple[set[str], str]]:
    """The options of a llama-server: the spellings of each, and its description."""
    said = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=PATIENCE)
    options: list[tuple[set[str], str]] = []
    for line in said.stdout.splitlines():
        if line.startswith("-"):
            # The spellings come first: `-c,    --ctx-size N`, `--fit [on|off]`.
            names = re.match(r"(?:-[\w-]+(?:,\s+)?)+", line)
            assert names is not None, line
            options.append((set(re.split(r",\s+", names[0].strip())), line))
        elif options:
            names_of, text = options[-1]
            options[-1] = (names_of, f"{text} {line.strip()}")
    return options


def test_every_spelling_that_llama_server_knows_of_a_planned_setting_is_known(
    programs: Programs,
):
    options = help_of(programs.server)
    assert len(options) > 150
    for setting in SETTINGS:
        known = {*setting.flags, *setting.switches}
        variables = {*setting.variables, *setting.switch_variables}
        mine = [(names, text) for names, text in options if names & known]
        assert mine or setting.name == "role", setting.name
        for names, text in mine:
            missing = {name for name in names - known if not name.endswith("-auto")}
            assert not missing, f"{setting.name} has more names: {missing}"
            variable = re.search(r"\(env: (\w+)\)", text)
            if variable and not variable[1].endswith("_AUTO"):
                assert variable[1] in variables, f"{setting.name} has the variable {variable[1]}"


@needs_swap
def test_sc_2_nobody_without_the_key_of_this_run_can_unload(tmp_path):
    with llama_swap(rendered_groups()[0], tmp_path) as port:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/unload", timeout=PATIENCE)
        with refused.value as error:
            assert error.code == 401
