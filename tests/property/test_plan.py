"""Whatever the config and the machine: the plan is sound, complete and the same every time."""

from collections import Counter

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.values import GIB, machine

from pannier.config.schema import Config, Memory, Model, Placement, Size
from pannier.devices.inventory import HostMemory, Inventory
from pannier.gguf.model_files import ModelFiles
from pannier.plan.placement import make_plan
from pannier.plan.roles import ROLES
from pannier.plan.values import Plan

calm = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])

NAMES = ["a", "b", "c", "d", "swap-CUDA0", "swap-host", "e/f", "g#h"]
SIZES = st.one_of(st.just(0.0), st.sampled_from([0.5, 3.0, 6.0, 11.0, 20.0, 40.0, 200.0]))


@st.composite
def machines(draw: st.DrawFn) -> Inventory:
    cards = draw(st.lists(st.sampled_from([0.25, 3.0, 12.0, 24.0, 80.0]), max_size=5))
    prefix = draw(st.sampled_from(["CUDA", "RPC", "Vulkan"]))
    made = machine(*cards, prefix=prefix, ram_gib=draw(st.sampled_from([1, 16, 64, 512])))
    return msgspec.structs.replace(made, host=HostMemory()) if draw(st.booleans()) else made


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    wanted = st.one_of(st.integers(0, 5), st.sampled_from(["CUDA0", "CUDA1", "RPC0", "nowhere"]))
    devices = tuple(draw(st.lists(wanted, min_size=1, max_size=3, unique=True)))
    weights = st.integers(1, 9)
    split = draw(
        st.none() | st.lists(weights, min_size=len(devices), max_size=len(devices)).map(tuple)
    )
    replicas = draw(st.integers(1, 4))
    return Placement(devices=devices, tensor_split=split, replicas=replicas)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Config, Inventory, dict[str, ModelFiles]]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6))
    models, files = {}, {}
    for name in names:
        models[name] = Model(
            path=f"/m/{name}.gguf",
            role=draw(st.sampled_from(list(ROLES))),  # type: ignore[arg-type]
            keep=draw(st.booleans()),
            slots=draw(st.sampled_from([1, 4, 16])),
        )
        missing = draw(st.integers(0, 5)) == 0
        files[name] = ModelFiles(
            path=f"/m/{name}.gguf",
            weights=int(draw(SIZES) * GIB),
            projector_bytes=draw(st.sampled_from([0, GIB])),
            missing=("/m/x",) if missing else (),
        )
    targets = [*names, *ROLES]
    pins = draw(st.dictionaries(st.sampled_from(targets), placements(), max_size=3))
    reserve = draw(st.sampled_from([Size(0), Size(GIB), {"CUDA0": Size(2 * GIB)}]))
    config = Config(models=models, placement=pins, memory=Memory(reserve=reserve))
    return config, draw(machines()), files


def resident_bytes(plan: Plan) -> Counter[str]:
    """What is charged to each device: a swap set once, at its largest member (AP-8)."""
    charged: Counter[str] = Counter()
    for group in plan.groups:
        largest: Counter[str] = Counter()
        for member in group.members:
            if member in plan.tight:
                continue
            instance = plan.instance(member)
            shares = instance.tensor_split or (1,)
            for label, share in zip(instance.devices or ("host",), shares, strict=True):
                part = instance.bytes_needed * share // sum(shares)
                largest[label] = max(largest[label], part)
        charged.update(largest)
    return charged


@calm
@given(worlds())
def test_what_is_resident_at_once_fits_but_for_what_is_called_tight(world):
    config, inventory, files = world
    plan = make_plan(config, inventory, files)
    charged = resident_bytes(plan)
    reserve = config.memory.reserve
    for device in inventory.devices:
        kept = reserve if isinstance(reserve, int) else reserve.get(device.label, 0)
        assert charged[device.label] <= max(0, device.free - kept), device.label
    if not inventory.devices and inventory.host.available:
        assert charged["host"] <= inventory.host.available


@calm
@given(worlds())
def test_every_installed_model_is_placed_or_the_plan_says_why_not(world):
    config, inventory, files = world
    plan = make_plan(config, inventory, files)
    placed = {instance.model for instance in plan.instances}
    refused = {each.model for each in plan.unplaceable}
    absent = set(plan.skipped_not_installed)
    assert placed | refused | absent == set(config.models)
    assert not absent & (placed | refused)
    assert absent == {name for name in config.models if files[name].missing}
    assert all(each.reason and each.need >= 0 and each.have >= 0 for each in plan.unplaceable)


@calm
@given(worlds())
def test_an_instance_is_in_one_group_and_a_model_of_an_automatic_plan_has_one_answer(world):
    config, inventory, files = world
    plan = make_plan(config, inventory, files)
    members = [member for group in plan.groups for member in group.members]
    assert sorted(members) == sorted(instance.id for instance in plan.instances)
    assert len({group.id for group in plan.groups}) == len(plan.groups)
    automatic = make_plan(msgspec.structs.replace(config, placement={}), inventory, files)
    answers = [
        *(instance.model for instance in automatic.instances),
        *(each.model for each in automatic.unplaceable),
        *automatic.skipped_not_installed,
    ]
    assert sorted(answers) == sorted(config.models)


@calm
@given(worlds())
def test_a_model_that_is_kept_is_never_in_a_swap_set(world):
    config, inventory, files = world
    plan = make_plan(config, inventory, files)
    swapped = {
        plan.instance(member).model
        for group in plan.groups
        if group.swap
        for member in group.members
    }
    assert not any(config.models[name].keep for name in swapped)


@calm
@given(worlds())
def test_a_pin_is_obeyed_exactly_or_reported(world):
    config, inventory, files = world
    plan = make_plan(config, inventory, files)
    if plan.rejected is not None:
        assert plan.rejected.reason
        assert not plan.manual
        return
    refused = {each.model for each in plan.unplaceable}
    for name, model in config.models.items():
        pin = config.placement.get(name) or config.placement.get(model.role)
        if pin is None or files[name].missing:
            continue
        found = [inventory.find(device) for device in pin.devices]
        labels = tuple(device.label for device in found if device is not None)
        usable = len(labels) == len(pin.devices) == len(set(labels))
        instances = plan.instances_of(name)
        assert bool(instances) == usable == (name not in refused)
        if usable:
            assert len(instances) == pin.replicas
            if pin.replicas == 1 or pin.tensor_split:
                assert {instance.devices for instance in instances} == {labels}
            if pin.tensor_split and len(labels) > 1:
                assert {instance.tensor_split for instance in instances} == {pin.tensor_split}


@calm
@given(worlds())
def test_a_shortfall_names_a_device_of_the_instance_and_is_above_zero(world):
    plan = make_plan(*world)
    for instance_id, short in plan.tight.items():
        assert short
        assert set(short) <= set(plan.instance(instance_id).devices)
        assert all(missing > 0 for missing in short.values())


@calm
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_the_models_in_the_file_does_not_matter(world, random):
    config, inventory, files = world
    names = list(config.models)
    random.shuffle(names)
    other = msgspec.structs.replace(config, models={name: config.models[name] for name in names})
    one, two = make_plan(config, inventory, files), make_plan(other, inventory, files)
    assert msgspec.json.encode(one) == msgspec.json.encode(two)


@calm
@given(worlds())
def test_the_same_input_gives_the_same_bytes(world):
    assert msgspec.json.encode(make_plan(*world)) == msgspec.json.encode(make_plan(*world))


@calm
@given(st.lists(st.sampled_from([3.0, 12.0, 24.0]), max_size=3), worlds())
def test_one_more_card_never_makes_a_model_unplaceable(cards, world):
    config, _, files = world
    config = msgspec.structs.replace(config, placement={})
    refused = {each.model for each in make_plan(config, machine(*cards), files).unplaceable}
    more = {each.model for each in make_plan(config, machine(*cards, 24.0), files).unplaceable}
    assert more <= refused
