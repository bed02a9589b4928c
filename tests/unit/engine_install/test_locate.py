import asyncio
import os
from pathlib import Path

import pytest

from pannier.engine import locate
from pannier.engine.locate import (
    Features,
    Origin,
    Program,
    find_llama_server,
    find_llama_swap,
    llama_version,
    probe_llama_server,
    probe_llama_swap,
    swap_version,
)
from pannier.errors import EngineError

from .conftest import SERVER, SWAP, program


def test_the_order_is_config_environment_path_managed(tmp_path, environ, managed):
    assert find_llama_server(environ=environ) is None

    real = program(managed / "llama-server-b11434-cpu" / "llama-server")
    (managed / "bin").mkdir()
    (managed / "bin" / "llama-server").symlink_to("../llama-server-b11434-cpu/llama-server")
    assert find_llama_server(environ=environ) == Program(path=str(real), source="managed")

    on_path = program(Path(environ["PATH"]) / "llama-server")
    assert find_llama_server(environ=environ) == Program(path=str(on_path), source="path")

    named = program(tmp_path / "mine")
    environ["PANNIER_LLAMA_SERVER"] = str(named)
    assert find_llama_server(environ=environ) == Program(path=str(named), source="environment")

    written = program(tmp_path / "written")
    found = find_llama_server(str(written), environ=environ)
    assert found == Program(path=str(written), source="config")


def test_a_relative_path_is_relative_to_the_folder_of_the_config(tmp_path, environ):
    program(tmp_path / "etc" / "bin" / "srv")
    found = find_llama_server("./bin/srv", base=tmp_path / "etc", environ=environ)
    assert found == Program(path=str(tmp_path / "etc" / "bin" / "srv"), source="config")


def test_a_path_may_start_at_home(tmp_path, environ):
    program(tmp_path / "home" / "srv")
    found = find_llama_server("~/srv", environ=environ)
    assert found == Program(path=str(tmp_path / "home" / "srv"), source="config")


def test_another_name_is_looked_up_on_path(environ):
    on_path = program(Path(environ["PATH"]) / "llama-server-cuda")
    found = find_llama_server("llama-server-cuda", environ=environ)
    assert found == Program(path=str(on_path), source="config")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("/nowhere/llama-swap", "which does not exist"),
        ("llama-swap-9", "not on PATH"),
        ("./folder", "is a folder"),
        ("./plain", "cannot be executed"),
    ],
)
def test_a_written_program_that_is_not_there_is_an_error(tmp_path, environ, value, words):
    program(Path(environ["PATH"]) / "llama-swap", SWAP)  # never taken silently
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_text("")
    with pytest.raises(EngineError, match=words) as caught:
        find_llama_swap(value, base=tmp_path, environ=environ)
    assert "[engine] llama_swap" in caught.value.message
    assert caught.value.hint


def test_a_variable_that_names_nothing_is_an_error(environ):
    environ["PANNIER_LLAMA_SWAP"] = "/nowhere/llama-swap"
    with pytest.raises(EngineError, match="PANNIER_LLAMA_SWAP names /nowhere"):
        find_llama_swap(environ=environ)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("version: 0.6.0-dev (build 11434, commit unknown)\nbuilt with GNU", "b11434"),
        ("ggml: found\nversion: 10435 (abcdef0)\n", "b10435"),
        ("version: 0.6.0-dev (build 0, commit unknown)", "0.6.0-dev"),
        ("nothing", "unknown"),
    ],
)
def test_the_version_of_llama_server(said, version):
    assert llama_version(said) == version


def test_a_build_that_does_not_know_its_number_is_known_by_its_origin():
    known = Origin(program="llama-server", version="b11434", backend="cpu", way="build")
    assert llama_version("version: 0.6.0-dev (build 0, commit unknown)", known) == "b11434"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("version: 250 (60226b63), built at 2026-08-14", "250"),
        ("version: 0 (abcd1234), built at unknown", "0"),
    ],
)
def test_the_version_of_llama_swap(said, version):
    assert swap_version(said) == version


async def test_features_are_seen_in_the_program_its_help_and_its_neighbours(tmp_path):
    server = program(tmp_path / "llama-server")
    version, features = await probe_llama_server(server)
    assert version == "b11434"
    assert features.progress_lines
    assert features.load_mode
    assert features.rpc
    assert not features.fit_params


async def test_the_mark_of_progress_lines_may_be_in_a_library(tmp_path):
    server = program(tmp_path / "llama-server", SERVER.replace("cmd_child_to_router", "x"))
    program(tmp_path / "llama-fit-params")
    (tmp_path / "libllama-server-impl.so").write_bytes(b"\0" * 99 + b"cmd_child_to_router:state")
    _, features = await probe_llama_server(server)
    assert features.progress_lines
    assert features.fit_params


async def test_an_old_llama_server_lacks_them(tmp_path):
    server = program(tmp_path / "llama-server", '#!/bin/sh\necho "version: 3000 (old)"\n')
    version, features = await probe_llama_server(str(server))
    assert version == "b3000"
    assert features == Features(progress_lines=False, load_mode=False, fit_params=False, rpc=False)


async def test_an_answer_is_remembered_until_the_file_changes(tmp_path):
    count = tmp_path / "count"
    text = f'#!/bin/sh\necho x >> {count}\necho "version: 250 (60226b63), built"\n'
    swap = program(tmp_path / "llama-swap", text)
    assert await probe_llama_swap(swap) == "250"
    assert await probe_llama_swap(swap) == "250"
    assert count.read_text() == "x\n"
    program(swap, text.replace("250", "2511"))
    assert await probe_llama_swap(swap) == "2511"


async def test_a_program_that_never_answers_is_ended_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(locate, "PROBE_SECONDS", 0.5)
    pid = tmp_path / "pid"
    swap = program(
        tmp_path / "llama-swap",
        f"#!/bin/sh\ntrap '' TERM\nsleep 300 &\necho $! > {pid}\nwait\nwait\n",
    )
    with pytest.raises(EngineError, match="took too long"):
        await asyncio.wait_for(probe_llama_swap(swap), 20)
    assert gone(int(pid.read_text()))


async def test_a_program_for_another_system_is_an_error(tmp_path):
    swap = program(tmp_path / "llama-swap", "\x7fELF nonsense")
    with pytest.raises(EngineError, match=r"cannot be started|exit code"):
        await probe_llama_swap(swap)


def gone(pid: int) -> bool:
    """No such process, or one that is only waiting to be reaped by init."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return not Path("/proc/self").exists()
