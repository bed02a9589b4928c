"""Cells, rows and states: what grows with the context and what does not."""

import pytest
from tests.gguf_models import header_of

from pannier.gguf.footprint.cache import cells_of, layer_bytes, row_bytes, snapshot_bytes
from pannier.gguf.footprint.keys import Keys
from pannier.gguf.footprint.shape import Shape, shape_of
from pannier.gguf.footprint.values import LaunchSettings


def shape(name: str) -> Shape:
    return shape_of(Keys(header_of(name)))


def total(name: str, **launch: object) -> int:
    settings = LaunchSettings(**{"context": 8192, **launch})  # type: ignore[arg-type]
    model = shape(name)
    fused = settings.flash_attention != "off"
    return sum(layer_bytes(model, settings, cells_of(model, settings), fused))


def test_a_row_of_keys_and_values_per_token_and_layer():
    assert total("llama31-8b") == 32 * 8192 * 2 * 2 * 8 * 128


def test_slots_of_their_own_cost_their_context_each_and_shared_ones_one():
    assert total("llama31-8b", slots=4) == 4 * total("llama31-8b")
    assert total("llama31-8b", slots=4, unified=True) == total("llama31-8b")


def test_cells_come_in_steps_of_256_for_each_slot():
    settings = LaunchSettings(context=6667, slots=3)
    cells = cells_of(shape("llama31-8b"), settings)
    assert (cells.per_stream, cells.streams) == (6912, 3)
    settings = LaunchSettings(context=100)
    assert cells_of(shape("llama31-8b"), settings).per_stream == 256


def test_layers_that_slide_keep_their_window_and_a_batch():
    settings = LaunchSettings(context=32768)
    cells = cells_of(shape("gemma3-4b"), settings)
    assert cells.narrow == 1024 + 512
    several = LaunchSettings(context=32768, slots=4, unified=True)
    assert cells_of(shape("gemma3-4b"), several).narrow == 4 * 1024 + 512
    full = LaunchSettings(context=32768, swa_full=True)
    assert cells_of(shape("gemma3-4b"), full).narrow == 32768


@pytest.mark.parametrize(("kind", "size"), [("q8_0", 34 / 64), ("q4_0", 18 / 64), ("f32", 2)])
def test_a_type_costs_its_blocks(kind, size):
    assert total("llama31-8b", kv_k=kind, kv_v=kind) == size * total("llama31-8b")


def test_a_type_that_is_none_counts_as_the_default_and_half_a_block_as_a_whole():
    assert row_bytes("no such type", 64) == 128
    assert row_bytes("q8_0", 33) == 2 * 34


def test_mla_keeps_one_row_and_no_values():
    assert total("deepseek-v2-lite") == 27 * 8192 * 576 * 2
    assert total("deepseek-v2-lite-nomla") == 27 * 8192 * 16 * (192 + 128) * 2


def test_a_recurrent_state_is_as_large_for_any_context_and_there_is_one_per_slot():
    assert total("mamba2-27b") == total("mamba2-27b", context=131072)
    assert total("mamba2-27b", slots=4) == 4 * total("mamba2-27b")


def test_hybrids_have_both():
    model = shape("granite4-h-tiny")
    attending = [il for il, cached in enumerate(model.cached) if cached]
    assert attending == [5, 15, 25, 35]
    assert all(model.recurrent[il] != model.cached[il] for il in range(model.layers))
    both = shape("falcon-h1-7b")
    assert all(both.cached)
    assert all(both.recurrent)


@pytest.mark.parametrize("name", ["bge-large", "nomic-embed-v15", "jina-v3", "modernbert-base"])
def test_encoders_keep_nothing(name):
    assert total(name) == 0


@pytest.mark.parametrize("name", ["qwen3-embed-06b", "qwen3-rerank-06b"])
def test_embedders_of_the_causal_kind_do_keep_a_cache(name):
    assert total(name, pooling="embed") == 28 * 8192 * 2 * 2 * 8 * 128


def test_layers_that_share_a_cache_own_none():
    model = shape("gemma4-e4b")
    assert sum(model.cached) == 24
    assert model.shared_from == 24
    assert sum(shape("gemma3n-e4b").cached) == 20


def test_without_flash_attention_values_are_as_wide_in_every_layer_as_in_the_widest():
    assert total("gemma4-31b", flash_attention="off") > total("gemma4-31b")
    assert total("llama31-8b", flash_attention="off") == total("llama31-8b")


def test_batches_are_no_larger_than_the_context_and_one_for_embeddings():
    cells = cells_of(shape("llama31-8b"), LaunchSettings(context=256))
    assert (cells.batch, cells.ubatch) == (256, 256)
    pooled = LaunchSettings(context=8192, ubatch=1024, pooling="embed")
    assert cells_of(shape("qwen3-embed-06b"), pooled).batch == 1024
    wide = LaunchSettings(context=512, ubatch=2048, pooling="embed")
    assert cells_of(shape("bge-large"), wide).ubatch == 2048


def test_a_drafting_hybrid_keeps_a_state_for_every_drafted_token():
    hybrid = shape("qwen35-27b")
    plain, drafting = (
        sum(layer_bytes(hybrid, settings, cells_of(hybrid, settings), True))
        for settings in (LaunchSettings(context=256), LaunchSettings(context=256, mtp=True))
    )
    states = 4 * hybrid.state * sum(hybrid.recurrent)
    assert drafting - plain == 3 * states


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("llama31-8b", 0),
        ("deepseek-v2-lite", 0),
        ("mamba2-27b", 64 * 4 * (3 * (5120 + 2 * 128) + 128 * 5120)),
        ("gemma3-4b", 29 * 1536 * 2 * 2 * 4 * 256),
    ],
)
def test_a_checkpoint_holds_what_cannot_be_rolled_back(name, size):
    settings = LaunchSettings(context=8192)
    assert snapshot_bytes(shape(name), settings, cells_of(shape(name), settings)) == size


def test_a_full_cache_needs_no_checkpoint():
    settings = LaunchSettings(context=8192, swa_full=True)
    model = shape("gemma3-4b")
    assert snapshot_bytes(model, settings, cells_of(model, settings)) == 0


@pytest.mark.parametrize("odd", [0, -1, 2**40])
def test_numbers_that_make_no_sense_count_as_the_nearest_that_do(odd):
    settings = LaunchSettings(context=odd, slots=odd, batch=odd, ubatch=odd)
    cells = cells_of(shape("llama31-8b"), settings)
    assert min(cells.batch, cells.ubatch, cells.per_stream, cells.streams) > 0
