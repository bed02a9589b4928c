"""What llama-server says of its devices, in real words and through real processes."""

import os
import stat
import sys
import time
from pathlib import Path

import psutil
import pytest

from pannier.config.schema import Engine
from pannier.devices.engine_probe import Question, list_devices, question_of
from pannier.devices.listing import parse_device_list

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


def test_a_vulkan_device_that_shares_the_host_s_memory_is_told_apart():
    text = (
        "ggml_vulkan: 0 = AMD Radeon 8060S (RADV GFX1151) (radv) | uma: 1 | fp16: 1\n"
        "ggml_vulkan: 1 = AMD Radeon RX 7900 (RADV NAVI31) (radv) | uma: 0 | fp16: 1\n"
        "Available devices:\n"
        "  Vulkan0: AMD Radeon 8060S (98304 MiB, 97000 MiB free)\n"
        "  Vulkan1: AMD Radeon RX 7900 (24560 MiB, 24504 MiB free)\n"
    )
    devices = parse_device_list(text)
    assert devices is not None
    assert [device.unified for device in devices] == [True, False]


def test_apple_s_memory_is_the_host_s():
    devices = parse_device_list(METAL)
    assert devices is not None
    assert devices[0].unified


def test_a_label_that_is_there_twice_means_one_device():
    text = "Available devices:\n  RPC0: a (1 MiB, 1 MiB free)\n  RPC0: b (2 MiB, 2 MiB free)\n"
    devices = parse_device_list(text)
    assert devices is not None
    assert [device.name for device in devices] == ["a"]


# --- real processes -------------------------------------------------------------------------------


def program(folder: Path, body: str) -> str:
    path = folder / "llama-server"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time, pathlib\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def asked(server, env=os.environ, rpc=()):
    return Question(server=server, rpc=rpc, env=dict(env))


async def test_an_engine_is_asked_with_its_rpc_endpoints_and_environment(tmp_path):
    body = f"print({CUDA!r})\npathlib.Path({str(tmp_path / 'seen')!r}).write_text("
    body += "repr(sys.argv[1:]) + os.environ['A'] + str('HOME' in os.environ))"
    answer = await list_devices(asked(program(tmp_path, body), {"A": "!"}, ("a:1", "b:2")))
    assert answer.devices is not None
    assert [device.label for device in answer.devices] == ["CUDA0", "CUDA1"]
    assert answer.reason is None
    assert (tmp_path / "seen").read_text() == "['--rpc', 'a:1,b:2', '--list-devices']!False"


async def test_ap_9_an_engine_that_lists_none_has_answered(tmp_path):
    answer = await list_devices(asked(program(tmp_path, f"print({NONE!r})")))
    assert (answer.devices, answer.reason) == ((), None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sys.exit('cannot open libcuda.so')", "cannot open libcuda.so"),
        ("print('nonsense')", "nonsense"),
        ("sys.stdout.buffer.write(bytes(range(256)) * 100)", ""),
        ("os.abort()", "SIGABRT"),
        ("pass", "exit code 0"),
        (
            "print('ggml-rpc.cpp:547: Failed to connect to 10.0.0.7:1\\nmore')\nos.abort()",
            "the RPC endpoint 10.0.0.7:1 does not answer (`rpc` under [engine])",
        ),
    ],
)
async def test_ap_9_an_engine_that_says_no_list_has_not_answered(tmp_path, body, says):
    answer = await list_devices(asked(program(tmp_path, body)))
    assert answer.devices is None
    assert answer.reason
    assert says in answer.reason


@pytest.mark.parametrize("kind", ["missing", "folder", "no program", "bad environment"])
async def test_ap_9_an_engine_that_cannot_be_started_has_not_answered(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "no program":
        path.write_bytes(b"\x7fELF nonsense")
        path.chmod(0o755)
    answer = await list_devices(asked(str(path), {"A": "\0"} if kind == "bad environment" else {}))
    assert answer.devices is None
    assert answer.reason


async def test_ap_9_an_engine_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    pids = tmp_path / "pids"
    body = "import signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    body += "child = subprocess.Popen(['sleep', '300'])\n"
    body += f"pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{child.pid}}')\n"
    body += f"print({CUDA!r}, flush=True)\ntime.sleep(300)"
    began = time.monotonic()
    answer = await list_devices(asked(program(tmp_path, body)), seconds=1.5)
    assert time.monotonic() - began < PATIENCE
    assert answer.devices is None
    assert answer.reason is not None
    assert "took too long" in answer.reason
    for pid in map(int, pids.read_text().split()):
        if psutil.pid_exists(pid):
            assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_report_3_everybody_asks_in_the_order_of_the_pci_bus_unless_the_config_says_otherwise(
    tmp_path,
):
    """gst#1633: CUDA's own order is by speed, nvidia-smi's by bus."""
    server = program(tmp_path, "")
    question = question_of(server, Engine(), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "A": "b"})
    assert question.env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "A": "b"}
    own = Engine(env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert question_of(server, own, {}).env["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_another_build_under_the_same_name_is_another_question(tmp_path):
    server = program(tmp_path, "")
    before = question_of(server, Engine(), {})
    assert question_of(server, Engine(), {}) == before
    program(tmp_path, "# a newer one")
    assert question_of(server, Engine(), {}) != before
