"""What holds for any cards, masks and orders: masks follow CUDA's rule, a join loses no device."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pannier.devices.inventory import Device, HostMemory, Inventory, same_devices
from pannier.devices.join import Ours, join, with_memory
from pannier.devices.listing import EngineList, parse_device_list
from pannier.devices.masks import CUDA_MASK, device_selection, visible_cards
from pannier.devices.matching import match_cards
from pannier.devices.reading import Card, CardProcess, NvmlReading
from pannier.devices.settle import keep_names

MIB = 1 << 20
GIB = 1 << 30
ORDERED = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
HOST = HostMemory(total=64 * GIB, available=32 * GIB)

uuids = st.lists(
    st.text("ab1", min_size=1, max_size=4).map("GPU-".__add__), min_size=1, max_size=6, unique=True
)
entries = st.one_of(
    st.integers(-2, 7).map(str),
    st.text("ab1", max_size=4).map("GPU-".__add__),
    st.sampled_from(["", " ", "0x", "1a", "+2", "-0", "GPU-", "MIG-a", " 3 ", "٣", "--1", "-"]),
)
masks = st.lists(entries, max_size=6).map(",".join)


def cuda_rule(known, mask):
    """CUDA's rule once more, character by character: the positions that stay visible."""
    result = []
    parts = [part.strip() for part in mask.split(",")]
    named = parts[0][:4] in ("GPU-", "MIG-")
    for part in parts:
        if named:
            hits = [at for at, uuid in enumerate(known) if uuid[: len(part)] == part]
            if part[:4] not in ("GPU-", "MIG-") or len(hits) != 1:
                return result
            at = hits[0]
        else:
            sign, rest = (part[0], part[1:]) if part[:1] in ("+", "-") else ("+", part)
            number = None
            for character in rest:
                if character not in "0123456789":
                    break
                number = (number or 0) * 10 + "0123456789".index(character)
            if number is None or (sign == "-" and number) or number >= len(known):
                return result
            at = number
        if at in result:
            return []
        result.append(at)
    return result


@given(uuids, masks)
def test_a_mask_shows_what_cuda_s_rule_says(known, mask):
    cards = [Card(index=at, uuid=uuid) for at, uuid in enumerate(known)]
    shown = visible_cards(cards, {CUDA_MASK: mask})
    assert [card.index for card in shown] == cuda_rule(known, mask)


@given(st.data(), uuids, masks | st.none())
def test_a_child_sees_the_pinned_cards_in_their_order_and_no_other(data, known, mask):
    """With UUIDs or without: whatever mask we run under, composing with it picks the same cards."""
    whole = [f"{uuid}-{at:04}" for at, uuid in enumerate(known)]  # no UUID starts another one
    cards = [Card(index=at, uuid=uuid) for at, uuid in enumerate(whole)]
    environ = {} if mask is None else {CUDA_MASK: mask}
    offered = [
        Device(
            index=at, backend="cuda", label=f"CUDA{at}", name="x", total=GIB, free=GIB,
            uuid=card.uuid,
        )
        for at, card in enumerate(visible_cards(cards, environ))
    ]  # fmt: skip
    if not offered:
        return
    pinned = data.draw(st.permutations(offered).flatmap(_some_of))
    wanted = [device.uuid for device in pinned]
    nameless = [msgspec.structs.replace(device, uuid=None) for device in pinned]
    for given_devices in (pinned, nameless):
        chosen = device_selection(given_devices, environ)
        shown = visible_cards(cards, {**environ, **chosen.env})
        assert [card.uuid for card in shown] == wanted
        assert chosen.labels == tuple(f"CUDA{at}" for at in range(len(pinned)))


def _some_of(devices):
    return st.integers(1, len(devices)).map(lambda count: devices[:count])


# --- joining --------------------------------------------------------------------------------------

names = st.sampled_from(["NVIDIA RTX 3090", "NVIDIA RTX 3060"])


@st.composite
def rigs(draw):
    """Cards in NVML's order, their PCI order shuffled, with what others hold of them."""
    count = draw(st.integers(0, 6))
    buses = draw(st.permutations(range(count)))
    cards = []
    for at, bus in enumerate(buses):
        name = draw(names)
        total = (24 if "3090" in name else 12) * GIB
        used = draw(st.integers(0, total))
        held = draw(st.integers(0, used))
        cards.append(
            Card(
                index=at, name=name, uuid=f"GPU-{at:08}", pci=f"0000:{bus:02x}:00.0", total=total,
                used=used, free=total - used,
                processes=(CardProcess(pid=1, bytes=held), CardProcess(pid=2, bytes=used - held)),
            )
        )  # fmt: skip
    return tuple(cards)


def listed(cards):
    return tuple(
        Device(
            index=at, backend="cuda", label=f"CUDA{at}", name=card.name,
            total=card.total - 400 * MIB, free=0,
        )
        for at, card in enumerate(cards)
    )  # fmt: skip


@given(rigs())
def test_cards_in_one_order_are_all_matched(cards):
    assert match_cards(listed(cards), cards, same_order=True) == cards


@given(st.data(), rigs())
def test_a_match_that_is_made_is_never_wrong(data, cards):
    """Whatever the engine leaves out: a device has its own card, or none."""
    shown = [card for card in cards if data.draw(st.booleans())]
    by_speed = data.draw(st.permutations(shown))
    for own, same_order in ((shown, True), (by_speed, False)):
        found = match_cards(listed(own), cards, same_order=same_order)
        pairs = zip(found, own, strict=True)
        assert all(got is None or got.uuid == card.uuid for got, card in pairs)


@given(rigs(), st.lists(st.integers(0, 6), max_size=6, unique=True).map(tuple))
def test_a_join_accounts_for_every_byte_and_every_device(cards, mask):
    environ = {**ORDERED, CUDA_MASK: ",".join(map(str, mask))} if mask else ORDERED
    shown = visible_cards(cards, environ)
    ours = Ours(pids=frozenset({1}))
    inventory = join(
        EngineList(devices=listed(shown)), NvmlReading(cards=cards), environ=environ, host=HOST,
        ours=ours,
    )  # fmt: skip
    assert len(inventory.devices) == len(shown)
    assert [device.index for device in inventory.devices] == list(range(len(shown)))
    assert {each.uuid for each in inventory.devices} == {card.uuid for card in shown}
    assert len(inventory.devices) + len(inventory.unused) == len(cards)
    buses = [device.pci for device in inventory.devices]
    assert buses == sorted(buses)
    by_uuid = {card.uuid: card for card in cards}
    for device in inventory.devices:
        card = by_uuid[device.uuid]
        assert device.used_by_us + device.used_by_others + device.free == device.total
        assert 0 <= device.used_by_us <= card.processes[0].bytes
        assert device.capacity == device.total - device.used_by_others


@given(rigs(), rigs())
def test_free_memory_is_no_other_device(cards, later):
    """A second reading of the same cards is the same inventory, however full they are."""
    inventory = join(
        EngineList(devices=listed(cards)), NvmlReading(cards=cards), environ=ORDERED, host=HOST
    )
    moved = tuple(
        msgspec.structs.replace(card, free=other.free)
        for card, other in zip(cards, later, strict=False)
    )
    again = with_memory(inventory, NvmlReading(cards=moved), host=HOST, ours=Ours(), read_at=5.0)
    assert same_devices(inventory, again)
    if inventory.devices:
        assert not same_devices(inventory, Inventory(engine_backend="cuda"))


@given(st.data(), rigs())
def test_cards_that_come_and_go_never_rename_the_others(data, cards):
    before = join(
        EngineList(devices=listed(cards)), NvmlReading(cards=cards), environ=ORDERED, host=HOST
    )
    for _ in range(3):
        left = tuple(card for card in cards if data.draw(st.booleans()))
        after = keep_names(
            before,
            join(
                EngineList(devices=listed(left)), NvmlReading(cards=left), environ=ORDERED,
                host=HOST,
            ),
        )  # fmt: skip
        had = {each.uuid: (each.index, each.label) for each in before.devices}
        for each in after.devices:
            assert had.get(each.uuid, (each.index, each.label)) == (each.index, each.label)
        for key in ("index", "label", "uuid"):
            values = [getattr(each, key) for each in after.devices]
            assert len(set(values)) == len(values)
        before = after


@given(st.text() | st.text("Available devices:\n CUDA0()MiB,1free"))
def test_any_output_is_a_list_or_none(text):
    devices = parse_device_list(text)
    assert (devices is None) == ("Available devices:" not in text)


@given(st.text(max_size=40), st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
def test_a_device_with_any_name_is_read_back(name, total, free):
    name = " ".join(name.split()) or "x"
    text = f"Available devices:\n  CUDA0: {name} ({total} MiB, {free} MiB free)\n"
    devices = parse_device_list(text)
    if len(text.splitlines()) != 2:
        return  # a name with one of Unicode's line breaks in it
    assert devices is not None
    assert [(d.name, d.total, d.free) for d in devices] == [(name, total * MIB, free * MIB)]
