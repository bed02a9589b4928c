"""Where the tensors of a model go: devices, RAM, once or twice."""

import msgspec
import pytest
from tests.gguf_models import header_of

from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.profile import Profile, profile_of
from pannier.gguf.footprint.values import Footprint, LaunchSettings
from pannier.gguf.header import Header, Tensor

BASE = LaunchSettings(context=4096)


def profile(name: str) -> Profile:
    return profile_of(header_of(name))


def launch(name: str, **launch: object) -> Footprint:
    return footprint(profile(name), msgspec.structs.replace(BASE, **launch))


def bytes_of(header: Header, *parts: str) -> int:
    return sum(t.size for t in header.tensors if any(part in t.name for part in parts))


def test_embeddings_stay_in_ram_and_all_else_is_on_the_device():
    header = header_of("llama31-8b")
    found = launch("llama31-8b")
    assert found.host.weights == bytes_of(header, "token_embd")
    assert found.devices[0].weights == bytes_of(header, "") - bytes_of(header, "token_embd")


def test_a_missing_output_is_the_embeddings_once_more_where_the_output_is():
    header = header_of("llama32-1b")
    found = launch("llama32-1b", devices=("cuda", "cuda"), split=(16, 1))
    assert found.devices[1].weights == pytest.approx(bytes_of(header, "token_embd"), rel=1e-3)
    assert found.host.weights == bytes_of(header, "token_embd")


def test_an_encoder_has_no_output_to_make_up():
    header = header_of("bge-large")
    found = launch("bge-large", pooling="embed")
    assert found.devices[0].weights + found.host.weights == bytes_of(header, "")


def test_on_the_cpu_nothing_is_there_twice():
    header = header_of("llama32-1b")
    assert launch("llama32-1b", devices=()).host.weights == bytes_of(header, "")


def test_layers_beyond_gpu_layers_are_in_ram():
    found = launch("llama31-8b", gpu_layers=10)
    header = header_of("llama31-8b")
    in_ram = [f"blk.{il}." for il in range(23)]
    ropes = bytes_of(header, "rope_freqs")
    assert found.host.weights == bytes_of(header, "token_embd", *in_ram) + ropes
    assert found.devices[0].layers == 10


def test_experts_in_ram_are_the_first_layers_or_all():
    header = header_of("qwen3-30b-a3b")
    experts = bytes_of(header, "_exps")
    plain, some, all_ = (launch("qwen3-30b-a3b", cpu_moe=count) for count in (0, 12, None))
    assert all_.host.weights - plain.host.weights == experts
    assert some.host.weights - plain.host.weights == bytes_of(
        header,
        *(f"blk.{il}.ffn_{part}_exps" for il in range(12) for part in ("up", "down", "gate")),
    )
    assert all_.devices[0].weights == plain.devices[0].weights - experts


def test_experts_that_all_share_stay_on_the_device():
    header = header_of("glm45-air")
    found = launch("glm45-air", cpu_moe=None)
    assert found.devices[0].weights > bytes_of(header, "_shexp") > 0


def test_mtp_layers_stay_in_the_file_until_they_are_asked_for():
    header = header_of("glm45-air")
    plain, drafting = launch("glm45-air"), launch("glm45-air", mtp=True)
    layer = bytes_of(header, "blk.46.")
    assert layer > 0
    assert drafting.devices[0].weights - plain.devices[0].weights == layer
    assert drafting.devices[0].draft > 0
    assert plain.devices[0].draft == 0


def test_rope_factors_are_on_every_device_with_layers():
    ropes = bytes_of(header_of("llama31-8b"), "rope_freqs")
    one = launch("llama31-8b")
    three = launch("llama31-8b", devices=("cuda",) * 3)
    assert sum(d.weights for d in three.devices) - one.devices[0].weights == 2 * ropes


def test_weights_are_mapped_or_resident_never_both():
    mapped, resident = (launch("llama31-8b", mapped=value).host for value in (True, False))
    assert (mapped.mapped, mapped.resident) == (resident.resident, resident.mapped)
    assert mapped.resident == 0


def test_tensors_of_layers_that_there_are_none_of_are_counted_all_the_same():
    header = header_of("llama32-1b")
    extra = Tensor(name="blk.400.ffn_up.weight", dims=(256, 256), kind=0, size=262_144)
    wider = msgspec.structs.replace(header, tensors=(*header.tensors, extra))
    more = footprint(profile_of(wider), BASE).devices[0].weights
    assert more - footprint(profile_of(header), BASE).devices[0].weights == 262_144


@pytest.mark.parametrize("name", ["mixtral-8x7b", "gpt-oss-20b", "llama4-scout"])
def test_a_mixture_says_that_it_has_experts(name):
    assert profile(name).has_experts
    assert profile(name).expert_layers == profile(name).shape.layers


def test_a_dense_model_has_none():
    assert not profile("llama31-8b").has_experts
    assert profile("llama31-8b").expert_layers == 0
