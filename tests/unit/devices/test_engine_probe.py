"""What llama-server says of its devices, in real words and through real processes."""

import os
import stat
import sys
import time
from pathlib import Path

import psutil
import pytest

from pannier.devices.engine_probe import host_memory, parse_device_list, probe

MIB = 1024 * 1024
PATIENCE = 10.0

CUDA = """\
ggml_cuda_init: found 2 CUDA devices:
  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes
load_backend: loaded CUDA backend from /opt/libggml-cuda.so
Available devices:
  CUDA0: NVIDIA GeForce RTX 4090 (24080 MiB, 23674 MiB free)
  CUDA1: NVIDIA RTX A2000 (12 GB) (11911 MiB, 11800 MiB free)
"""
ROCM = "Available devices:\n  ROCm0: AMD Radeon RX 7900 XTX (24560 MiB, 24504 MiB free)\n"
VULKAN = """\
ggml_vulkan: Found 2 Vulkan devices:
Available devices:
  Vulkan0: AMD Radeon Graphics (RADV GFX1151) (98304 MiB, 97000 MiB free)
  Vulkan1: llvmpipe (LLVM 19.1.1, 256 bits) (0 MiB, 0 MiB free)
"""
METAL = "Available devices:\n  MTL0: Apple M3 Max (98304 MiB, 98303 MiB free)\n"
RPC = """\
Available devices:
  CUDA0: NVIDIA H200 (143167 MiB, 142000 MiB free)
  RPC0: 10.0.0.7:50052 (24080 MiB, 23674 MiB free)
  RPC1: 10.0.0.7:50052 (24080 MiB, 23674 MiB free)
"""
OLD_RPC = "Available devices:\n  RPC[10.0.0.7:50052]: RPC[10.0.0.7:50052] (100 MiB, 90 MiB free)\n"
NONE = "Available devices:\n"
WORDS = "Available devices:\n  (none)\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CUDA, [("CUDA0", "cuda", 24080, 23674), ("CUDA1", "cuda", 11911, 11800)]),
        (ROCM, [("ROCm0", "rocm", 24560, 24504)]),
        (VULKAN, [("Vulkan0", "vulkan", 98304, 97000), ("Vulkan1", "vulkan", 0, 0)]),
        (METAL, [("MTL0", "metal", 98304, 98303)]),
        (
            RPC,
            [
                ("CUDA0", "cuda", 143167, 142000),
                ("RPC0", "rpc", 24080, 23674),
                ("RPC1", "rpc", 24080, 23674),
            ],
        ),
        (OLD_RPC, [("RPC[10.0.0.7:50052]", "rpc", 100, 90)]),
        (ROCM.replace("\n", "\r\n"), [("ROCm0", "rocm", 24560, 24504)]),
        (NONE, []),
        (WORDS, []),
    ],
    ids=["cuda", "rocm", "vulkan", "metal", "rpc", "old rpc", "crlf", "none", "words"],
)  # fmt: skip
def test_the_list_is_read(text, found):
    devices = parse_device_list(text)
    assert devices is not None
    assert [(d.label, d.backend, d.total // MIB, d.free // MIB) for d in devices] == found
    assert [d.index for d in devices] == list(range(len(found)))


def test_a_name_with_brackets_stays_whole():
    devices = parse_device_list(CUDA)
    assert devices is not None
    assert devices[1].name == "NVIDIA RTX A2000 (12 GB)"


@pytest.mark.parametrize("text", ["", "error: invalid argument: --list-devices", "\x00\xff" * 50])
def test_what_is_no_list_is_no_answer(text):
    assert parse_device_list(text) is None


# --- real processes -------------------------------------------------------------------------------


def program(folder: Path, body: str) -> str:
    path = folder / "llama-server"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time, pathlib\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_an_engine_is_asked_with_its_rpc_endpoints_and_environment(tmp_path):
    body = f"print({CUDA!r})\npathlib.Path({str(tmp_path / 'seen')!r}).write_text("
    body += "repr(sys.argv[1:]) + os.environ['A'] + str('HOME' in os.environ))"
    inventory = await probe(program(tmp_path, body), rpc=["a:1", "b:2"], env={"A": "!"})
    assert (inventory.engine_backend, len(inventory.devices), inventory.notes) == ("cuda", 2, ())
    assert (tmp_path / "seen").read_text() == "['--rpc', 'a:1,b:2', '--list-devices']!False"


async def test_ap_9_an_engine_that_lists_none_is_a_machine_without_gpus(tmp_path):
    inventory = await probe(program(tmp_path, f"print({NONE!r})"), env=os.environ)
    assert (inventory.engine_backend, inventory.devices) == ("cpu", ())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sys.exit('cannot open libcuda.so')", "cannot open libcuda.so"),
        ("print('nonsense')", "nonsense"),
        ("sys.stdout.buffer.write(bytes(range(256)) * 100)", ""),
        ("os.abort()", ""),
        ("pass", ""),
    ],
)
async def test_ap_9_an_engine_that_does_not_answer_is_unknown_and_not_without_gpus(
    tmp_path, body, says
):
    inventory = await probe(program(tmp_path, body), env=os.environ)
    assert (inventory.engine_backend, inventory.devices) == ("unknown", ())
    assert inventory.notes[0].startswith("the engine did not list its devices: ")
    assert says in inventory.notes[0]


@pytest.mark.parametrize("kind", ["missing", "folder", "no program"])
async def test_ap_9_an_engine_that_cannot_be_started_is_unknown(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "no program":
        path.write_bytes(b"\x7fELF nonsense")
        path.chmod(0o755)
    inventory = await probe(str(path), env={})
    assert inventory.engine_backend == "unknown"
    assert inventory.notes


async def test_ap_9_an_engine_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    pids = tmp_path / "pids"
    body = "import signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    body += "child = subprocess.Popen(['sleep', '300'])\n"
    body += f"pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{child.pid}}')\n"
    body += f"print({CUDA!r}, flush=True)\ntime.sleep(300)"
    began = time.monotonic()
    inventory = await probe(program(tmp_path, body), env=os.environ, seconds=1.5)
    assert time.monotonic() - began < PATIENCE
    assert inventory.engine_backend == "unknown"
    for pid in map(int, pids.read_text().split()):
        if psutil.pid_exists(pid):
            assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


# --- memory of the host ---------------------------------------------------------------------------


def test_the_memory_of_the_host_is_read_in_bytes(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       1000 kB\nMemFree: 5 kB\nMemAvailable:    600 kB\n")
    memory = host_memory(path)
    assert (memory.total, memory.available) == (1000 * 1024, 600 * 1024)


@pytest.mark.parametrize("content", [None, "", "MemTotal:\nx\n: 5 kB\n"])
def test_a_host_that_tells_nothing_is_not_known(tmp_path, content):
    path = tmp_path / "meminfo"
    if content is not None:
        path.write_text(content)
    assert host_memory(path).total == 0
