"""The parts of a footprint beside weights and cache: RAM, drafts, pipelines, backends, notes."""

import msgspec
import pytest
from tests.gguf_models import header_of

from pannier.gguf.footprint.backend import default_overhead, has_flash_attention, pipelines
from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.launch import is_fused
from pannier.gguf.footprint.prices import prices
from pannier.gguf.footprint.profile import Profile, profile_of, trained_context
from pannier.gguf.footprint.projector import Projector, projector_of
from pannier.gguf.footprint.values import Footprint, LaunchSettings

MIB = 1 << 20
BASE = LaunchSettings(context=8192)


def profile(name: str) -> Profile:
    return profile_of(header_of(name))


def launch(name: str, **launch: object) -> Footprint:
    return footprint(profile(name), msgspec.structs.replace(BASE, **launch))


def test_without_devices_everything_is_in_ram():
    found = launch("llama31-8b", devices=())
    assert found.devices == ()
    assert found.host.kv == launch("llama31-8b").devices[0].kv
    assert found.host.compute > 100 * MIB


def test_a_cache_that_stays_in_ram_is_not_on_the_device():
    here, there = launch("llama31-8b"), launch("llama31-8b", kv_offload=False)
    assert there.devices[0].kv == 0
    assert there.host.kv == here.devices[0].kv


def test_a_process_takes_something_on_every_device_that_it_sees():
    found = launch("llama31-8b", devices=("cuda", "cuda"), split=(1, 0))
    assert [d.overhead for d in found.devices] == [512 * MIB] * 2
    assert (found.devices[1].weights, found.devices[1].compute) == (0, 0)
    assert launch("llama31-8b", overhead=7).devices[0].overhead == 7


def test_over_rpc_the_context_is_the_other_sides():
    assert default_overhead("rpc") == default_overhead("no such backend") == 0


@pytest.mark.parametrize(
    ("backends", "build", "piped"),
    [
        (("cuda", "cuda"), 11434, True),
        (("cuda", "vulkan"), 11434, True),
        (("rpc", "rpc"), 11434, True),
        (("rpc", "cuda"), 10435, False),
        (("cuda", "cpu"), 11434, False),
        (("cuda",), 11434, False),
    ],
)
def test_devices_work_in_a_pipeline_if_all_can(backends, build, piped):
    assert pipelines(backends, build) is piped


@pytest.mark.parametrize(
    "other",
    [{"gpu_layers": 20}, {"kv_offload": False}, {"build": 10_435, "devices": ("rpc", "rpc")}],
)
def test_no_pipeline_no_copies(other):
    two = {"devices": ("cuda", "cuda")}
    copied = launch("llama31-8b", **two, context=65_536).devices[1].compute
    single = launch("llama31-8b", **{**two, **other}, context=65_536).devices[1].compute
    assert copied - single > 2 * 64 * MIB  # three more masks of 64 MiB, but for kv_offload's rows


def test_experts_in_ram_end_the_pipeline():
    two = {"devices": ("cuda", "cuda"), "context": 65_536}
    piped = launch("qwen3-30b-a3b", **two).devices[1].compute
    assert piped - launch("qwen3-30b-a3b", **two, cpu_moe=None).devices[1].compute > 150 * MIB


def test_a_device_that_fetches_experts_from_ram_holds_the_largest_of_them():
    largest = profile("glm45-air").largest_expert
    cuda, rpc = (
        launch("glm45-air", cpu_moe=None, devices=(backend,)).devices[0].compute
        for backend in ("cuda", "rpc")
    )
    assert cuda - rpc >= largest > 300 * MIB


@pytest.mark.parametrize(
    ("backend", "sizes", "has"),
    [
        ("cuda", (128, 128, 4), True),
        ("cuda", (192, 128, 1), False),
        ("cuda", (192, 128, 16), True),
        ("cuda", (576, 512, 128), True),
        ("cuda", (576, 512, 1), False),
        ("cuda", (100, 100, 1), False),
        ("rocm", (64, 64, 1), True),
        ("metal", (576, 512, 128), True),
        ("metal", (100, 100, 1), False),
        ("vulkan", (100, 100, 1), False),
        ("vulkan", (192, 128, 1), True),
        ("rpc", (100, 100, 1), True),
    ],
)
def test_flash_attention_is_there_for_some_sizes(backend, sizes, has):
    assert has_flash_attention(backend, *sizes) is has


def test_flash_attention_by_itself_depends_on_the_heads():
    legacy = profile("deepseek-v2-lite-nomla")  # heads of 192 and 128, each with its own KV
    assert not is_fused(legacy, BASE)
    assert is_fused(legacy, msgspec.structs.replace(BASE, flash_attention="on"))
    assert is_fused(legacy, msgspec.structs.replace(BASE, devices=("rpc",)))
    assert is_fused(profile("deepseek-v2-lite"), BASE)
    assert not is_fused(profile("grok-1"), msgspec.structs.replace(BASE, flash_attention="on"))


def test_without_flash_attention_the_scores_are_in_the_buffer():
    on, off = (launch("llama31-8b", flash_attention=f).devices[0].compute for f in ("on", "off"))
    scores = 512 * 8192 * 32 * 4
    assert scores - 150 * MIB < off - on <= scores + 150 * MIB


def test_cuda_makes_a_quantized_cache_anew_for_one_layer():
    plain, quantized = (
        launch("llama31-8b", context=131_072, kv_k=kind, kv_v=kind).devices[0].compute
        for kind in ("f16", "q8_0")
    )
    layer = 131_072 * 2 * 2 * 8 * 128
    assert 0.7 * layer < quantized - plain <= layer


def test_quantized_values_without_flash_attention_are_told():
    found = launch("llama31-8b", flash_attention="off", kv_v="q8_0")
    assert any("refuses a quantized cache" in note for note in found.notes)
    assert launch("llama31-8b", kv_v="q8_0").notes == ()


def test_an_embedder_reserves_logits_for_a_whole_batch_and_a_chat_one_row_per_slot():
    chat, embed = (
        launch("qwen3-embed-06b", pooling=p).devices[0].compute for p in ("none", "embed")
    )
    assert embed - chat > 200 * MIB
    wide = launch("qwen3-embed-06b", pooling="embed", ubatch=2048).devices[0].compute
    assert wide > 1200 * MIB


def test_prompt_cache_and_checkpoints_are_a_servers_own():
    found = launch("gemma3-4b", cache_ram=2048 * MIB, checkpoints=8, slots=2).host
    assert found.prompt_cache == 2048 * MIB
    assert found.checkpoints == 8 * 2 * 29 * 1536 * 2 * 2 * 4 * 256
    plain = launch("llama31-8b", checkpoints=8).host
    assert plain.checkpoints == plain.prompt_cache == 0
    embed = launch("qwen3-embed-06b", pooling="embed", cache_ram=MIB).host
    assert embed.prompt_cache == 0


def test_a_draft_lies_beside_its_target_with_the_same_context():
    target, draft = profile("llama31-8b"), profile("llama32-1b")
    settings = msgspec.structs.replace(BASE, kv_k="q8_0", kv_v="q8_0", devices=("cuda", "cuda"))
    plain = footprint(target, settings)
    both = footprint(target, settings, draft=draft)
    alone = footprint(draft, msgspec.structs.replace(BASE, devices=("cuda", "cuda"), overhead=0))
    assert [d.draft for d in both.devices] == [d.total for d in alone.devices]
    assert both.host.draft == alone.host.total - alone.host.prompt_cache - alone.host.checkpoints
    assert [d.weights for d in both.devices] == [d.weights for d in plain.devices]


def test_a_projector_is_on_the_first_device_or_in_ram():
    vision = projector_of(header_of("mmproj-gemma3-4b"))
    settings = msgspec.structs.replace(BASE, devices=("cuda", "cuda"))
    on = footprint(profile("gemma3-4b"), settings, projector=vision)
    size = vision.weights + vision.compute
    assert [d.projector for d in on.devices] == [size, 0]
    off = msgspec.structs.replace(settings, projector_on_device=False)
    assert footprint(profile("gemma3-4b"), off, projector=vision).host.projector == size
    none = msgspec.structs.replace(settings, devices=())
    assert footprint(profile("gemma3-4b"), none, projector=vision).host.projector == size


def test_the_projector_of_gemma_is_what_the_engine_says():
    vision = projector_of(header_of("mmproj-gemma3-4b"))
    assert vision.exact
    assert vision.compute == pytest.approx(121.25 * MIB)  # seen with b11434
    assert vision.weights == pytest.approx(810.5 * MIB, rel=1e-4)


def test_a_projector_that_does_not_say_its_size_is_a_guess_that_is_told():
    header = header_of("mmproj-gemma3-4b")
    bare = projector_of(msgspec.structs.replace(header, metadata={}))
    assert not bare.exact
    assert bare.compute >= 256 * MIB
    assert bare.notes
    text = footprint(profile("gemma3-4b"), BASE, projector=bare)
    assert not text.exact
    assert set(bare.notes) <= set(text.notes)


@pytest.mark.parametrize(("kind", "patches"), [("qwen2.5vl_merger", 16_384), ("pixtral", 4096)])
def test_a_projector_of_pictures_of_any_size_is_ready_for_the_largest(kind, patches):
    header = header_of("mmproj-gemma3-4b")
    metadata = {**header.metadata, "clip.projector_type": kind}
    found = projector_of(msgspec.structs.replace(header, metadata=metadata))
    assert isinstance(found, Projector)
    least = patches if kind != "pixtral" else (896 // 14) ** 2
    assert found.compute >= 4 * least * (4304 + 3 * 1152)


def test_a_model_whose_layers_share_a_cache_must_not_be_split():
    found = launch("gemma4-e4b")
    assert found.indivisible
    assert "copy" in found.indivisible
    assert launch("gemma3-4b").indivisible is None


def test_a_profile_says_what_a_planner_asks():
    llama, bge, mamba = profile("llama31-8b"), profile("bge-large"), profile("mamba2-27b")
    assert (llama.architecture, llama.units, trained_context(llama)) == ("llama", 33, 131_072)
    assert (llama.has_kv, bge.has_kv, mamba.has_kv) == (True, False, False)
    assert (llama.is_causal, bge.is_causal) == (True, False)
    assert (llama.embeds, bge.embeds, profile("qwen3-embed-06b").embeds) == (False, True, True)
    assert profile("qwen3-rerank-06b").reranks
    assert profile("glm45-air").drafts
    assert not llama.drafts


def test_prices_of_units_and_places_are_a_footprint():
    settings = msgspec.structs.replace(BASE, devices=("cuda",) * 3)
    found = footprint(profile("llama31-8b"), msgspec.structs.replace(settings, split=(10, 20, 3)))
    price = prices(profile("llama31-8b"), settings)
    first, middle, last = (d.total for d in found.devices)
    assert first == sum(price.units[:10]) + price.first
    assert middle == sum(price.units[10:30]) + price.middle
    assert last == sum(price.units[30:]) + price.last
    one = footprint(profile("llama31-8b"), BASE)
    assert one.devices[0].total == sum(price.units) + price.alone


def test_without_devices_there_is_nothing_to_price():
    assert prices(profile("llama31-8b"), msgspec.structs.replace(BASE, devices=())).units == ()


def test_a_second_context_drafts_with_the_mtp_layers_where_the_last_layer_is():
    settings = msgspec.structs.replace(BASE, mtp=True, devices=("rpc", "rpc"), kv_k="q8_0")
    found = footprint(profile("glm45-air"), settings)
    assert found.devices[0].draft == 0
    cache = 8192 * 2 * 2 * 8 * 128  # one layer, in f16 whatever the other types; seen: 32 MiB
    assert cache + 244 * MIB <= found.devices[1].draft <= cache + 244 * MIB + 64 * MIB
