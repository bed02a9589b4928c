"""Starts that cannot be, and the commands around `serve`, each as a person runs it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.engine.serving import Json, Serve

from pannier.engine.locate import managed_folder

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def small(micro_chat: Path) -> Json:
    return {"path": str(micro_chat), "context": 256}


@pytest.fixture
def alone(programs: Any, tmp_path: Path) -> Serve:
    """A serve that fails before any host matters."""
    return Serve(tmp_path / "s", host="direct", programs=programs.environ)


async def refused(serve: Serve) -> str:
    """What it says when it does not start; nothing of it may be left."""
    serve.spawn()
    assert await serve.ended() == 1
    assert serve.processes() == []
    text = serve.log()
    assert "Traceback" not in text
    return text


async def test_all_problems_of_a_config_are_told_at_once_with_their_lines(alone: Serve) -> None:
    text = """\
[server]
listen = "127.0.0.1:0"
alowed_hosts = []

[models.a]
path = "a.gguf"
contxt = 4096
aliases = ["gpt"]
slots = "2"

[models.b]
path = "b.gguf"
role = "chta"
aliases = ["gpt"]
ttl = "5 parsecs"
"""
    alone.write(text)
    said = await refused(alone)

    def line_of(part: str) -> int:
        return text[: text.index(part)].count("\n") + 1

    for part, words in {
        "alowed_hosts": "allowed_hosts",
        "contxt": "context",
        "slots": "slots",
        'role = "chta"': "chat",
        "ttl": "parsecs",
    }.items():
        found = [line for line in said.splitlines() if f"config.toml:{line_of(part)}" in line]
        assert found, f"{part}: {said}"
        assert words in "".join(found), found
    assert "gpt" in said, "an alias that two models have"


async def test_an_address_in_use_is_told_and_nothing_is_started(alone: Serve, small: Json) -> None:
    alone.write({"a": small})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", alone.port))
        taken.listen()
        said = await refused(alone)
    assert f"cannot listen on 127.0.0.1:{alone.port}" in said
    assert "what to do:" in said
    assert "server.listen" in said


async def test_a_state_folder_that_cannot_be_is_told(alone: Serve, small: Json) -> None:
    alone.write({"a": small})
    alone.state_folder.write_text("in the way")
    said = await refused(alone)
    assert f"the state folder {alone.state_folder} cannot be used" in said
    assert "--state" in said


async def test_a_second_serve_on_one_state_folder_is_told_who_has_it(
    alone: Serve, programs: Any, small: Json, tmp_path: Path
) -> None:
    alone.write({"a": small})
    try:
        await alone.start()
        other = Serve(tmp_path / "other", host="direct", programs=programs.environ)
        other.state_folder = alone.state_folder
        other.write({"a": small})
        said = await refused(other)
        assert f"another pannier (process {alone.running.pid})" in said
        await alone.ready()
        await alone.stop()
    finally:
        alone.close()


async def test_a_config_that_is_not_there_is_told_with_a_way_to_get_one(alone: Serve) -> None:
    said = await refused(alone)
    assert str(alone.config) in said
    assert "pannier init" in said


async def test_a_missing_llama_server_is_told_with_a_way_to_get_it(
    alone: Serve, small: Json
) -> None:
    alone.write({"a": small})
    for name in ("PANNIER_LLAMA_SERVER", "PANNIER_LLAMA_SWAP"):
        alone.env.pop(name, None)
    alone.env["PATH"] = str(Path(sys.executable).parent)
    said = await refused(alone)
    assert "llama-server is not installed" in said
    assert "pannier engine install" in said
    alone.write({"a": small}, engine={"llama_server": "no/such/llama-server"})
    assert "no/such/llama-server" in await refused(alone)


def pannier(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path, seconds: float = 120
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pannier", *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False,
        env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True,
    )  # fmt: skip


def test_init_writes_a_config_that_check_and_plan_accept(programs: Any, tmp_path: Path) -> None:
    env = programs.environ
    made = pannier("init", "--config", "new/config.toml", env=env, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    again = pannier("init", "--config", "new/config.toml", env=env, cwd=tmp_path)
    assert again.returncode == 1
    assert "left alone" in again.stderr
    checked = pannier("check", "--config", "new/config.toml", env=env, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "no problems" in checked.stdout
    report = json.loads(
        pannier("check", "--json", "--config", "new/config.toml", env=env, cwd=tmp_path).stdout
    )
    assert report["ok"]
    planned = pannier("plan", "--json", "--config", "new/config.toml", env=env, cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["skipped_not_installed"]
    schema = pannier("schema", env=env, cwd=tmp_path)
    assert json.loads(schema.stdout) == json.loads(
        (tmp_path / "new" / "config.schema.json").read_text()
    )


def test_check_tells_problems_and_fails(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[models.a]\npath = "a.gguf"\nrole = "chta"\n')
    checked = pannier("check", "--config", "config.toml", cwd=tmp_path)
    assert checked.returncode == 1
    assert "config.toml:3" in checked.stdout
    report = json.loads(pannier("check", "--json", "--config", "config.toml", cwd=tmp_path).stdout)
    assert (report["ok"], report["problems"][0]["line"]) == (False, 3)


def test_engine_status_names_the_programs_and_what_they_can(programs: Any, tmp_path: Path) -> None:
    said = pannier("engine", "status", "--json", env=programs.environ, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    status = json.loads(said.stdout)
    assert status["llama_server"]["path"] == programs.server
    assert status["llama_server"]["version"]
    if programs.swap:
        assert status["llama_swap"]["path"] == programs.swap
        assert status["host"] == "llama-swap"
    else:
        assert status["host"] == "direct"


# The demo.


@pytest.fixture
def demo_env(programs: Any, tmp_path: Path) -> dict[str, str]:
    """A home of its own, in which the model is there already."""
    data = tmp_path / "data"
    models = managed_folder({"XDG_DATA_HOME": str(data)}).parent / "models"
    models.mkdir(parents=True)
    (models / programs.model.name).symlink_to(programs.model)
    return {**programs.environ, "XDG_DATA_HOME": str(data)}


def below(tmp_path: Path) -> list[str]:
    """What runs with this test's folders."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("XDG_DATA_HOME") == str(tmp_path / "data"):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def test_the_demo_answers_and_leaves_nothing(
    host: str, demo_env: dict[str, str], tmp_path: Path
) -> None:
    said = pannier("demo", "--check", "--folder", "d", "--host", host, env=demo_env, cwd=tmp_path)
    assert said.returncode == 0, said.stdout + said.stderr
    answer = next(line for line in said.stdout.splitlines() if line.startswith("answer: "))
    assert len(answer) > 30
    assert "embedding: 576 numbers" in said.stdout
    seconds = said.stdout.splitlines()[-1]
    for step in ("engine", "model", "load", "answers", "stop"):
        assert f"{step} " in seconds
    assert "%" in said.stderr, "the load was shown"
    assert "\x1b" not in said.stderr, "plain lines without a terminal"
    words = "llama-swap" if host == "llama-swap" else "direct"
    assert words in said.stderr
    assert below(tmp_path) == []


def started_demo(
    host: str, env: dict[str, str], tmp_path: Path, until: str
) -> tuple["subprocess.Popen[bytes]", Callable[[], str]]:
    """A demo that has said something by now, and a way to read what it says."""
    log = tmp_path / "demo.log"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-m", "pannier", "demo", "--folder", "d", "--host", host],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            cwd=tmp_path, start_new_session=True,
        )  # fmt: skip
    end = time.monotonic() + 90
    while until not in log.read_text():
        assert demo.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.02)
    return demo, log.read_text


@pytest.mark.parametrize("until", ["loading them", "Ctrl-C stops everything"])
def test_ctrl_c_ends_the_demo_while_it_loads_and_after(
    host: str, until: str, demo_env: dict[str, str], tmp_path: Path
) -> None:
    demo, said = started_demo(host, demo_env, tmp_path, until)
    demo.send_signal(signal.SIGINT)
    code = demo.wait(60)
    assert "nothing is left running" in said()
    assert "Traceback" not in said()
    assert code == (130 if until == "loading them" else 0), said()
    assert below(tmp_path) == []
