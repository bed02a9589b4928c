"""Builds the stand-in for NVIDIA's library and puts it where the real nvidia-ml-py finds it.

In a child process by LD_LIBRARY_PATH, as on a person's machine. In this process by handing it to
nvidia-ml-py as the library that it has loaded: the loader would give back a real driver's, should
one be loaded already. What the machine is made of is a rig (rigs.py), which may be put anew at any
time. The fixtures are for the conftest of whoever tests with cards.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from tests.nvml.rigs import Rig

SOURCE = Path(__file__).parent / "nvml.c"
NAME = "libnvidia-ml.so.1"
PATIENCE = 10.0
FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fvisibility=hidden")


def build(folder: Path) -> Path:
    """Compiles the library into a folder; the path of the file."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.fail("cc is not on PATH: these tests build a small library (apt install gcc)")
    target = folder / NAME
    argv = [compiler, *FLAGS, "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-o", target, SOURCE]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    return target


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built once."""
    if sys.platform != "linux":
        pytest.skip("the stand-in is a Linux library")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stand_in(nvml_library: Path, tmp_path: Path) -> "StandIn":
    """For child processes; it shows no card until a rig is put."""
    made = StandIn(nvml_library, tmp_path)
    made.put(Rig())
    return made


@pytest.fixture
def nvml_here(stand_in: "StandIn", monkeypatch: pytest.MonkeyPatch) -> Iterator["StandIn"]:
    """For this process too, until the end of the test."""
    with stand_in.in_this_process(monkeypatch):
        yield stand_in


class StandIn:
    """A built library and the file that says what cards it shows."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = library
        self.path = folder / "rig.json"

    def put(self, rig: Rig) -> None:
        """From the next call on the machine is made of this."""
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(rig.to_json())
        fresh.replace(self.path)  # a call never sees half of it

    def take_away(self) -> None:
        """No driver: every call fails so."""
        self.path.unlink()

    def environment(self) -> dict[str, str]:
        """Ours, for a child process that finds this library as it would find the driver's."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library.parent),
            "NVML_RIG": str(self.path),
        }

    @contextlib.contextmanager
    def in_this_process(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Until the end of the block; threads that hang in a call are let go and waited for."""
        monkeypatch.setenv("NVML_RIG", str(self.path))
        library = ctypes.CDLL(str(self.library))
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        try:
            yield
        finally:
            self.put(Rig())
            for thread in threading.enumerate():
                if thread.name == "nvml":
                    thread.join(PATIENCE)
                    assert not thread.is_alive(), "a thread is left in the library"
            left = 0
            while library.nvmlShutdown() == 0:
                left += 1
            assert not left, "NVML is left initialised: close what reads it"
