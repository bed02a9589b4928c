"""Whatever the config and the machine: the plan is sound, complete, the same every time, and calm.

Models with real headers stand beside models of which only the size is known. What a plan takes is
computed anew from the headers, by nothing of the planner.
"""

from collections import Counter

import msgspec
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.fakes.rigs import Fleet, files, profile, rig
from tests.fakes.values import GIB, LAUNCHER

from pannier.config.schema import Config, KvPair, Memory, Model, Placement, Size
from pannier.devices.inventory import HostMemory, Inventory
from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.values import LaunchSettings
from pannier.gguf.model_files import ModelFiles
from pannier.plan.roles import ROLES
from pannier.plan.values import Group, Instance, Plan
from pannier.render.argv import EngineFlavour
from pannier.render.groups import render_plan

calm = settings(
    deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)

NAMES = ["a", "b", "c", "d", "swap-CUDA0", "swap-host", "e/f", "g#h"]
SIZES = [0.0, 0.5, 3.0, 6.0, 11.0, 20.0, 40.0, 200.0]
TEXT = [
    "llama32-1b",
    "qwen3-4b",
    "llama31-8b",
    "gemma4-e4b:Q8_0",  # must not be split
    "gpt-oss-20b",
    "qwen3-30b-a3b",
    "qwen35-27b",
    "gemma3-27b+mmproj-gemma3-27b",
    "qwen3-32b+llama32-1b",
    "llama31-70b",
    "glm45-air",
]
HEADERS = {
    "chat": TEXT,
    "vision": ["gemma3-4b+mmproj-gemma3-4b", "gemma3-27b+mmproj-gemma3-27b"],
    "embed": ["bge-m3", "embeddinggemma-300m", "qwen3-embed-4b"],
    "rerank": ["bge-reranker-v2-m3", "qwen3-rerank-06b"],
}
CARDS = [0.25, 3.0, 8.0, 12.0, 24.0, 48.0, 80.0]


@st.composite
def machines(draw: st.DrawFn) -> Inventory:
    cards = draw(st.lists(st.sampled_from(CARDS), max_size=5))
    used = [draw(st.sampled_from([0.0, 0.0, 1.5, card / 2, card])) for card in cards]
    kind = draw(st.sampled_from(["plain", "plain", "unified", "mig", "remote"]))
    made = rig(
        *(cards[:1] if kind == "unified" else cards),
        used=used,
        unified=kind == "unified",
        mig=range(len(cards)) if kind == "mig" else (),
        prefix="RPC" if kind == "remote" else "CUDA",
        ram_gib=draw(st.sampled_from([1, 16, 64, 512])),
    )
    unknown = draw(st.integers(0, 7)) == 0
    return msgspec.structs.replace(made, host=HostMemory()) if unknown else made


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    wanted = st.one_of(st.integers(0, 3), st.sampled_from(["CUDA0", "CUDA1", "RPC0", "nowhere"]))
    devices = tuple(draw(st.lists(wanted, min_size=1, max_size=3, unique=True)))
    weights = st.integers(1, 9)
    split = draw(
        st.none() | st.lists(weights, min_size=len(devices), max_size=len(devices)).map(tuple)
    )
    return Placement(
        devices=devices,
        tensor_split=split,
        replicas=draw(st.sampled_from([1, 1, 2, 3])),
        force=draw(st.booleans()),
    )


@st.composite
def models(draw: st.DrawFn, name: str) -> tuple[Model, ModelFiles, str | None]:
    """A model, its files, and the headers that they have."""
    role = draw(st.sampled_from(list(ROLES)))
    context = draw(st.sampled_from([None, 2048, 8192, 30_000, 65_536]))
    model = Model(
        path=f"/m/{name}.gguf",
        role=role,  # type: ignore[arg-type]
        context=context,
        min_context=min(context or 4096, draw(st.sampled_from([1024, 4096, 4096]))),
        slots=draw(st.sampled_from([1, 1, 4])),
        kv_type=draw(st.sampled_from(["f16", "q8_0", KvPair(k="q8_0", v="f16")])),
        gpu_layers=draw(st.sampled_from(["auto", "auto", "auto", "all", 0, 20])),
        cpu_moe=draw(st.sampled_from(["auto", "auto", "all", 3])),
        keep=draw(st.integers(0, 4)) == 0,
    )
    if draw(st.integers(0, 3)) == 0:
        found = ModelFiles(
            path=model.path,
            weights=int(draw(st.sampled_from(SIZES)) * GIB),
            projector_bytes=draw(st.sampled_from([0, GIB])),
            missing=("/m/x",) if draw(st.booleans()) else (),
        )
        return model, found, None
    made = draw(st.sampled_from(HEADERS[role]))
    return model, files(model.path, made), made


@st.composite
def fleets(draw: st.DrawFn, *, pinned: bool = False, keep: bool = True) -> Fleet:
    """Up to six models; with `pinned` some of them placed by hand."""
    drawn = {
        name: draw(models(name))
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6))
    }
    if not keep:
        drawn = {
            name: (msgspec.structs.replace(model, keep=False), *rest)
            for name, (model, *rest) in drawn.items()
        }
    pins = {}
    if pinned:
        targets = st.sampled_from([*drawn, *ROLES])
        pins = draw(st.dictionaries(targets, placements(), min_size=1, max_size=2))
    reserve = draw(st.sampled_from([Size(0), Size(GIB), {"CUDA0": Size(2 * GIB)}]))
    return Fleet(
        config=Config(
            models={name: model for name, (model, _, _) in drawn.items()},
            placement=pins,
            memory=Memory(reserve=reserve),
        ),
        files={name: found for name, (_, found, _) in drawn.items()},
        profiles={name: profile(made) for name, (_, _, made) in drawn.items() if made},
    )


def settings_of(instance: Instance, model: Model, plan: Plan) -> LaunchSettings:
    """The launch of an instance, in the words of the footprint."""
    backends = {device.label: device.backend for device in plan.devices}
    kv = instance.kv_type
    layers = instance.gpu_layers
    return LaunchSettings(
        context=instance.context,
        slots=instance.slots,
        kv_k=kv if isinstance(kv, str) else kv.k,
        kv_v=kv if isinstance(kv, str) else kv.v,
        flash_attention=model.flash_attention,
        batch=instance.batch,
        ubatch=instance.ubatch,
        gpu_layers=layers if isinstance(layers, int) else None,
        cpu_moe=instance.cpu_moe if isinstance(instance.cpu_moe, int) else None,
        devices=tuple(backends[label] for label in instance.devices),
        split=instance.tensor_split,
        pooling={"embed": "embed", "rerank": "rerank"}.get(model.role, "none"),  # type: ignore[arg-type]
        projector_on_device=instance.projector_on_device,
    )


def takes(instance: Instance, fleet: Fleet, plan: Plan) -> tuple[tuple[int, ...], int]:
    """Bytes per device and of RAM: from the headers, else what their size says at least."""
    known = fleet.profiles.get(instance.model)
    if known is None or known.model is None:
        if instance.devices:
            shares = tuple(share.total for share in instance.device_bytes)
            assert sum(shares) >= fleet.files[instance.model].total
            return shares, 0
        return (), fleet.files[instance.model].total
    found = footprint(
        known.model,
        settings_of(instance, fleet.config.models[instance.model], plan),
        projector=known.projector,
        draft=known.draft,
    )
    return tuple(share.total for share in found.devices), found.host.total


def taken_by(group: Group, fleet: Fleet, plan: Plan) -> Counter[str]:
    """Per device and "host", the largest of what any member takes there: any may be resident."""
    unified = {device.label for device in plan.devices if device.unified}
    largest: Counter[str] = Counter()
    for member in group.members:
        if member in plan.tight:
            continue
        instance = plan.instance(member)
        shares, host = takes(instance, fleet, plan)
        for label, share in zip(instance.devices, shares, strict=True):
            both = share + (host if label in unified else 0)
            largest[label] = max(largest[label], both)
        if not unified.intersection(instance.devices):
            largest["host"] = max(largest["host"], host)
    return largest


def room_of(plan: Plan, fleet: Fleet, inventory: Inventory) -> dict[str, int]:
    """Bytes that there are on each device and of RAM, as the design has it."""
    reserve = fleet.config.memory.reserve
    kept = reserve if isinstance(reserve, int) else None
    rooms = {}
    for device in inventory.devices:
        free = kept if kept is not None else reserve.get(device.label, 512 << 20)  # type: ignore[union-attr]
        rooms[device.label] = max(0, device.total - device.used_by_others - free)
    host = kept if kept is not None else 512 << 20
    rooms["host"] = max(0, inventory.host.available - host) if inventory.host.total else 1 << 60
    return rooms


def served(plan: Plan) -> set[str]:
    return {instance.model for instance in plan.instances}


def fitting(plan: Plan) -> set[str]:
    return {instance.model for instance in plan.instances if instance.id not in plan.tight}


def digests(plan: Plan, fleet: Fleet) -> dict[str, str]:
    """What the groups would be started as, by their members."""
    groups, _ = render_plan(
        plan,
        fleet.config,
        fleet.files,
        EngineFlavour(path="/opt/llama-server"),
        host="llama-swap",
        launcher=LAUNCHER,
    )
    members = {group.id: group.members for group in plan.groups}
    return {"+".join(members[name]): group.identity for name, group in groups.items()}


# --- sound ----------------------------------------------------------------------------------------


@calm
@given(fleets(pinned=True), machines())
def test_what_may_be_resident_at_once_fits_each_device_and_the_ram(fleet, inventory):
    plan = fleet.plan(inventory)
    charged: Counter[str] = Counter()
    for group in plan.groups:
        charged.update(taken_by(group, fleet, plan))
    for name, room in room_of(plan, fleet, inventory).items():
        assert charged[name] <= room, name


@calm
@given(fleets(), machines())
def test_what_the_plan_says_of_bytes_is_what_the_headers_say(fleet, inventory):
    plan = fleet.plan(inventory)
    for instance in plan.instances:
        if instance.model in fleet.profiles:
            shares, host = takes(instance, fleet, plan)
            assert tuple(share.total for share in instance.device_bytes) == shares
            assert instance.host_bytes.total == host


@calm
@given(fleets(pinned=True), machines())
def test_every_model_is_in_one_of_instances_unplaceable_and_skipped(fleet, inventory):
    plan = fleet.plan(inventory)
    refused = [each.model for each in plan.unplaceable]
    absent = list(plan.skipped_not_installed)
    assert sorted([*served(plan), *set(refused), *absent]) == sorted(fleet.config.models)
    assert set(absent) == {name for name, found in fleet.files.items() if found.missing}
    for each in plan.unplaceable:
        assert each.reason
        assert each.ways_out
        assert min(each.need, each.have) >= 0


@calm
@given(fleets(pinned=True), machines())
def test_an_instance_is_in_one_group_and_what_is_kept_is_never_swapped(fleet, inventory):
    plan = fleet.plan(inventory)
    members = [member for group in plan.groups for member in group.members]
    assert sorted(members) == sorted(instance.id for instance in plan.instances)
    assert len({group.id for group in plan.groups}) == len(plan.groups)
    for group in plan.groups:
        assert group.swap == (len(group.members) > 1)
        if group.swap:
            owners = {plan.instance(member).model for member in group.members}
            assert not any(fleet.config.models[name].keep for name in owners)


@calm
@given(fleets(), machines())
def test_a_split_gives_every_device_whole_layers_and_leaves_none_out(fleet, inventory):
    plan = fleet.plan(inventory)
    for instance in plan.instances:
        split, known = instance.tensor_split, fleet.profiles.get(instance.model)
        assert (split is None) == (len(instance.devices) < 2)
        if split is None:
            continue
        assert len(split) == len(instance.devices)
        assert min(split) >= 1
        assert not any(plan_device.parent for plan_device in plan.devices)
        if known is not None and known.model is not None:
            assert known.model.indivisible is None
            layers = instance.gpu_layers
            units = known.model.units
            assert sum(split) == (min(units, layers) if isinstance(layers, int) else units)
            assert split == tuple(share.layers for share in instance.device_bytes)


@calm
@given(fleets(pinned=True), machines())
def test_a_shortfall_is_above_zero_on_devices_of_the_instance(fleet, inventory):
    plan = fleet.plan(inventory)
    for instance_id, short in plan.tight.items():
        assert short
        assert set(short) <= set(plan.instance(instance_id).devices)
        assert min(short.values()) > 0


@calm
@given(fleets(keep=False), machines())
def test_one_tight_model_makes_no_other_tight_or_unserved(fleet, inventory):
    huge = Fleet(
        config=msgspec.structs.replace(
            fleet.config,
            models={
                **fleet.config.models,
                "huge": Model(path="/m/huge.gguf", gpu_layers="all", cpu_moe=0),
            },
        ),
        files={**fleet.files, "huge": files("/m/huge.gguf", "grok-1:F32")},
        profiles={**fleet.profiles, "huge": profile("grok-1:F32")},
    )
    before, after = fleet.plan(inventory), huge.plan(inventory)
    if any(not device.unified for device in inventory.devices):
        assert set(after.tight) == {*before.tight, "huge"}
    elif inventory.devices or inventory.host.total:
        assert "huge" in {each.model for each in after.unplaceable}
    assert served(after) - {"huge"} == served(before)


# --- the person's word ----------------------------------------------------------------------------


@calm
@given(fleets(pinned=True), machines())
def test_a_pin_is_obeyed_exactly_or_the_spec_is_rejected_whole(fleet, inventory):
    plan = fleet.plan(inventory)
    if plan.rejected is not None:
        assert plan.rejected.reason
        assert not plan.manual
        assert not any(instance.pinned for instance in plan.instances)
        return
    for name, model in fleet.config.models.items():
        pin = fleet.config.placement.get(name) or fleet.config.placement.get(model.role)
        instances = plan.instances_of(name)
        if pin is None or fleet.files[name].missing:
            assert len(instances) <= 1
            continue
        labels = tuple(inventory.find(device).label for device in pin.devices)  # type: ignore[union-attr]
        assert len(instances) == pin.replicas
        assert {label for each in instances for label in each.devices} <= set(labels)
        if not pin.force:
            assert not plan.tight.keys() & {each.id for each in instances}
        if pin.replicas == 1 and len(labels) == 1:
            assert instances[0].devices == labels
        if pin.tensor_split and len(labels) > 1:
            assert {each.devices for each in instances} == {labels}
            assert {each.tensor_split for each in instances} == {pin.tensor_split}


@calm
@given(st.lists(st.sampled_from([8.0, 12.0, 24.0]), min_size=2, max_size=4), st.integers(1, 6))
def test_replicas_go_to_devices_of_their_own_first(cards, replicas):
    devices = tuple(range(len(cards)))
    fleet = Fleet(
        config=Config(
            models={"e": Model(path="/m/e.gguf", role="embed")},
            placement={"e": Placement(devices=devices, replicas=replicas)},
        ),
        files={"e": files("/m/e.gguf", "bge-m3")},
        profiles={"e": profile("bge-m3")},
    )
    where = Counter(instance.devices for instance in fleet.plan(rig(*cards)).instances)
    assert sum(where.values()) == replicas
    assert max(where.values()) - min([*where.values(), 0][: len(cards)]) <= 1 + (
        len(where) < min(replicas, len(cards))
    )
    assert len(where) == min(replicas, len(cards))


# --- the same every time, and calm ----------------------------------------------------------------


@calm
@given(fleets(pinned=True), machines(), st.randoms(use_true_random=False))
def test_neither_time_nor_the_order_in_the_file_matters(fleet, inventory, random):
    names = list(fleet.config.models)
    random.shuffle(names)
    other = msgspec.structs.replace(
        fleet.config, models={name: fleet.config.models[name] for name in names}
    )
    again = msgspec.structs.replace(fleet, config=other)
    one = msgspec.json.encode(fleet.plan(inventory))
    assert one == msgspec.json.encode(fleet.plan(inventory))
    assert one == msgspec.json.encode(again.plan(inventory))


@calm
@given(fleets(keep=False), machines(), st.sampled_from([0.25, 3.0, 12.0, 24.0]))
def test_one_more_device_leaves_no_model_unserved(fleet, inventory, card):
    # The first device of a machine is another matter: `gpu_layers = "all"` had no meaning before.
    assume(inventory.devices and not inventory.devices[0].unified)
    prefix = inventory.devices[0].label[:-1]
    new = rig(*([card] * (len(inventory.devices) + 1)), prefix=prefix).devices[-1]
    new = msgspec.structs.replace(new, parent=inventory.devices[0].parent)
    more = msgspec.structs.replace(inventory, devices=(*inventory.devices, new))
    assert fitting(fleet.plan(inventory)) <= fitting(fleet.plan(more))


@calm
@given(fleets(keep=False), machines(), st.data())
def test_memory_that_others_give_back_leaves_no_model_unserved(fleet, inventory, data):
    freed = data.draw(st.lists(st.booleans(), min_size=5, max_size=5))
    devices = tuple(
        msgspec.structs.replace(device, used_by_others=0, free=device.total) if free else device
        for device, free in zip(inventory.devices, freed, strict=False)
    )
    more = msgspec.structs.replace(inventory, devices=devices)
    before, after = fleet.plan(inventory), fleet.plan(more)
    assert fitting(before) <= fitting(after)


@calm
@given(fleets(pinned=True), machines())
def test_a_plan_made_anew_while_it_runs_is_the_same(fleet, inventory):
    plan = fleet.plan(inventory)
    again = fleet.plan(inventory, running=plan)
    assert again.instances == plan.instances
    assert again.groups == plan.groups


@calm
@given(fleets(), machines(), models("new"))
def test_a_model_that_fits_beside_comes_and_goes_without_moving_another(fleet, inventory, new):
    model, found, made = new
    assume(not found.missing)
    plan = fleet.plan(inventory)
    both = msgspec.structs.replace(
        fleet,
        config=msgspec.structs.replace(fleet.config, models={**fleet.config.models, "new": model}),
        files={**fleet.files, "new": found},
        profiles={**fleet.profiles, **({"new": profile(made)} if made else {})},
    )
    assume(fits_beside(both, plan, inventory))
    more = both.plan(inventory, running=plan)
    assert [each for each in more.instances if each.model != "new"] == list(plan.instances)
    before, after = digests(plan, fleet), digests(more, both)
    assert before.items() <= after.items()
    less = fleet.plan(inventory, running=more)
    assert less.instances == plan.instances
    assert digests(less, fleet) == before


def fits_beside(both: Fleet, plan: Plan, inventory: Inventory) -> bool:
    """Whether what is left beside a plan holds the model "new" as it would be placed alone."""
    only = both.less(*(name for name in both.config.models if name != "new"))
    rooms = room_of(plan, both, inventory)
    left = Counter(rooms)
    for group in plan.groups:
        left.subtract(taken_by(group, both, plan))
    alone = only.plan(inventory)
    if not alone.instances or alone.tight or plan.tight:
        return False
    (instance,) = alone.instances
    shares, host = takes(instance, both, alone)
    unified = {device.label for device in plan.devices if device.unified}
    if not instance.devices:
        return host <= left["host"]
    if len(instance.devices) > 1 or unified:
        return False
    return host <= left["host"] and any(shares[0] <= left[device.label] for device in plan.devices)


@calm
@given(fleets(), machines(), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=5, max_size=5))
def test_what_our_own_engines_hold_is_never_counted_as_used(fleet, inventory, parts):
    first = fleet.plan(inventory)
    plan = fleet.plan(inventory, running=first)
    devices = tuple(
        msgspec.structs.replace(device, free=device.free - held, used_by_us=held)
        for device, part in zip(inventory.devices, parts, strict=False)
        for held in [int(device.free * part)]
    )
    resident = frozenset(each.id for each in first.instances)
    ours = sum(each.host_bytes.total for each in first.instances)
    host = inventory.host
    if host.available:
        host = msgspec.structs.replace(host, available=max(1, host.available - ours))
    loaded = msgspec.structs.replace(inventory, devices=devices, host=host)
    again = fleet.plan(loaded, running=first, resident=resident)
    assert essence(again) == essence(plan)


def essence(plan: Plan) -> tuple[object, ...]:
    # What there is for a model that is refused depends on which of the others came first.
    return plan.instances, plan.groups, plan.tight, {each.model for each in plan.unplaceable}
