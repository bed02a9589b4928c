"""Config and machine in, plan and rendered groups out: each case is a pair of files.

`NAME.toml` is a config whose first lines say what the machine is and what the files are:

    #: cards 24 12        (GiB each; none: a machine without GPUs)
    #: used 22.7 0        (GiB of each that other programs hold)
    #: ours 0 3.5         (GiB of each that our own engines hold)
    #: pci 3 1            (bus numbers, which decide the order; labels stay with their cards)
    #: mig 0 1            (cards that are MIG instances)
    #: unified            (the memory of the cards is the host's)
    #: backend CUDA       (the prefix of the labels)
    #: ram 64             (GiB)
    #: headers a=llama31-70b b=gemma3-27b:Q8_0+mmproj-gemma3-27b   (real dimensions)
    #: size 4.0           (GiB of a model file that has no headers and that no line below names)
    #: files a=30 b=-1    (-1: not there)
    #: failed a=8192      (context of a load that ran out of memory)
    #: running            (the plan of the same case runs already, without the models named)

`NAME.txt` is what must come of it: the rooms, a line for each instance and what it takes, the
groups, every other word of the plan, and the files of llama-swap. `pytest --update-golden` writes
these anew; read the diff.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.fakes.rigs import Fleet, fleet, rig
from tests.fakes.values import GIB, LAUNCHER

from pannier.config.load import parse
from pannier.config.schema import Config
from pannier.devices.inventory import Inventory
from pannier.gguf.footprint.values import DeviceShare, HostShare
from pannier.plan.values import Instance, Plan
from pannier.render.argv import EngineFlavour
from pannier.render.groups import render_plan
from pannier.render.llama_swap import render

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*.toml"))


def facts(text: str) -> dict[str, str]:
    return dict(re.findall(r"^#: (\w+) ?(.*?) *$", text, re.MULTILINE))


def pairs(text: str) -> dict[str, str]:
    """Of "a=1 b=2"; names may have an equals sign in them."""
    return {name: value for name, _, value in (each.rpartition("=") for each in text.split())}


def numbers(text: str) -> list[float]:
    return [float(each) for each in text.split()]


def whole(text: str) -> list[int]:
    return [int(each) for each in text.split()]


def machine_of_case(found: dict[str, str]) -> Inventory:
    return rig(
        *numbers(found.get("cards", "")),
        used=numbers(found.get("used", "")),
        ours=numbers(found.get("ours", "")),
        pci=whole(found.get("pci", "")),
        mig=whole(found.get("mig", "")),
        unified="unified" in found,
        prefix=found.get("backend", "CUDA"),
        ram_gib=float(found.get("ram", "64")),
    )


def fleet_of_case(text: str, found: dict[str, str]) -> Fleet:
    config = parse(text.encode())
    sizes = dict.fromkeys(config.models, float(found.get("size", "4.0")))
    sizes |= {name: float(size) for name, size in pairs(found.get("files", "")).items()}
    return fleet(text, pairs(found.get("headers", "")), sizes)


def plan_of_case(text: str, **other: str) -> tuple[Plan, Fleet]:
    """What the planner makes of a case, with `other` facts than it has."""
    found = facts(text) | other
    inventory, cast = machine_of_case(found), fleet_of_case(text, found)
    running = None
    if "running" in found:
        running = cast.less(*found["running"].split()).plan(inventory)
    failed = {name: int(context) for name, context in pairs(found.get("failed", "")).items()}
    return cast.plan(inventory, running=running, failed_at=failed), cast


def outcome(text: str) -> str:
    """What comes of a case, as text."""
    plan, cast = plan_of_case(text)
    lines = [*rooms(plan), *instances(plan), *others(plan), *rendered(plan, cast.config, cast)]
    return "\n".join(lines) + "\n"


def gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def rooms(plan: Plan) -> Iterator[str]:
    """The devices in their order, with what may be taken and what is."""
    if not plan.devices:
        yield "no devices"
    taken = charged(plan)
    for device in plan.devices:
        room, here = device.capacity, taken.get(device.label, 0)
        more = [f"bus {device.pci}"] if device.pci else []
        more += ["unified"] if device.unified else []
        more += ["part of a card"] if device.parent else []
        size = f"{gib(device.total)} GiB, room {gib(room)}"
        filled = f"taken {gib(here)}, left {gib(room - here)}"
        yield " ".join(
            [f"device {device.label}: {size}, {filled}", *(f"({each})" for each in more)]
        )
    yield ""


def charged(plan: Plan) -> dict[str, int]:
    """Bytes per device of what may be resident at once: a swap set at its largest members."""
    total: dict[str, int] = {}
    unified = {device.label for device in plan.devices if device.unified}
    for group in plan.groups:
        largest: dict[str, int] = {}
        for member in map(plan.instance, group.members):
            for label, share in zip(member.devices, member.device_bytes, strict=True):
                taken = share.total + (member.host_bytes.total if label in unified else 0)
                largest[label] = max(largest.get(label, 0), taken)
        for label, size in largest.items():
            total[label] = total.get(label, 0) + size
    return total


def instances(plan: Plan) -> Iterator[str]:
    for each in plan.instances:
        yield placed(each)
        for label, share in zip(each.devices, each.device_bytes, strict=True):
            yield f"  {label}: {parts(share)}"
        if each.host_bytes.total:
            yield f"  RAM: {parts(each.host_bytes)}"
    if plan.instances:
        yield ""


def placed(each: Instance) -> str:
    """One line with everything that was chosen for an instance."""
    kv = each.kv_type if isinstance(each.kv_type, str) else f"{each.kv_type.k}/{each.kv_type.v}"
    where = "+".join(each.devices) or "CPU"
    split = f" {':'.join(map(str, each.tensor_split))}" if each.tensor_split else ""
    words = [f"{each.id}: {each.role} on {where}{split}", f"context {each.context}x{each.slots}"]
    words += [f"kv {kv}", f"batch {each.batch}/{each.ubatch}", f"layers {each.gpu_layers}"]
    words += [f"experts of {each.cpu_moe} layers in RAM"] if each.cpu_moe else []
    words += [] if each.projector_on_device else ["projector in RAM"]
    words += [] if each.exact else ["an estimate"]
    words += ["pinned"] if each.pinned else []
    words += [f"replica {each.replica}"] if each.replica else []
    return ", ".join([*words, f"{gib(each.file_bytes)} GiB to load in {each.load_timeout_s} s"])


def parts(share: DeviceShare | HostShare) -> str:
    found = {name: size for name, size in msgspec.to_builtins(share).items() if size}
    layers = found.pop("layers", 0)
    summed = " + ".join(f"{name} {gib(size)}" for name, size in found.items())
    return f"{gib(share.total)} = {summed}" + (f" ({layers} layers)" if layers else "")


def others(plan: Plan) -> Iterator[str]:
    """Everything else that the plan says."""
    for group in plan.groups:
        yield f"{'swap set' if group.swap else 'group'} {group.id}: {', '.join(group.members)}"
    if plan.spec:
        yield f"manual: {plan.spec}"
    if plan.rejected:
        yield f"rejected: {plan.rejected.spec}: {plan.rejected.reason}"
    for name, short in plan.tight.items():
        missing = ", ".join(f"{gib(size)} on {label}" for label, size in short.items())
        yield f"tight: {name} lacks {missing}"
    for refused in plan.unplaceable:
        yield f"unplaceable: {refused.model}: {refused.reason}"
        needs = ", ".join(f"{name} {gib(size)}" for name, size in refused.parts.items())
        have = ", ".join(f"{name} {gib(size)}" for name, size in refused.have_by_device.items())
        yield f"  needs {gib(refused.need)} = {needs}; there is {gib(refused.have)}: {have}"
        yield from (f"  way out: {way}" for way in refused.ways_out)
    for name in plan.skipped_not_installed:
        yield f"not installed: {name}"
    for label, names in plan.co_tenants.items():
        yield f"together on {label}: {', '.join(names)}"
    yield from (f"reason: {reason}" for reason in plan.reasons)


def rendered(plan: Plan, config: Config, cast: Fleet) -> Iterator[str]:
    """The files of llama-swap: a line for each key, and for each key of a model."""
    engine = EngineFlavour(path="/opt/llama-server")
    groups, problems = render_plan(
        plan, config, cast.files, engine, host="llama-swap", launcher=LAUNCHER
    )
    yield from (f"problem: {each.where}: {each.message}" for each in problems)
    for group in groups.values():
        ports = {launch.instance: 9000 + n for n, launch in enumerate(group.launches)}
        yield from ("", f"llama-swap for {group.id}")
        for key, value in json.loads(render(group, ports, key="a-key-for-one-run")).items():
            if key != "models":
                yield f"  {key}: {json.dumps(value)}"
                continue
            for name, keys in value.items():
                yield f"  model {name}"
                yield from (f"    {each}: {json.dumps(found)}" for each, found in keys.items())


def test_there_are_forty_cases_at_least():
    assert len(CASES) >= 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_case_comes_out_as_its_file_says(case, request):
    made = outcome(case.read_text())
    expected = case.with_suffix(".txt")
    if request.config.getoption("--update-golden"):
        expected.write_text(made)
    assert expected.exists(), "no expected file yet: run pytest --update-golden and read it"
    assert made == expected.read_text()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_no_case_takes_more_than_there_is_but_for_what_is_tight(case):
    plan = plan_of_case(case.read_text())[0]
    tight = {label for short in plan.tight.values() for label in short}
    over = [
        device.label
        for device in plan.devices
        if charged(plan).get(device.label, 0) > device.capacity and device.label not in tight
    ]
    assert over == []


def has_an_order(case: Path) -> bool:
    """Whether it has cards of this machine whose order is not a part of the case."""
    text = case.read_text()
    found = facts(text)
    several = len(found.get("cards", "").split()) > 1
    local = found.get("backend") != "RPC"
    # With a placement an index means another card; a case with bus numbers is about them.
    return several and local and "[placement" not in text and "pci" not in found


MIXED = [case for case in CASES if has_an_order(case)]


@pytest.mark.parametrize("turned", ["reversed", "rotated"])
@pytest.mark.parametrize("case", MIXED, ids=lambda case: case.stem)
def test_in_whatever_order_the_cards_are_as_much_is_served(case, turned):
    text = case.read_text()
    count = len(facts(text)["cards"].split())
    order = [count - at if turned == "reversed" else (at + 1) % count for at in range(count)]
    plan, _ = plan_of_case(text)
    other, _ = plan_of_case(text, pci=" ".join(map(str, order)))
    assert [device.label for device in other.devices] != [device.label for device in plan.devices]
    assert essence(other) == essence(plan)
    assert all(charged(other).get(each.label, 0) <= each.capacity for each in other.devices)


def essence(plan: Plan) -> tuple[object, ...]:
    """How many models are served, share memory and have how many devices."""
    swapped = sum(len(group.members) for group in plan.groups if group.swap)
    devices = {instance.id: len(instance.devices) for instance in plan.instances}
    return devices, swapped, set(plan.tight), len(plan.unplaceable)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_case_says_no_fact_that_nobody_reads(case):
    known = set(re.findall(r"^    #: (\w+)", __doc__ or "", re.MULTILINE))
    assert set(facts(case.read_text())) <= known


def test_no_expected_file_is_without_its_case():
    assert {path.stem for path in HERE.glob("*.txt")} == {case.stem for case in CASES}
