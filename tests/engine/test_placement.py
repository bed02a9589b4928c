"""The placement is changed over HTTP while real engines run on real devices.

A ggml-rpc-server has one client at a time, and an engine waits for each one that it is told of. So
a script stands in front of the engine: it tells the list, and leaves each engine its own device.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.engine.oracle import rpc_devices
from tests.engine.programs import Programs
from tests.engine.serving import PATIENCE_S, Json, Serve

pytestmark = pytest.mark.timeout(150)

ADMIN = "an-admin-key-of-this-test"
CLIENT = "a-client-key-of-this-test"

FILE = """\
# The file of a person, with all its habits.
[server]
listen = "127.0.0.1:{port}"
allow_http_placement = {allow}   # see the README

[engine]
host = "{host}"
llama_server = "{engine}"
args = ["--threads", "1"]
rpc = [{rpc}]

[models.moved]     # one
path = "{path}"
context  = 256
preload = true

[models.kept]
path = '{path}'
context = 256
preload = {kept}
[placement.kept]
devices = ["RPC0"]  # mine

[placement.moved]
devices = [  # which one?
  "RPC1",
]
"""

ENGINE = """\
#!{python}
import os, sys
argv, endpoints = sys.argv[1:], {endpoints!r}
if "--list-devices" in argv:
    print("Available devices:")
    for at, endpoint in enumerate(endpoints):
        print(f"  RPC{{at}}: {{endpoint}} (2000 MiB, 2000 MiB free)")
    sys.exit()
if "-dev" in argv:
    at = argv.index("-dev") + 1
    argv[argv.index("--rpc") + 1] = endpoints[int(argv[at].removeprefix("RPC"))]
    argv[at] = "RPC0"
os.execv({server!r}, [{server!r}, *argv])
"""

PINNED = {"kept": {"devices": ["RPC0"]}, "moved": {"devices": ["RPC1"]}}
MOVED = {**PINNED, "moved": {"devices": ["RPC2"]}}


@pytest.fixture(scope="module")
def three_devices(
    programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    log = tmp_path_factory.mktemp("placement") / "rpc.log"
    with rpc_devices(programs.server, 3, log) as endpoints:
        yield endpoints


Write = Callable[..., str]


@pytest.fixture
def write(serve: Serve, programs: Programs, three_devices: list[str], micro_chat: Path) -> Write:
    engine = serve.folder / "llama-server"
    engine.write_text(
        ENGINE.format(python=sys.executable, endpoints=three_devices, server=programs.server)
    )
    engine.chmod(0o755)

    def written(**changes: str) -> str:
        rpc = ", ".join(f'"{each}"' for each in three_devices)
        values = {"port": serve.port, "host": serve.host, "engine": engine, "path": micro_chat}
        text = FILE.format(**{**values, "rpc": rpc, "allow": "true", "kept": "true", **changes})
        serve.write(text)
        return text

    return written


async def ask(
    serve: Serve, method: str, path: str = "/v1/placement", body: Any = None, **headers: str
) -> tuple[int, Json, Mapping[str, str]]:
    wanted = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method, f"{serve.url}{path}", headers=wanted, **({} if body is None else {"json": body})
        ) as answer,
    ):
        return answer.status, await answer.json(), answer.headers


def where(view: Json) -> dict[str, list[str]]:
    return {row["model"]: row["devices"] for row in view["roles"]}


async def test_a_change_moves_one_model_and_leaves_the_other_and_the_file_as_they_are(
    serve: Serve, write: Write, three_devices: list[str]
) -> None:
    text = write()
    await serve.start()
    await serve.ready()
    status, before, headers = await ask(serve, "GET")
    assert status == 200
    assert headers["ETag"] == f'"{before["etag"]}"'
    assert where(before) == {"kept": ["RPC0"], "moved": ["RPC1"]}
    assert before["spec"] == PINNED

    status, tried, _ = await ask(serve, "POST", "/v1/placement/preview", MOVED)
    assert (status, where(tried)["moved"]) == (200, ["RPC2"])
    assert serve.config.read_text() == text, "a preview writes nothing"

    kept, moved = await serve.pid("kept"), await serve.pid("moved")
    status, after, headers = await ask(serve, "PUT", body=MOVED, If_Match=headers["ETag"])
    assert (status, where(after)) == (200, {"kept": ["RPC0"], "moved": ["RPC2"]}), after
    # Not by the ETag: what the first loads took may be learned in between, and is in it.
    assert (where(after), after["spec"]) == (where(tried), tried["spec"]), "as it was previewed"
    assert (await serve.row("moved"))["state"] == "ready", "it was waited for"
    assert await serve.pid("kept") == kept
    assert await serve.pid("moved") != moved
    argv = await asyncio.to_thread(_argv, serve, await serve.pid("moved"))
    assert argv[argv.index("--rpc") + 1] == three_devices[2]
    head, _, tail = text.partition('[  # which one?\n  "RPC1",\n]')
    assert serve.config.read_text() == f'{head}["RPC2"]{tail}', "every other byte is as it was"

    generation = after["generation"]
    assert generation == before["generation"] + 1
    serve.signal(1)  # SIGHUP: whatever the watcher has seen, this comes after it
    await asyncio.sleep(0.5)
    assert (await serve.readiness())["generation"] == generation, "one change, one reload"

    status, stale, _ = await ask(serve, "PUT", body=PINNED, If_Match=f'"{before["etag"]}"')
    assert (status, stale["error"]["code"]) == (412, "placement-changed")
    await serve.stop()


async def test_without_a_placement_the_automatic_plan_is_back(serve: Serve, write: Write) -> None:
    text = write(kept="false")  # it may come to the device of the other one
    await serve.start()
    await serve.ready("moved")
    status, automatic, _ = await ask(serve, "POST", "/v1/placement/preview", None)
    assert status == 400, "no body is a mistake"
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{serve.url}/v1/placement/preview",
            data=b"null",
            headers={"Content-Type": "application/json"},
        ) as answer,
    ):
        automatic = await answer.json()
    assert (automatic["manual"], automatic["spec"]) == (False, None)
    status, view, _ = await ask(serve, "DELETE")
    assert (status, view["manual"], view["spec"]) == (200, False, None)
    assert where(view) == where(automatic)
    assert serve.config.read_text() == text.partition("[placement.kept]")[0]
    assert (await serve.row("moved"))["state"] == "ready"
    await serve.stop()


async def test_what_does_not_fit_is_refused_and_changes_nothing(serve: Serve, write: Write) -> None:
    text = write()
    await serve.start()
    await serve.ready()
    _, before, _ = await ask(serve, "GET")
    pids = [await serve.pid("kept"), await serve.pid("moved")]
    for spec, status in (
        ({"moved": {"devices": [7]}}, 422),
        ({"moved": {"devices": ["CUDA0"]}}, 422),
        ({"nobody": {"devices": [0]}}, 400),
        ({"moved": {"devices": []}}, 400),
        ([], 400),
    ):
        found, answer, _ = await ask(serve, "PUT", body=spec)
        assert found == status, answer
        assert answer["error"]["message"]
        assert answer["error"]["type"] == "invalid_request_error"
    assert serve.config.read_text() == text
    _, after, _ = await ask(serve, "GET")
    assert (after["etag"], after["generation"]) == (before["etag"], before["generation"])
    assert [await serve.pid("kept"), await serve.pid("moved")] == pids
    await serve.stop()


async def test_changes_need_the_permission_and_the_admin(serve: Serve, write: Write) -> None:
    text = write(allow="false", kept="false")
    await serve.start()
    spec = {"moved": {"devices": [2]}}
    for method, body in (("PUT", spec), ("DELETE", None)):
        status, answer, _ = await ask(serve, method, body=body)
        assert (status, answer["error"]["code"]) == (409, "placement-not-allowed")
        assert "allow_http_placement" in answer["error"]["message"]
    _, view, _ = await ask(serve, "GET")
    assert view["changes_refused"] == answer["error"]["message"], "one text for every surface"
    assert serve.config.read_text() == text

    (serve.folder / "clients").write_text(CLIENT)
    (serve.folder / "admins").write_text(ADMIN)
    keys = 'true\napi_key_file = "clients"\nadmin_key_file = "admins"'
    write(allow=keys, kept="false")
    await _until_keys(serve)
    for method, body in (("PUT", spec), ("DELETE", None)):
        status, answer, _ = await ask(serve, method, body=body, Authorization=f"Bearer {CLIENT}")
        assert (status, answer["error"]["code"]) == (403, "admin_key_needed")
        status, _, _ = await ask(serve, method, body=body)
        assert status == 401
    status, _, _ = await ask(serve, "GET", Authorization=f"Bearer {CLIENT}")
    assert status == 200
    status, view, _ = await ask(serve, "PUT", body=spec, Authorization=f"Bearer {ADMIN}")
    assert (status, view["spec"]) == (200, spec)
    await serve.stop()


async def test_a_placement_that_cannot_be_loaded_is_taken_back(
    serve: Serve, write: Write, micro_chat: Path
) -> None:
    model = Path(shutil.copy(micro_chat, serve.folder / "own.gguf"))
    text = write(path=str(model))
    await serve.start()
    await serve.ready()
    _, before, _ = await ask(serve, "GET")
    kept = await serve.pid("kept")
    # It fits, as far as its header says, and cannot be read to its end any more.
    _shorten(model)
    status, answer, headers = await ask(serve, "PUT", body=MOVED)
    assert (status, answer["error"]["code"]) == (503, "placement-not-applied"), answer
    assert "as they were before" in answer["error"]["message"]
    assert headers["x-should-retry"] == "false"
    assert serve.config.read_text() == text
    _, after, _ = await ask(serve, "GET")
    assert (after["etag"], where(after)) == (before["etag"], where(before))
    assert await serve.pid("kept") == kept
    await serve.stop()


async def test_the_command_line_shows_what_runs_and_what_a_plan_would_change(
    serve: Serve, write: Write
) -> None:
    write()
    await serve.start()
    await serve.ready()
    kept, moved = await serve.pid("kept"), await serve.pid("moved")
    _, view, _ = await ask(serve, "GET")

    code, out, err = await pannier(serve, "plan", "--detailed-exitcode")
    assert (code, err) == (0, ""), out
    assert f"against what runs on 127.0.0.1:{serve.port}" in out
    assert "= keep" in out
    assert "~ replace" not in out
    code, out, _ = await pannier(serve, "placement", "show", "--json")
    assert json.loads(out)["etag"] == view["etag"]

    spec = json.dumps(MOVED)
    code, out, _ = await pannier(serve, "plan", "--spec", spec, "--detailed-exitcode")
    assert code == 2
    assert "= keep     kept" in out
    assert "~ replace  moved  devices RPC1 -> RPC2" in out

    code, out, err = await pannier(serve, "placement", "set", spec)
    assert (code, "written" in err) == (0, True), err
    await serve.wait_for(lambda seen: seen["generation"] > view["generation"])
    await serve.ready()
    assert await serve.pid("kept") == kept
    assert await serve.pid("moved") != moved
    _, after, _ = await ask(serve, "GET")
    assert where(after)["moved"] == ["RPC2"]
    await serve.stop()


async def pannier(serve: Serve, *argv: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "pannier", *argv, "--config", str(serve.config)]
    command += ["--state", str(serve.state_folder)]
    ended = await asyncio.to_thread(
        subprocess.run,
        command, capture_output=True, text=True, timeout=60, check=False,
        env={**serve.env, "COLUMNS": "100"}, cwd=serve.folder,
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr


async def _until_keys(serve: Serve) -> None:
    end = time.monotonic() + PATIENCE_S
    while (await serve.get("/v1/readiness"))[0] != 401:
        assert time.monotonic() < end, "the keys are not asked for"
        await asyncio.sleep(0.05)


def _argv(serve: Serve, pid: int) -> list[str]:
    return next(each.cmdline() for each in serve.engines() if each.pid == pid)


def _shorten(file: Path) -> None:
    with file.open("r+b") as content:
        content.truncate(file.stat().st_size * 3 // 4)
