import msgspec
import pytest

from pannier.gguf.arguments import arguments_of, is_fixed
from pannier.gguf.footprint.values import DeviceShare, Footprint, HostShare
from pannier.gguf.learned import (
    MOST_LOADS,
    Key,
    Learned,
    decode,
    device_identity,
    encode,
)
from pannier.gguf.measured import (
    DRIFT,
    GROWTH,
    MOST_OVERHEAD,
    Measurement,
    OnDevice,
    OnHost,
    corrected,
    drift,
    has_grown,
    in_words,
    measurement,
    with_overhead,
)

MIB = 1024 * 1024
GIB = 1024 * MIB

KEY = Key(build="b11434", files="f", arguments="-c 4096 -fit off", devices=("GPU-1", "GPU-2"))
ONE_CARD = Key(build="b11434", files="f", arguments="-c 4096 -fit off", devices=("GPU-1",))


def took(*devices: OnDevice, host: OnHost | None = None, at: float = 1.0) -> Measurement:
    return Measurement(devices=devices, host=host or OnHost(), build="b11434", at=at)


def share(**bytes_of: int) -> DeviceShare:
    return DeviceShare(layers=3, **bytes_of)


def estimate(*devices: DeviceShare, host: HostShare | None = None) -> Footprint:
    return Footprint(devices=devices, host=host or HostShare())


# From the report to a measurement.

MEMORY = {
    "CPU_Mapped": {"weights": 7},
    "CUDA1": {"weights": 100, "kv": 20, "compute": 3, "draft": 4, "projector": 5, "adapter": 6},
    "CUDA0": {"weights": 200, "output": 1, "compute": 2},
    "CPU": {"output": 10, "compute": 20, "weights": 30},
    "CUDA_Host": {"compute": 40, "weights": 50},
}


def test_buffers_go_to_the_planned_devices_in_their_order_and_the_rest_to_the_host() -> None:
    found = measurement(MEMORY, ("CUDA1", "CUDA0"), devices=2, build="b11434", at=5.0)
    assert found == Measurement(
        devices=(
            OnDevice(weights=100, kv=20, compute=3, draft=4, projector=5, adapter=6),
            OnDevice(weights=200, compute=3),
        ),
        host=OnHost(mapped=7, resident=80, compute=70),
        build="b11434",
        at=5.0,
    )


def test_one_device_may_have_buffers_of_several_types() -> None:
    memory = {"MTL0_Mapped": {"weights": 5}, "MTL0": {"kv": 1}, "MTL01": {"kv": 9}}
    found = measurement(memory, ("MTL0",), devices=1, build="b", at=0.0)
    assert found is not None
    assert found.devices == (OnDevice(weights=5, kv=1),)
    assert found.host == OnHost(kv=9)


@pytest.mark.parametrize(
    ("names", "devices"),
    [(("CUDA0",), 2), (("CUDA0", "CUDA1"), 1), ((), 1), (("CUDA0", "CUDA0"), 2)],
    ids=["one-less", "one-more", "none", "twice"],
)
def test_other_devices_than_planned_measure_nothing(names: tuple[str, ...], devices: int) -> None:
    assert measurement(MEMORY, names, devices=devices, build="b", at=0.0) is None


def test_no_lines_or_impossible_numbers_measure_nothing() -> None:
    assert measurement({}, (), devices=0, build="b", at=0.0) is None
    assert measurement({"CPU": {"kv": -1}}, (), devices=0, build="b", at=0.0) is None


def test_the_log_says_what_a_load_took_in_words() -> None:
    found = took(OnDevice(weights=3 * MIB, kv=MIB // 2), host=OnHost(resident=MIB))
    assert in_words(found, ("CUDA0",)) == "3.50 MiB on CUDA0, 1.00 MiB of RAM"


# Correction and drift.


def test_a_measurement_replaces_what_was_computed_and_keeps_the_rest() -> None:
    before = estimate(
        share(weights=1, kv=2, compute=3, projector=4, draft=5, overhead=600),
        host=HostShare(mapped=50, compute=9, prompt_cache=70, checkpoints=80),
    )
    after = corrected(
        before,
        took(
            OnDevice(weights=10, kv=20, compute=30, projector=40, draft=50, adapter=5),
            host=OnHost(mapped=60, resident=7, kv=8, compute=11),
        ),
    )
    assert after.measured
    assert after.devices == (
        share(weights=15, kv=20, compute=30, projector=40, draft=50, overhead=600),
    )
    assert after.host == HostShare(
        mapped=50, resident=7, kv=8, compute=11, prompt_cache=70, checkpoints=80
    )


@pytest.mark.parametrize(
    ("used", "overhead"),
    [(None, None), (149, None), (150, 0), (650, 500), (150 + MOST_OVERHEAD, MOST_OVERHEAD),
     (151 + MOST_OVERHEAD, None)],
    ids=["not-told", "less-than-buffers", "nothing-beside", "some", "most", "more-than-most"],
)  # fmt: skip
def test_the_overhead_is_what_the_driver_counts_beside_all_buffers(
    used: int | None, overhead: int | None
) -> None:
    every = OnDevice(weights=100, kv=20, compute=10, projector=9, draft=8, adapter=3)
    (found,) = with_overhead(took(every), [used]).devices
    assert (found.overhead, found.buffers) == (overhead, 150)


def test_a_later_reading_raises_the_overhead_and_never_lowers_it() -> None:
    before = took(OnDevice(weights=100, overhead=50), OnDevice(weights=100))
    now = with_overhead(before, [120, 130])
    assert [each.overhead for each in now.devices] == [50, 30]
    assert with_overhead(now, [None, 99]) == now
    assert with_overhead(now, [400]) == now, "other devices than were measured"


def test_an_overhead_is_worth_a_write_when_it_is_new_or_much_larger() -> None:
    known = took(OnDevice(overhead=50))
    assert has_grown(took(OnDevice()), known)
    assert not has_grown(known, took(OnDevice()))
    assert not has_grown(known, took(OnDevice(overhead=50 + GROWTH)))
    assert has_grown(known, took(OnDevice(overhead=51 + GROWTH)))


def test_the_log_says_what_is_beside_the_buffers() -> None:
    found = took(OnDevice(weights=MIB, overhead=2 * MIB))
    assert in_words(found, ("CUDA0",)) == (
        "1.00 MiB on CUDA0 and 2.00 MiB beside its buffers, 0.00 MiB of RAM"
    )


def test_a_measured_overhead_counts_with_a_margin() -> None:
    before = estimate(share(overhead=500), share(overhead=500))
    after = corrected(before, took(OnDevice(overhead=1000), OnDevice(overhead=100)))
    assert [each.overhead for each in after.devices] == [1050, 105]


def test_a_measurement_of_other_devices_corrects_nothing() -> None:
    before = estimate(share(weights=1))
    assert corrected(before, took(OnDevice(weights=9), OnDevice())) is before
    assert drift(before, took(OnDevice(weights=9 * GIB), OnDevice())) == ()


def test_weights_and_caches_that_follow_the_rules_are_no_news() -> None:
    before = estimate(share(weights=GIB, kv=MIB, compute=MIB), host=HostShare(resident=MIB))
    found = took(
        OnDevice(weights=GIB + DRIFT, kv=0, compute=GIB), host=OnHost(resident=2 * MIB, compute=GIB)
    )
    assert drift(before, found) == ()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            took(OnDevice(weights=GIB + DRIFT + 6000, kv=MIB)),
            "weights on its device 1 of 1: 1024.00 MiB were computed, llama-server allocated 1025",
        ),
        (
            took(OnDevice(weights=GIB, kv=3 * MIB)),
            "KV cache on its device 1 of 1: 1.00 MiB were computed, llama-server allocated 3.00",
        ),
        (
            took(OnDevice(weights=GIB, kv=MIB), host=OnHost(resident=5 * MIB)),
            "weights in RAM: 0.00 MiB were computed, llama-server allocated 5.00",
        ),
        (
            took(OnDevice(weights=GIB, kv=MIB), host=OnHost(kv=5 * MIB)),
            "KV cache in RAM: 0.00 MiB were computed, llama-server allocated 5.00",
        ),
    ],
    ids=["weights", "kv", "host-weights", "host-kv"],
)
def test_other_weights_or_caches_are_told_with_both_numbers(found: Measurement, words: str) -> None:
    (said,) = drift(estimate(share(weights=GIB, kv=MIB)), found)
    assert said.startswith("new architecture or changed rules: ")
    assert words in said
    assert "memory.reserve" in said


def test_a_mapped_range_is_not_held_against_the_weights_in_ram() -> None:
    before = estimate(host=HostShare(resident=MIB))
    assert drift(before, took(host=OnHost(mapped=GIB, resident=9 * MIB))) == ()


# What is remembered.


def test_the_same_load_is_found_and_no_other() -> None:
    found = took(OnDevice(weights=1), OnDevice())
    learned = Learned().remember(KEY, found)
    assert learned.find(KEY) == found
    for change in (
        {"build": "b11435"},
        {"files": "g"},
        {"arguments": "-c 8192 -fit off"},
        {"devices": ("GPU-2", "GPU-1")},
    ):
        assert learned.find(msgspec.structs.replace(KEY, **change)) is None


def test_of_the_same_load_the_latest_stays_with_the_largest_overhead() -> None:
    learned = Learned().remember(ONE_CARD, took(OnDevice(weights=1, overhead=900), at=1.0))
    learned = learned.remember(ONE_CARD, took(OnDevice(weights=2, overhead=700), at=2.0))
    learned = learned.remember(ONE_CARD, took(OnDevice(weights=3), at=3.0))
    assert [load.took.devices for load in learned.loads] == [(OnDevice(weights=3, overhead=900),)]


def test_the_oldest_loads_make_room() -> None:
    learned = Learned()
    for at in range(MOST_LOADS + 5):
        key = msgspec.structs.replace(ONE_CARD, files=str(at))
        learned = learned.remember(key, took(OnDevice(), at=float(at)))
    assert len(learned.loads) == MOST_LOADS
    assert learned.find(msgspec.structs.replace(ONE_CARD, files="4")) is None
    assert learned.find(msgspec.structs.replace(ONE_CARD, files="5")) is not None


def test_the_same_build_and_architecture_share_how_far_compute_was_above() -> None:
    before = estimate(share(compute=10), share(compute=10))
    learned = Learned().remember(
        KEY,
        took(OnDevice(compute=17), OnDevice(compute=4)),
        architecture="qwen3",
        estimate=before,
    )
    assert learned.compute_above("b11434", "qwen3") == 7
    assert learned.compute_above("b11435", "qwen3") == 0
    assert learned.compute_above("b11434", "llama") == 0
    other = msgspec.structs.replace(ONE_CARD, files="another model")
    raised = learned.apply(estimate(share(compute=100, kv=5)), other, "qwen3")
    assert raised.devices == (share(compute=107, kv=5),)
    assert not raised.measured
    assert learned.apply(estimate(share(compute=100)), other, "llama").devices[0].compute == 100


def test_an_unknown_architecture_shares_nothing() -> None:
    before = estimate(share(compute=10))
    learned = Learned().remember(ONE_CARD, took(OnDevice(compute=17)), estimate=before)
    assert learned.compute_above("b11434", "") == 0


def test_the_same_device_shares_the_overhead_of_a_process_whatever_the_model() -> None:
    learned = Learned().remember(KEY, took(OnDevice(overhead=300), OnDevice(overhead=1000)))
    other = Key(build="b9", files="g", arguments="", devices=("GPU-2", "GPU-3"))
    before = estimate(share(overhead=512), share(overhead=512))
    assert learned.overhead("GPU-2") == 1000
    assert learned.overhead("GPU-3") is None
    assert [each.overhead for each in learned.apply(before, other).devices] == [1050, 512]


def test_an_exact_match_goes_before_what_carries_over() -> None:
    before = estimate(share(compute=10, weights=5))
    learned = Learned().remember(
        ONE_CARD, took(OnDevice(compute=17, weights=6)), architecture="a", estimate=before
    )
    found = learned.apply(before, ONE_CARD, "a")
    assert found.measured
    assert found.devices == (share(compute=17, weights=6),)


def test_a_device_is_known_by_its_uuid_else_by_what_the_engine_says() -> None:
    assert device_identity(uuid="GPU-1", label="CUDA0", name="RTX", total=5) == "GPU-1"
    assert device_identity(uuid=None, label="CUDA0", name="RTX", total=5) == "CUDA0 RTX 5"


# The file.


def test_the_file_is_read_back_as_it_was_written() -> None:
    learned = Learned().remember(
        KEY,
        took(OnDevice(weights=1, overhead=0), OnDevice(), host=OnHost(kv=3), at=1.5),
        architecture="llama",
        estimate=estimate(share(), share()),
    )
    assert decode(encode(learned)) == learned
    assert decode(encode(Learned())) == Learned()


def test_a_file_of_another_version_is_passed_over() -> None:
    assert decode(b"version = 2\nloads = 7\n") is None
    assert decode(b'version = 999\n[whatever]\na = "b"\n') is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"version = 1\nloads = 7\n",
        b'version = "1"\n',
        b"version = 1\n[[loads]]\n",
        b"version = 1\nsomething = 1\n",
        encode(Learned().remember(KEY, took(OnDevice(), OnDevice())))[:-9],
        encode(Learned().remember(KEY, took(OnDevice(weights=5)))).replace(b"= 5", b"= -5"),
        encode(Learned().remember(KEY, took(OnDevice(weights=5)))).replace(b"= 5", b"= 5.5"),
        b"version = 1\nloads = " + b"[" * 100_000,
    ],
    ids=[
        "empty", "not-text", "wrong-type", "text-version", "no-key", "unknown-field", "cut",
        "negative", "fraction", "deep",
    ],
)  # fmt: skip
def test_a_damaged_file_is_told_with_a_reason(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not a file of learned loads: ."):
        decode(content)


# Arguments.

SERVER = ("/opt/llama-server", "-m", "/m/a.gguf", "--alias", "a", "-c", "4096", "-fit", "off")


def test_what_decides_memory_is_one_text_in_one_order() -> None:
    assert arguments_of(SERVER, {}) == "-c 4096 -fit off -m"
    assert is_fixed(arguments_of(SERVER, {}))


@pytest.mark.parametrize(
    "argv",
    [
        ("py", "-m", "pannier.fleet.launcher", "--instance", "a", "--", *SERVER),
        ("other", "-c", "4096", "-fit", "off", "-m", "/n/b.gguf"),
        (*SERVER, "--host", "127.0.0.1", "--port", "1", "--threads", "8", "-v", "--no-ui"),
        ("x", "-m", "a", "-c", "1", "--ctx-size", "4096", "-fit", "off"),
        ("x", "--model", "a", "--ctx-size=4096", "--fit", "off"),
        (*SERVER, "--api-key", "hunter2", "-hft", "hunter2", "--hf-token", "hunter2"),
    ],
    ids=["behind-a-launcher", "another-order", "addresses", "last-wins", "spelling", "secrets"],
)
def test_what_decides_nothing_changes_nothing(argv: tuple[str, ...]) -> None:
    assert arguments_of(argv, {}) == arguments_of(SERVER, {})


@pytest.mark.parametrize(
    "more",
    [
        ("-c", "8192"), ("-ngl", "3"), ("-ts", "3,1"), ("--load-mode", "mmap"), ("--no-warmup",),
        ("-md", "/m/d.gguf"), ("--mmproj", "/m/p.gguf"), ("-ctk", "q8_0"), ("--new-flag",),
        ("--image-max-tokens", "9"), ("-ncmoe", "3"), ("--embeddings",), ("-dev", "CUDA1"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_what_may_decide_memory_changes_the_text(more: tuple[str, ...]) -> None:
    assert arguments_of((*SERVER, *more), {}) != arguments_of(SERVER, {})


def test_values_that_begin_with_a_minus_stay_with_their_flag() -> None:
    assert arguments_of(("x", "-ngl", "-1", "-c", "5"), {}) == "-c 5 -ngl -1"


def test_arguments_that_add_up_all_count() -> None:
    text = arguments_of(("x", "-ot", "a=CPU", "-ot", "b=CPU", "--lora", "l"), {})
    assert text == "--lora l -ot a=CPU -ot b=CPU"


def test_variables_of_the_engine_count_and_others_do_not() -> None:
    env = {
        "LLAMA_ARG_CTX_SIZE": "512",
        "GGML_CUDA_NO_VMM": "1",
        "LLAMA_ARG_LOG_VERBOSITY": "5",
        "LLAMA_ARG_PORT": "1",
        "LLAMA_API_KEY": "hunter2",
        "LLAMA_ARG_API_KEY": "hunter2",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "HOME": "/h",
    }
    assert arguments_of(("x",), env) == "GGML_CUDA_NO_VMM=1 LLAMA_ARG_CTX_SIZE=512"


def test_a_launch_that_goes_by_free_memory_is_not_the_same_twice() -> None:
    assert not is_fixed(arguments_of(("x", "-c", "5"), {}))
    assert not is_fixed(arguments_of((*SERVER, "-fit", "on"), {}))
