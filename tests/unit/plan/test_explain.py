"""Why a model is not served or not as asked, in words that have numbers and a way out."""

from tests.fakes.rigs import fleet, models, rig
from tests.fakes.values import GIB

MORE_ROOM = "another model without `keep`, or less memory used by other programs"


def refused(made, inventory, keys="context = 4096", gib=4.0):
    plan = fleet(models(a=keys), {"a": made} if made else {}, gib).plan(inventory)
    assert plan.instances == ()
    (found,) = plan.unplaceable
    return found


def test_what_it_needs_is_told_by_parts_and_what_there_is_by_device():
    found = refused("qwen3-32b", rig(16, unified=True, ram_gib=16))
    assert found.reason == "it needs 19.68 GiB, and this machine has 15.50 GiB for it"
    assert sum(found.parts.values()) == found.need
    assert set(found.parts) == {"weights", "kv", "compute", "overhead"}
    assert found.have_by_device == {"CUDA0": found.have}


def test_a_quantisation_is_told_by_the_size_that_its_file_may_have():
    found = refused("qwen3-32b", rig(16, unified=True, ram_gib=16))
    assert found.ways_out == (
        "a smaller quantisation: a file of at most 14.22 GiB instead of 18.40 GiB",
        MORE_ROOM,
    )


def test_what_no_quantisation_makes_fit_is_another_model():
    found = refused("glm45-air", rig(8, unified=True, ram_gib=8))
    assert found.ways_out == ("a smaller model", MORE_ROOM)


def test_a_smaller_context_is_offered_where_it_is_enough():
    keys = "context = 32768\nmin_context = 32768"
    found = refused("phi35-mini", rig(ram_gib=8), keys)
    assert found.ways_out[0] == "a context of 2048 tokens (`context` and `min_context`)"


def test_a_smaller_cache_and_fewer_slots_are_offered_where_they_are_enough():
    keys = "context = 32768\nmin_context = 32768\nslots = 2"
    found = refused("llama31-8b", rig(ram_gib=11), keys)
    assert found.ways_out[1:3] == (
        'a smaller KV cache (`kv_type = "q8_0"`)',
        "fewer slots (`slots = 1`)",
    )


def test_a_size_alone_is_refused_with_what_can_be_said_of_it():
    found = refused(None, rig(ram_gib=8), "", 40.0)
    assert found.need == 45 * GIB
    assert found.ways_out == ("a smaller model", MORE_ROOM)


def test_missing_ram_is_told_apart_from_missing_devices():
    found = refused("llama31-8b", rig(24, ram_gib=0.6))
    assert found.reason == (
        "it needs 0.31 GiB of RAM beside its devices, and this machine has 0.10 GiB for it"
    )
    assert set(found.have_by_device) == {"host"}
    assert found.need - found.have > 0


def test_missing_ram_makes_no_model_tight_that_the_devices_hold_by_a_split():
    plan = fleet(models(a="context = 4096"), {"a": "llama31-70b"}).plan(rig(24, 24, ram_gib=0.6))
    assert plan.tight == {}
    assert "of RAM beside its devices" in plan.unplaceable[0].reason


def test_the_least_context_is_a_limit_that_is_kept():
    keys = "context = 65536\nmin_context = 65536"
    assert refused("llama31-8b", rig(ram_gib=10), keys).need > 10 * GIB


def test_a_context_says_whether_it_is_for_itself_or_for_others():
    text = models(a="context = 32768", b="context = 32768")
    alone = fleet(models(a="context = 65536"), {"a": "llama31-8b"}).plan(rig(8))
    assert alone.reasons[0].endswith("instead of 65536 tokens: with more it does not fit")
    both = fleet(text, {"a": "llama31-8b", "b": "llama31-8b"}).plan(rig(16))
    assert not any(group.swap for group in both.groups)
    assert any(each.endswith("fewer models could stay in memory") for each in both.reasons)


def test_models_that_share_say_where():
    names = {"a": "phi4-14b", "b": "phi4-14b"}
    plan = fleet(models(**dict.fromkeys(names, "context = 4096")), names).plan(rig(16))
    assert plan.reasons == ("a, b share CUDA0: not all fit at once",)
    host = fleet(models(**dict.fromkeys(names, "context = 4096")), names).plan(rig(ram_gib=16))
    assert host.reasons == ("a, b share the RAM: not all fit at once",)


def test_what_does_not_fit_and_is_loaded_says_by_how_much():
    plan = fleet(models(a='context = 4096\ngpu_layers = "all"'), {"a": "qwen3-32b"}).plan(rig(12))
    assert plan.reasons == ("a does not fit CUDA0: 8.18 GiB are missing",)
