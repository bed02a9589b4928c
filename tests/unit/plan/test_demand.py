"""What one model asks for: contexts to plan with, forms, and what they take."""

import msgspec
import pytest
from tests.fakes.rigs import files, profile
from tests.fakes.values import GIB, model

from pannier.config.schema import KvPair
from pannier.gguf.footprint.values import DeviceShare, Footprint, HostShare
from pannier.gguf.model_files import ModelFiles, ModelHeaders
from pannier.plan.demand import (
    DEFAULT_CONTEXT,
    NO_PROFILE,
    Demand,
    Measured,
    ceiling,
    contexts,
    exhausted,
    model_profile,
)

MIB = 2**20


def demand(made=None, *, gib=8.0, known=None, **keys):
    fields = {key: keys.pop(key) for key in ("failed_at", "extra", "measured") if key in keys}
    return Demand(
        name="a",
        model=model(**keys),
        files=files("/m/a.gguf", made) if made else ModelFiles(path="x", weights=int(gib * GIB)),
        known=profile(made) if made else NO_PROFILE,
        **fields,
    )


def guessed(**fields):
    """Bytes of a model of which only the size is known."""
    slots = fields.pop("slots", 1)
    found = msgspec.structs.replace(ModelFiles(path="x", weights=8 * GIB), **fields)
    wanted = msgspec.structs.replace(demand(slots=slots), files=found)
    return wanted.takes(wanted.form(8192), ("cuda",)).devices[0].total


# --- contexts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "levels"),
    [
        ({"context": 30_000}, (30_000, 15_104, 7_680, 4_096)),
        ({"context": 16_384, "min_context": 16_384}, (16_384,)),
        ({"context": 8_192, "min_context": 100}, (8_192, 4_096, 2_048, 1_024, 512, 256, 100)),
        ({"context": 16_384, "failed_at": 8_192}, (4_096,)),
        ({"context": 16_384, "failed_at": 12_000}, (8_192, 4_096)),
        ({"context": 8_192, "failed_at": 4_096}, (4_096,)),
        ({}, (4_096,)),
    ],
    ids=["halved", "least", "to-the-least", "failed", "failed-between", "nothing-less", "open"],
)
def test_contexts_are_halved_down_to_the_least_and_below_what_failed(keys, levels):
    assert contexts(demand("llama31-8b", **keys)) == levels


def test_an_open_context_is_no_more_than_the_window_or_the_batch():
    assert contexts(demand("bge-large", role="embed")) == (512,)
    assert contexts(demand("bge-m3", role="embed")) == (2048,)
    assert contexts(demand("bge-m3", role="embed", batch=1024)) == (1024,)


def test_a_size_alone_is_planned_with_a_usual_context():
    assert contexts(demand()) == (DEFAULT_CONTEXT,)
    assert ceiling(demand()) == DEFAULT_CONTEXT


def test_the_most_is_what_was_asked_for_or_the_window_and_half_of_what_failed():
    assert ceiling(demand("llama31-8b")) == 131_072
    assert ceiling(demand("llama31-8b", context=8192)) == 8192
    assert ceiling(demand("llama31-8b", failed_at=40_000)) == 20_000
    assert ceiling(demand("llama31-8b", failed_at=5_000)) == 4_096


def test_nothing_smaller_is_left_when_the_least_has_failed():
    assert exhausted(demand("llama31-8b", context=8192, failed_at=4096))
    assert not exhausted(demand("llama31-8b", context=8192, failed_at=8192))
    assert not exhausted(demand("llama31-8b", context=8192))


# --- forms and settings ---------------------------------------------------------------------------


def test_an_input_of_a_pooled_model_fits_one_batch():
    wanted = demand("bge-m3", role="rerank", batch=1024, ubatch=512)
    form = wanted.form(8192)
    assert (form.batch, form.ubatch) == (1024, 1024)
    assert (wanted.form(600).batch, wanted.form(600).ubatch) == (600, 600)
    chat = demand("llama31-8b").form(8192)
    assert (chat.batch, chat.ubatch) == (2048, 512)


def test_what_a_person_wrote_is_in_the_form():
    assert demand("qwen3-30b-a3b", gpu_layers=7, cpu_moe=3).form(4096).gpu_layers == 7
    assert demand("qwen3-30b-a3b", gpu_layers=7, cpu_moe=3).form(4096).cpu_moe == 3
    assert demand("qwen3-30b-a3b", gpu_layers="all", cpu_moe="all").form(4096).gpu_layers is None
    assert demand("qwen3-30b-a3b", gpu_layers="all", cpu_moe="all").form(4096).cpu_moe is None


def test_arguments_that_change_memory_are_heard():
    plain = demand("gemma3-4b", slots=4)
    settings = plain.settings(plain.form(8192), ("cuda",))
    assert (settings.unified, settings.swa_full, settings.kv_offload) == (False, False, True)
    told = demand("gemma3-4b", slots=4, args=("-kvu", "--swa-full", "-nkvo"))
    settings = told.settings(told.form(8192), ("cuda",))
    assert (settings.unified, settings.swa_full, settings.kv_offload) == (True, True, False)


def test_both_halves_of_the_cache_have_their_types():
    def cache(kv_type):
        wanted = demand("llama31-8b", kv_type=kv_type)
        return wanted.takes(wanted.form(8192), ("cuda",)).devices[0].kv

    assert cache("f16") == GIB
    assert cache("q8_0") == GIB * 34 // 64
    assert cache(KvPair(k="q8_0", v="f16")) == (GIB + GIB * 34 // 64) // 2


def test_tokens_are_per_slot():
    one, four = demand("llama31-8b"), demand("llama31-8b", slots=4)
    assert four.takes(four.form(8192), ("cuda",)).devices[0].kv == 4 * GIB
    assert one.takes(one.form(8192), ("cuda",)).devices[0].kv == GIB


def test_a_wider_form_keeps_in_ram_what_is_there():
    wanted = demand("qwen3-30b-a3b")
    form = msgspec.structs.replace(
        wanted.form(4096), cpu_moe=5, gpu_layers=40, projector_on_device=False
    )
    assert wanted.widened(form, 8192) == msgspec.structs.replace(form, context=8192)


# --- bytes ----------------------------------------------------------------------------------------


def runs(wanted, form, split):
    """Bytes on each device by the prices."""
    prices = wanted.prices(form, ("cuda",) * len(split))
    found, at = [], 0
    for place, count in enumerate(split):
        last = place == len(split) - 1
        beside = prices.first if place == 0 else prices.last if last else prices.middle
        found.append(sum(prices.units[at : at + count]) + beside)
        at += count
    return found


def thirds(wanted):
    units = len(wanted.prices(wanted.form(8192), ("cuda",) * 3).units)
    return units // 2, units // 4, units - units // 2 - units // 4


@pytest.mark.parametrize(
    "made", ["llama31-70b", "gemma3-27b+mmproj-gemma3-27b", "qwen3next-80b", "glm45-air"]
)
@pytest.mark.parametrize("extra", [0, 100 * MIB])
def test_prices_add_up_to_what_a_split_takes(made, extra):
    wanted = demand(made, extra=extra)
    form, split = wanted.form(8192), thirds(wanted)
    taken = wanted.takes(form, ("cuda",) * 3, split).devices
    assert [share.total for share in taken] == runs(wanted, form, split)
    assert [share.layers for share in taken] == list(split)


def test_what_drafts_is_priced_at_the_most_that_a_device_has_of_it():
    wanted = demand("qwen3-32b+llama32-1b")
    form, units = wanted.form(8192), sum(thirds(wanted))
    for split in (thirds(wanted), (1, units - 1), (units - 1, 1), (units // 2, units - units // 2)):
        taken = wanted.takes(form, ("cuda",) * len(split), split).devices
        priced = runs(wanted, form, split)
        assert all(
            share.total <= most <= share.total + wanted.files.draft_bytes + GIB
            for share, most in zip(taken, priced, strict=True)
        )


def test_what_loads_took_beyond_the_estimate_is_added_on_every_device():
    plain, more, less = (demand("llama31-8b", extra=extra) for extra in (0, 300 * MIB, -(1 << 40)))
    form = plain.form(8192)

    def overhead(wanted):
        return [share.overhead for share in wanted.takes(form, ("cuda", "cuda"), (20, 13)).devices]

    assert overhead(more) == [size + 300 * MIB for size in overhead(plain)]
    assert overhead(less) == [0, 0]


def test_what_was_measured_is_believed_for_that_launch_and_no_other():
    plain = demand("llama31-8b")
    form = plain.form(8192)
    seen = Footprint(devices=(DeviceShare(weights=5 * GIB),), host=HostShare(), measured=True)
    wanted = demand(
        "llama31-8b",
        measured=(Measured(form=form, devices=("cuda",), split=None, taken=seen),),
    )
    assert wanted.takes(form, ("cuda",)) == seen
    assert wanted.takes(form, ("rocm",)) == plain.takes(form, ("rocm",))
    assert wanted.takes(wanted.form(4096), ("cuda",)) == plain.takes(plain.form(4096), ("cuda",))


def test_a_guess_grows_with_everything_that_is_loaded():
    base = guessed()
    assert base == 9 * GIB  # an eighth for cache and buffers
    assert guessed(draft_bytes=GIB) == base + GIB
    assert guessed(projector_bytes=GIB) == base + GIB * 7 // 5
    assert guessed(weights=16 * GIB) == 18 * GIB
    assert guessed(slots=8) == 10 * GIB
    assert guessed(weights=MIB) == 257 * MIB


def test_a_guess_knows_that_it_is_one_and_that_the_cpu_is_no_device():
    wanted = demand()
    taken = wanted.takes(wanted.form(8192), ())
    assert (taken.exact, taken.devices, taken.host.total) == (False, (), 9 * GIB)
    assert "size of the file" in taken.notes[0]
    beside = msgspec.structs.replace(wanted.files, projector_bytes=GIB, draft_bytes=GIB)
    wanted = msgspec.structs.replace(wanted, files=beside)
    assert wanted.takes(wanted.form(8192), ()).host.total == 11 * GIB + GIB * 2 // 5


def test_a_guess_is_split_by_its_shares():
    wanted = demand()
    three, one = wanted.takes(wanted.form(8192), ("cuda", "cuda"), (48, 16)).devices
    assert three.weights == 3 * one.weights
    assert three.weights + one.weights >= 9 * GIB


def test_a_header_that_cannot_be_read_is_a_problem_with_its_words():
    found = model_profile(ModelHeaders(model_error="/m/a.gguf: not a GGUF file"))
    assert (found.model, found.problem) == (None, "/m/a.gguf: not a GGUF file")
