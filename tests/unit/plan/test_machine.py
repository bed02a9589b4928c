"""Rooms: what models may take of each device and of RAM, and what forms need of them."""

import msgspec
from tests.fakes.rigs import files, fleet, models, profile, rig
from tests.fakes.values import GIB, machine, model

from pannier.devices.inventory import HostMemory, with_reserves
from pannier.plan.demand import Demand
from pannier.plan.machine import UNKNOWN_ROOM, Pin, Sizes, machine_of

MIB = 2**20


def rooms(inventory, reserve, ours=0):
    return machine_of(with_reserves(inventory, reserve), reserve, ours)


def demand(made, **keys):
    return Demand(
        name="a", model=model(**keys), files=files("/m/a.gguf", made), known=profile(made)
    )


# --- room -----------------------------------------------------------------------------------------


def test_the_reserve_is_kept_free_on_every_device():
    assert rooms(machine(8, 4), GIB).capacity == (7 * GIB, 3 * GIB)


def test_a_reserve_may_be_named_by_label_or_by_uuid():
    inventory = machine(8, 8, 8)
    second = msgspec.structs.replace(inventory.devices[1], uuid="GPU-1")
    devices = (inventory.devices[0], second, inventory.devices[2])
    inventory = msgspec.structs.replace(inventory, devices=devices)
    found = rooms(inventory, {"CUDA0": 2 * GIB, "GPU-1": 3 * GIB})
    assert found.capacity == (6 * GIB, 5 * GIB, 8 * GIB - 512 * MIB)


def test_a_reserve_above_what_there_is_leaves_nothing():
    assert rooms(machine(8), 64 * GIB).capacity == (0,)
    assert rooms(machine(ram_gib=8), 1024 * GIB).capacity == (0,)


def test_what_others_hold_is_no_room_and_what_ours_hold_is():
    assert rooms(rig(24, used=(10,), ours=(8,)), 0).capacity == (14 * GIB,)


def test_ram_is_what_is_available_and_what_our_own_models_hold_of_it():
    inventory = rig(8, ram_gib=64, available_gib=20)
    assert rooms(inventory, GIB).host == 19 * GIB
    assert rooms(inventory, GIB, 30 * GIB).host == 49 * GIB
    assert rooms(inventory, GIB, 500 * GIB).host == 63 * GIB
    assert rooms(inventory, {"host": 2 * GIB}).host == 18 * GIB


def test_ram_that_is_not_known_refuses_nothing():
    inventory = msgspec.structs.replace(machine(8), host=HostMemory())
    assert rooms(inventory, GIB).host == UNKNOWN_ROOM


def test_a_machine_without_devices_has_its_ram_as_the_one_room():
    found = rooms(machine(ram_gib=8), GIB)
    assert (found.names, found.capacity, found.dedicated) == (("host",), (7 * GIB,), False)


# --- needs ----------------------------------------------------------------------------------------


def test_on_unified_memory_what_stays_in_ram_comes_out_of_the_same_room():
    wanted = demand("llama31-8b")
    form = wanted.form(8192)
    own, ram = Sizes(rooms(rig(24), 0)).alone(wanted, form)
    both, none = Sizes(rooms(rig(24, unified=True), 0)).alone(wanted, form)
    assert ram > 0
    assert (both, none) == ((own[0] + ram,), 0)


def test_what_is_put_on_no_device_takes_unified_memory_all_the_same():
    wanted = demand("llama31-8b", gpu_layers=0)
    form = wanted.form(8192)
    apart = Sizes(rooms(rig(24), 0)).item(wanted, form)
    assert (apart.ways, apart.host) == (((),), wanted.takes(form, ()).host.total)
    ((way,),) = Sizes(rooms(rig(24, unified=True), 0)).item(wanted, form).ways
    assert way[1] > wanted.files.weights


def test_models_in_ram_and_on_the_device_do_not_take_unified_memory_twice():
    cast = fleet(
        models(a="context = 4096", b="context = 4096\ngpu_layers = 0"),
        {"a": "qwen3-30b-a3b", "b": "qwen3-30b-a3b"},
    )
    apart = cast.plan(rig(24, ram_gib=24))
    assert not any(group.swap for group in apart.groups)
    shared = cast.plan(rig(24, unified=True, ram_gib=24))
    assert [group.members for group in shared.groups if group.swap] == [("a", "b")]


def test_a_model_is_split_only_where_no_device_holds_it():
    wanted = demand("qwen3-32b")
    form = wanted.form(4096)
    alone = Sizes(rooms(rig(12, 24), 0)).item(wanted, form)
    assert [way[0][0] for way in alone.ways] == [1]
    assert alone.wide is None
    assert Sizes(rooms(rig(12, 12), 0)).item(wanted, form).wide is not None
    assert Sizes(rooms(rig(4, 4), 0)).item(wanted, form).wide is None


def test_instances_of_a_card_and_indivisible_models_are_not_split():
    wanted = demand("qwen3-32b")
    assert Sizes(rooms(rig(12, 12, mig=(0, 1)), 0)).item(wanted, wanted.form(4096)).wide is None
    one = demand("gemma4-e4b:Q8_0")
    assert Sizes(rooms(rig(4, 4), 0)).item(one, one.form(4096)).wide is None


def test_a_pin_takes_exactly_its_devices_in_its_order():
    wanted = demand("llama31-8b")
    sizes = Sizes(rooms(rig(24, 24, 24), 0))
    form = wanted.form(4096)
    (way,) = sizes.item(wanted, form, Pin(devices=(2, 0), split=(20, 13))).ways
    assert [at for at, _ in way] == [2, 0]
    taken = wanted.takes(form, ("cuda", "cuda"), (20, 13)).devices
    assert [need for _, need in way] == [share.total for share in taken]
    assert sizes.item(wanted, form, Pin(devices=(1,))).ways[0][0][0] == 1


def test_an_even_split_leaves_the_devices_equally_full():
    wanted = demand("llama31-70b")
    sizes = Sizes(rooms(rig(48, 24), 0))
    large, small = sizes.even(wanted, wanted.form(4096), (0, 1))
    assert large + small == 81
    assert abs(large - 2 * small) <= 3
    assert sizes.even(demand("glm45-air"), demand("glm45-air").form(4096), (0, 1)) is None


def test_where_it_does_not_fit_anyway_each_device_gets_its_share_and_one_layer_at_least():
    sizes = Sizes(rooms(rig(48, 24, 0.25), 0))
    wanted = demand("glm45-air")
    layers = sizes.proportional(wanted, wanted.form(4096), (0, 1, 2))
    assert sum(layers) == len(wanted.prices(wanted.form(4096), ("cuda",) * 3).units)
    assert min(layers) >= 1
    assert layers[0] > layers[1] > layers[2]
