"""What is left over becomes context: whose, how much, and what it must not cost."""

from tests.fakes.rigs import fleet, models, rig
from tests.fakes.values import GIB

from pannier.plan.demand import Demand

RESERVE = 512 * 2**20


def contexts_of(plan):
    return {instance.id: instance.context for instance in plan.instances}


def test_an_open_context_takes_what_is_left_to_the_step():
    cast = fleet(models(a=""), {"a": "llama31-8b"})
    (instance,) = cast.plan(rig(12)).instances
    room = 12 * GIB - RESERVE
    assert instance.context % 1024 == 0
    wanted = Demand(
        name="a", model=cast.config.models["a"], files=cast.files["a"], known=cast.profiles["a"]
    )
    here, more = (
        wanted.takes(wanted.form(context), ("cuda",)).devices[0].total
        for context in (instance.context, instance.context + 1024)
    )
    assert here <= room < more


def test_an_open_context_ends_at_the_trained_window():
    assert contexts_of(fleet(models(a=""), {"a": "qwen3-4b"}).plan(rig(80))) == {"a": 40960}


def test_everybody_doubles_before_anybody_fills():
    plan = fleet(models(a="", b=""), {"a": "llama31-8b", "b": "llama31-8b"}).plan(rig(24))
    # Of 12.8 GiB for caches, 8 go to both alike: twice 4 more is too much, and the rest is a's.
    assert contexts_of(plan) == {"a": 77824, "b": 32768}


def test_what_was_asked_for_grows_before_what_is_open():
    text = models(a="", b="context = 65536")
    found = contexts_of(fleet(text, {"a": "llama31-8b", "b": "llama31-8b"}).plan(rig(20)))
    alone = contexts_of(fleet(text, {"a": "llama31-8b", "b": "llama31-8b"}).plan(rig(80)))
    assert alone["b"] == 65536
    assert found["b"] > found["a"]


def test_what_was_asked_for_is_never_exceeded():
    assert contexts_of(fleet(models(a="context = 8192"), {"a": "llama31-8b"}).plan(rig(80))) == {
        "a": 8192
    }


def test_an_open_embedder_grows_to_its_batch_and_not_to_its_window():
    text = models(e='role = "embed"\nbatch = 4096')
    (instance,) = fleet(text, {"e": "bge-m3"}).plan(rig(24)).instances
    assert (instance.context, instance.batch, instance.ubatch) == (4096, 4096, 4096)


def test_a_member_of_a_swap_set_grows_into_the_room_of_the_set():
    text = models(a="context = 4096", b="")
    plan = fleet(text, {"a": "qwen3-32b", "b": "gpt-oss-20b"}).plan(rig(24))
    (group,) = plan.groups
    assert group.swap
    assert plan.instance("b").context == 131072
    assert plan.instance("b").device_bytes[0].total <= 24 * GIB - RESERVE


def test_an_open_context_leaves_half_of_the_memory_that_all_programs_share():
    cast = fleet(models(a=""), {"a": "llama31-8b"})
    (own,) = cast.plan(rig(16)).instances
    (shared,) = cast.plan(rig(16, unified=True, ram_gib=16)).instances
    assert 4096 < shared.context < own.context
    taken = shared.device_bytes[0].total + shared.host_bytes.total
    assert taken <= 16 * GIB - RESERVE


def test_an_open_context_that_runs_is_kept_while_it_fits():
    cast = fleet(models(a="", b='role = "embed"'), {"a": "llama31-8b", "b": "bge-m3"})
    running = cast.less("b").plan(rig(24))
    plan = cast.plan(rig(24, 4), running=running)
    assert plan.instance("a") == running.instance("a")


def test_an_open_context_that_runs_gives_way_to_a_model_that_has_nowhere_else():
    cast = fleet(models(a="", b='role = "embed"'), {"a": "llama31-8b", "b": "bge-m3"})
    running = cast.less("b").plan(rig(12))
    plan = cast.plan(rig(12), running=running)
    assert not any(group.swap for group in plan.groups)
    assert 4096 <= plan.instance("a").context < running.instance("a").context


def test_after_out_of_memory_an_open_context_is_half_of_what_failed_at_most():
    cast = fleet(models(a=""), {"a": "llama31-8b"})
    first = cast.plan(rig(12)).instances[0].context
    again = cast.plan(rig(12), failed_at={"a": first})
    assert again.instances[0].context <= first // 2


def test_a_split_that_runs_stays_when_a_small_model_comes_and_goes():
    cast = fleet(
        models(a="context = 8192", e='role = "embed"'), {"a": "llama31-70b", "e": "bge-m3"}
    )
    running = cast.less("e").plan(rig(24, 24))
    plan = cast.plan(rig(24, 24), running=running)
    assert len(running.instance("a").devices) == 2
    assert plan.instance("a") == running.instance("a")
    assert cast.less("e").plan(rig(24, 24), running=plan).instances == running.instances


def test_a_swap_set_that_runs_keeps_its_members():
    names = ["a", "b", "c"]
    cast = fleet(models(**dict.fromkeys(names, "context = 8192")), dict.fromkeys(names, "phi4-14b"))
    running = cast.plan(rig(24))
    assert any(group.swap for group in running.groups)
    assert cast.plan(rig(24), running=running).groups == running.groups
