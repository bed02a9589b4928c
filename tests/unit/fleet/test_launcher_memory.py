import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launching import Launching

from pannier.fleet.launcher_memory import VERBOSITY, MemoryLines, with_memory_lines

MIB = 1024 * 1024

# What b11434 printed, line by line, without what lies between.
DEVICES = """\
0.00.007.819 I cmn  common_param: common_params_print_info: build 11434 (0123abc) with GNU 12.2.0 for Linux x86_64
0.00.007.822 I cmn  common_param: device_info:
0.00.007.834 I cmn  common_param:   - CPU     : AMD EPYC (24105 MiB, 24105 MiB free)
0.00.008.136 I cmn  common_param:   - RPC0    : 127.0.0.1:53201 (24105 MiB, 24105 MiB free)
0.00.008.435 I cmn  common_param:   - RPC1    : 127.0.0.1:53202 (24105 MiB, 24105 MiB free)
0.00.010.485 I srv    load_model: loading model '/m/micro-chat.gguf'
"""  # noqa: E501
MODEL = """\
0.00.011.709 I llama_prepare_model_devices: using device RPC0 (127.0.0.1:53201) (unknown id) - 24105 MiB free
0.00.012.010 I llama_prepare_model_devices: using device RPC1 (127.0.0.1:53202) (unknown id) - 24105 MiB free
0.00.014.068 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
0.00.019.020 I load_tensors:   CPU_Mapped model buffer size =     0.10 MiB
0.00.019.021 I load_tensors: RPC0[127.0.0.1:53201] model buffer size =     0.68 MiB
0.00.019.022 I load_tensors: RPC0[127.0.0.1:53202] model buffer size =     0.10 MiB
0.00.021.326 I llama_context: constructing llama_context
0.00.021.381 I llama_context:        CPU  output buffer size =     0.01 MiB
0.00.021.654 I llama_kv_cache: RPC0[127.0.0.1:53201] KV buffer size =     1.00 MiB
0.00.021.833 I llama_kv_cache: size =    1.00 MiB (  1024 cells,   2 layers,  1/1 seqs), K (f16):    0.50 MiB, V (f16):    0.50 MiB
0.00.025.202 I sched_reserve: RPC0[127.0.0.1:53201] compute buffer size =    14.55 MiB
0.00.025.208 I sched_reserve: RPC0[127.0.0.1:53202] compute buffer size =     0.01 MiB
0.00.025.209 I sched_reserve:        CPU compute buffer size =     9.07 MiB
0.00.025.214 I sched_reserve: reserve took 3.20 ms, sched copies = 4
"""  # noqa: E501
DRAFT = """\
0.00.028.339 I common_speculative_init_result: loading draft model '/m/micro-chat.gguf'
0.00.029.159 I llama_prepare_model_devices: using device RPC0 (127.0.0.1:53201) (unknown id) - 24105 MiB free
0.00.030.322 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
0.00.031.725 I load_tensors:   CPU_Mapped model buffer size =     0.10 MiB
0.00.031.726 I load_tensors: RPC0[127.0.0.1:53201] model buffer size =     0.68 MiB
0.00.033.582 I llama_context: constructing llama_context
0.00.033.617 I llama_context:        CPU  output buffer size =     0.00 MiB
0.00.033.910 I llama_kv_cache: RPC0[127.0.0.1:53201] KV buffer size =     1.00 MiB
0.00.036.506 I sched_reserve: RPC0[127.0.0.1:53201] compute buffer size =    14.55 MiB
0.00.036.517 I sched_reserve:        CPU compute buffer size =     9.07 MiB
0.00.036.520 I sched_reserve: reserve took 1.99 ms, sched copies = 1
"""  # noqa: E501
PROJECTOR = """\
0.00.036.045 I clip_ctx: CLIP using RPC0[127.0.0.1:53201] backend
0.00.036.411 I load_hparams: model size:         0.18 MiB
0.00.040.619 I reserve_compute_meta: RPC0[127.0.0.1:53201] compute buffer size =     0.22 MiB
0.00.040.626 I reserve_compute_meta:        CPU compute buffer size =     0.14 MiB
"""


def read(*texts: str) -> MemoryLines:
    lines = MemoryLines()
    for line in "".join(texts).encode().split(b"\n"):
        lines.take(line)
    return lines


def mib(lines: MemoryLines) -> dict[str, dict[str, float]]:
    found = lines.found() or {}
    return {
        name: {use: round(size / MIB, 2) for use, size in row.items()}
        for name, row in found.items()
    }


ONE, TWO = "RPC0[127.0.0.1:53201]", "RPC0[127.0.0.1:53202]"


def test_every_buffer_is_told_by_its_type_and_its_use() -> None:
    lines = read(DEVICES, MODEL)
    assert mib(lines) == {
        "CPU_Mapped": {"weights": 0.1},
        ONE: {"weights": 0.68, "kv": 1.0, "compute": 14.55},
        TWO: {"weights": 0.1, "compute": 0.01},
        "CPU": {"output": 0.01, "compute": 9.07},
    }
    assert (lines.build, lines.copies, lines.devices()) == ("b11434", 4, [ONE, TWO])


def test_a_draft_model_is_kept_apart_from_its_model() -> None:
    lines = read(DEVICES, MODEL, DRAFT)
    assert mib(lines)[ONE] == {"weights": 0.68, "kv": 1.0, "compute": 14.55, "draft": 16.23}
    assert mib(lines)["CPU"] == {"output": 0.01, "compute": 9.07, "draft": 9.07}
    assert (lines.copies, lines.devices()) == (4, [ONE, TWO])


def test_a_second_context_on_the_same_weights_is_a_draft_too() -> None:
    context = MODEL[MODEL.index("0.00.021.326") :]
    found = mib(read(MODEL, context))
    assert found[ONE] == {"weights": 0.68, "kv": 1.0, "compute": 14.55, "draft": 15.55}


def test_a_projector_is_its_file_and_its_compute_buffer() -> None:
    found = mib(read(DEVICES, MODEL, PROJECTOR))
    assert found[ONE]["projector"] == 0.40
    assert found["CPU"]["projector"] == 0.14
    assert found[ONE]["compute"] == 14.55


def test_an_encoder_for_images_and_one_for_sound_come_from_one_file() -> None:
    found = mib(read(DEVICES, MODEL, PROJECTOR, PROJECTOR))
    assert found[ONE]["projector"] == 0.62


def test_the_caches_of_a_context_add_up_and_its_last_compute_buffer_counts() -> None:
    found = mib(
        read(
            "load_tensors: loading model tensors, this can take a while... (load_mode = none)\n",
            "load_tensors:      CUDA0 model buffer size =  2128.75 MiB\n",
            "load_tensors:  CUDA_Host model buffer size =   281.81 MiB\n",
            "llama_context: constructing llama_context\n",
            "llama_kv_cache:      CUDA0 KV buffer size =    80.00 MiB\n",
            "llama_kv_cache:      CUDA0 KV buffer size =    87.00 MiB\n",
            "llama_memory_recurrent:      CUDA0 RS buffer size =    25.62 MiB\n",
            "llama_kv_cache_dsv4:      CUDA0 DSV4 csa state buffer size =     1.50 MiB\n",
            "sched_reserve:      CUDA0 compute buffer size =   258.50 MiB\n",
            "sched_reserve:      CUDA0 compute buffer size =   116.00 MiB\n",
            "sched_reserve:  CUDA_Host compute buffer size =    24.01 MiB\n",
            "llama_adapter_lora_init_impl:      CUDA0 LoRA buffer size =    12.50 MiB\n",
        )
    )
    assert found == {
        "CUDA0": {"weights": 2128.75, "kv": 194.12, "compute": 116.0, "adapter": 12.5},
        "CUDA_Host": {"weights": 281.81, "compute": 24.01},
    }


def test_what_a_fit_tries_is_not_what_is_allocated() -> None:
    tried = (
        "0.00.027.542 I cmn  common_init_: fitting params to device memory ...\n"
        + MODEL.replace("14.55", "99.00")
        + "0.00.046.518 I common_fit_params: fitting params to free memory took 0.02 seconds\n"
    )
    assert mib(read(DEVICES, tried, MODEL)) == mib(read(DEVICES, MODEL))


def test_the_buffers_of_an_rpc_server_count_within_that_server() -> None:
    lines = read(
        "  - CUDA0   : NVIDIA GeForce RTX 3090 (24576 MiB, 24000 MiB free)\n",
        "  - RPC0    : 10.0.0.8:50052 (2048 MiB, 2048 MiB free)\n",
        "  - RPC1    : 10.0.0.9:50052 (2048 MiB, 2048 MiB free)\n",
        "  - RPC2    : 10.0.0.9:50052 (2048 MiB, 2048 MiB free)\n",
        "x: using device RPC2 (10.0.0.9:50052) (unknown id) - 2048 MiB free\n",
        "x: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:01:00.0) - 24000 MiB free\n",
    )
    assert lines.devices() == ["RPC1[10.0.0.9:50052]", "CUDA0"]


def test_texts_of_a_model_are_not_taken_for_buffers() -> None:
    lines = read(
        "0.00.010.832 I llama_model_loader: - kv   1: general.name str ="
        " load_tensors: CUDA0 model buffer size = 9.00 MiB\n",
        "0.00.010.832 I load_tensors: CUDA0 model buffer size = 9.00 MiB or so\n",
        "0.00.010.832 I load_tensors: CUDA0 model buffer size = -9.00 MiB\n",
        "0.00.010.832 I load_tensors: CUDA0 model buffer size = 999999999999 MiB\n",
    )
    assert lines.found() is None


def test_an_engine_that_says_nothing_leaves_nothing() -> None:
    lines = read(DEVICES.replace("11434", "0"))
    assert (lines.found(), lines.build, lines.copies, lines.devices()) == (None, None, None, [])


@given(
    st.lists(st.binary(max_size=200) | st.sampled_from((MODEL + PROJECTOR).encode().split(b"\n")))
)
def test_no_line_does_harm(lines: list[bytes]) -> None:
    memory = MemoryLines()
    for line in lines:
        memory.take(line)
    json.dumps([memory.found(), memory.devices(), memory.copies, memory.build])


def test_a_log_without_end_does_not_fill_the_report() -> None:
    memory = MemoryLines()
    for at in range(2000):
        memory.take(f"load_tensors: N{at} model buffer size = 1.00 MiB".encode())
        memory.take(f"  - N{at} : a device (1 MiB, 1 MiB free)".encode())
        memory.take(f"x: using device N{at} (a device) (id) - 1 MiB free".encode())
    assert len(json.dumps([memory.found(), memory.devices()])) < 16 * 1024


@pytest.mark.parametrize(
    ("environ", "command", "level"),
    [
        ({}, [], "4"),
        ({VERBOSITY: "2"}, [], "2"),
        ({}, ["-lv", "3"], None),
        ({}, ["--verbosity=5"], None),
        ({}, ["--log-verbosity", "1"], None),
        ({}, ["-v"], None),
        ({}, ["--log-disable"], None),
        ({}, ["-m", "/m/-v.gguf"], "4"),
    ],
    ids=["nothing", "variable", "lv", "verbosity", "log-verbosity", "v", "disable", "a-path"],
)
def test_a_verbosity_that_a_person_chose_stays(
    environ: dict[str, str], command: list[str], level: str | None
) -> None:
    assert with_memory_lines(environ, ["llama-server", *command]).get(VERBOSITY) == level


async def test_the_launcher_tells_what_a_load_took_soon_after_it_is_ready(
    launching: Launching,
) -> None:
    launching.launch("--log-text", DEVICES + MODEL)
    await launching.phase("ready")
    told = await launching.until(lambda report: report.memory is not None)
    before: list[Any] = [each.memory for each in launching.reports if each.phase != "ready"]
    assert set(before) == {None}
    assert told.phase == "ready"
    assert told.memory
    assert told.memory[ONE] == {"weights": 713032, "kv": MIB, "compute": 15256781}
    assert told.engine
    assert (told.engine.build, told.engine.devices) == ("b11434", (ONE, TWO))
    assert told.engine.copies == 4


async def test_an_engine_without_memory_lines_is_ready_all_the_same(launching: Launching) -> None:
    launching.launch()
    told = await launching.until(lambda report: report.engine is not None)
    assert (told.phase, told.memory) == ("ready", None)


async def test_many_lines_of_mere_information_do_not_hide_why_it_failed(
    launching: Launching,
) -> None:
    words = "print_info: rope_finetuned = unknown, and a token is missing"
    noise = "".join(f"0.00.000.{at:03d} I {words}\n" for at in range(100))
    cause = "0.00.001.000 E alloc_buffer: allocating 9.00 MiB: cudaMalloc failed: out of memory\n"
    launching.launch("--log-text", cause + noise, "--fail-after", "0.1", "--fail-words", "an end")
    exited = await launching.phase("exited")
    assert exited.exit
    assert exited.exit.out_of_memory
    assert exited.exit.reason == (
        "alloc_buffer: allocating 9.00 MiB: cudaMalloc failed: out of memory"
    )
