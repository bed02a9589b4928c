"""What has to work where POSIX is missing: the commands that only look.

A real interpreter with the POSIX parts taken away stands in for Windows. It is not Windows, but
each import and call that would fail there for want of them fails here too.
"""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_POSIX = """
import os, signal, sys, types
import asyncio, pathlib, shutil, socket, ssl, subprocess, tarfile, tempfile, zipfile
import aiohttp, msgspec, watchfiles  # other people's code, which knows Windows by itself
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
for name in ("killpg", "getuid", "setsid", "pidfd_open", "getpgid"):
    if hasattr(os, name):
        delattr(os, name)
sys.platform = "win32"
# From Python 3.12 on shutil.which asks Windows itself.
windows = types.SimpleNamespace(NeedCurrentDirectoryForExePath=lambda name: False)
shutil._winapi = windows
from pannier.cli import main
sys.exit(main(sys.argv[1:]))
"""

CONFIG = '[models.a]\npath = "a.gguf"\n'


def run_without_posix(*argv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/nowhere", "HOME": str(folder), "PANNIER_LLAMA_SERVER": ""}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX, *argv],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=folder,
        env=env,
        check=False,
    )


@pytest.mark.parametrize("command", ["check", "plan"])
def test_commands_that_read_a_config_work_without_posix(tmp_path: Path, command: str) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    ended = run_without_posix(command, "--config", "config.toml", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "a.gguf is not there yet" in ended.stdout or "a: not installed" in ended.stdout


def test_the_schema_is_printed_without_posix(tmp_path: Path) -> None:
    ended = run_without_posix("schema", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert '"$schema"' in ended.stdout


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_commands_that_run_models_say_that_they_cannot(tmp_path: Path, command: str) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    options = ("--config", "config.toml") if command == "serve" else ()
    ended = run_without_posix(command, *options, folder=tmp_path)
    assert ended.returncode == 1
    assert f"{command} does not run on Windows" in ended.stderr
    assert "WSL 2" in ended.stderr
    assert "Traceback" not in ended.stderr
