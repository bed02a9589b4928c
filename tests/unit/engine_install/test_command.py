import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pannier.engine.command import add_parser, run

from .conftest import SWAP, program
from .test_install import leftovers
from .test_locate import gone


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(dest="command", required=True))
    return run(parser.parse_args(["engine", *words]))


@pytest.fixture
def bare(environ, monkeypatch) -> Path:
    """The process's own environment, with nothing installed; returns its one folder on PATH."""
    for name in ("PANNIER_LLAMA_SERVER", "PANNIER_LLAMA_SWAP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return Path(environ["PATH"])


def test_the_json_of_status(bare, capsys):
    server = program(bare / "llama-server")
    assert command("status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "llama_server": {
            "path": str(server),
            "version": "b11434",
            "source": "path",
            "features": {
                "progress_lines": True,
                "load_mode": True,
                "fit_params": False,
                "rpc": True,
            },
        },
        "llama_swap": None,
        "host": "direct",
    }


def test_nothing_found_is_null_and_a_failure(bare, capsys):
    assert command("status", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found == {"llama_server": None, "llama_swap": None, "host": "direct"}


def test_llama_swap_is_the_host_where_it_is_found(bare, capsys):
    program(bare / "llama-server")
    swap = program(bare / "llama-swap", SWAP)
    assert command("status", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["llama_swap"] == {"path": str(swap), "version": "250", "source": "path"}
    assert found["host"] == "llama-swap"


def test_the_config_names_the_programs_and_the_host(bare, capsys, tmp_path):
    server = program(tmp_path / "mine")
    program(bare / "llama-swap", SWAP)
    config = tmp_path / "config.toml"
    config.write_text('[engine]\nllama_server = "./mine"\nhost = "direct"\n')
    assert command("status", "--json", "--config", str(config)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["llama_server"]["path"] == str(server)
    assert found["llama_server"]["source"] == "config"
    assert found["host"] == "direct"


def test_a_wrong_path_is_told_and_does_not_hide_the_other(bare, capsys, tmp_path):
    program(bare / "llama-server")
    program(bare / "llama-swap", SWAP)
    config = tmp_path / "config.toml"
    config.write_text('[engine]\nllama_server = "/nowhere/llama-server"\n')
    assert command("status", "--json", "--config", str(config)) == 1
    said = capsys.readouterr()
    assert "which does not exist" in said.err
    assert json.loads(said.out)["llama_server"] is None
    assert json.loads(said.out)["llama_swap"]["version"] == "250"


def test_a_broken_config_is_told(bare, capsys, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("[engine\n")
    assert command("status", "--config", str(config)) == 2
    assert f"{config}:1" in capsys.readouterr().err
    assert command("status", "--config", str(tmp_path / "none.toml")) == 1


def test_an_install_that_fails_says_what_to_do(bare, capsys, monkeypatch):
    monkeypatch.setenv("PANNIER_RELEASES", "http://127.0.0.1:9")
    monkeypatch.setenv("PANNIER_LLAMA_SERVER", "/nowhere/llama-server")
    assert command("install") == 1
    said = capsys.readouterr().err
    assert "PANNIER_LLAMA_SERVER names /nowhere/llama-server" in said
    assert "what to do:" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stop_ends_the_build_with_its_compilers(environ, pins, tmp_path, managed, number):
    pid = tmp_path / "compiler"
    code = (
        "import asyncio, sys\n"
        "from pannier.engine.command import _stoppable\n"
        "from pannier.engine.install import install\n"
        "from pannier.engine.pins import Pins\n"
        "from pannier.engine.platforms import Machine\n"
        f"pins = Pins(llama_sdist_sha256={pins.llama_sdist_sha256!r})\n"
        "machine = Machine(compiler='/c', make='/make')\n"
        "show = lambda text: print(text, flush=True)\n"
        "asyncio.run(_stoppable(install(pins=pins, machine=machine, say=show, show=show,"
        " releases='http://127.0.0.1:9')))\n"
    )
    build = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**environ, "FAKE_SLOW": str(pid)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with build:
        assert build.stdout is not None
        assert any("45 %" in line for line in build.stdout)
        os.kill(build.pid, number)
        assert build.wait(timeout=20) != 0
    deadline = time.monotonic() + 10
    while not gone(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)  # after SIGKILL it is the guard that ends it, a moment later
    assert gone(int(pid.read_text()))
    # Nobody could clean up after SIGKILL; the next install does.
    assert number == signal.SIGKILL or leftovers(managed) == []
    assert not list(managed.glob("llama-server*"))
