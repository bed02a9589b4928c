"""What holds after a reading: nothing is lost by one broken answer, and nobody is renamed."""

import msgspec

from pannier.devices.inventory import Device, HostMemory, same_devices
from pannier.devices.join import Ours
from pannier.devices.listing import EngineList
from pannier.devices.reading import Card, NvmlReading
from pannier.devices.settle import Moment, Seen, needs_list, settle

GIB = 1 << 30
ENVIRON = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
LOST = NvmlReading(lost="Failed to initialize NVML: Unknown Error")


def cards(*numbers, free=20):
    return NvmlReading(
        cards=tuple(
            Card(
                index=at, name=f"card {number}", uuid=f"GPU-{number}0000000",
                pci=f"0000:{number + 1:02x}:00.0", total=24 * GIB, used=(24 - free) * GIB,
                free=free * GIB, processes=(),
            )
            for at, number in enumerate(numbers)
        )
    )  # fmt: skip


def listed(*numbers):
    return EngineList(
        devices=tuple(
            Device(
                index=at, backend="cuda", label=f"CUDA{at}", name=f"card {number}",
                total=24 * GIB, free=20 * GIB,
            )
            for at, number in enumerate(numbers)
        )
    )  # fmt: skip


def after(before, reading, engine=None, read_at=1.0, another=False):
    now = Moment(
        reading=reading, listed=engine, host=HostMemory(), environ=ENVIRON, ours=Ours(),
        read_at=read_at, another=another,
    )  # fmt: skip
    return settle(before, now)


def names(seen):
    return {each.uuid: (each.index, each.label) for each in seen.inventory.devices}


TWO = after(Seen(), cards(0, 1), listed(0, 1))


def test_report_54_a_lost_nvml_keeps_the_last_inventory_and_says_so():
    """nvidia-container-toolkit#48: "Unknown Error" after a systemctl daemon-reload."""
    lost = after(TWO, LOST, read_at=9.0)
    assert lost.inventory.devices == TWO.inventory.devices
    assert lost.inventory.stale == LOST.lost
    assert lost.inventory.read_at == 1.0
    assert lost.reading == TWO.reading


def test_report_54_what_comes_back_is_no_change():
    back = after(after(TWO, LOST), cards(0, 1, free=3), read_at=9.0)
    assert back.inventory.stale is None
    assert back.inventory.read_at == 9.0
    assert back.inventory.devices[0].free == 3 * GIB
    assert same_devices(back.inventory, TWO.inventory)


def test_a_new_question_while_nvml_is_lost_is_answered_with_the_last_cards():
    lost = after(TWO, LOST, listed(0, 1))
    assert names(lost) == names(TWO)
    assert lost.inventory.stale == f"NVML: {LOST.lost}"


def test_nvml_that_never_spoke_is_not_lost():
    seen = after(Seen(), LOST, listed(0))
    assert seen.inventory.stale is None
    assert after(seen, LOST).inventory.stale is None


def test_a_silent_engine_keeps_what_it_said_before():
    silent = after(TWO, cards(0, 1), EngineList(reason="took too long and was stopped"))
    assert silent.inventory.devices == TWO.inventory.devices
    full = after(TWO, cards(0, 1, free=1), EngineList(reason="it hung"))
    assert [each.free for each in full.inventory.devices] == [GIB, GIB]
    assert "took too long" in (silent.inventory.stale or "")
    assert silent.listed == TWO.listed
    assert after(silent, cards(0, 1), listed(0, 1)).inventory.stale is None


def test_an_engine_that_is_silent_from_the_start_is_unknown():
    seen = after(Seen(), cards(0), EngineList(reason="x"))
    assert (seen.inventory.engine_backend, seen.inventory.devices) == ("unknown", ())


def test_an_engine_that_drops_cards_which_nvml_still_sees_is_not_believed():
    broken = after(TWO, cards(0, 1), EngineList(devices=()))
    assert broken.inventory.devices == TWO.inventory.devices
    assert "while NVML sees 2 cards" in (broken.inventory.stale or "")


def test_another_engine_is_believed_when_it_has_no_cuda_and_not_when_it_says_nothing():
    cpu = after(TWO, cards(0, 1), EngineList(devices=()), another=True)
    assert (cpu.inventory.engine_backend, cpu.inventory.stale) == ("cpu", None)
    assert len(cpu.inventory.unused) == 2
    silent = after(TWO, cards(0, 1), EngineList(reason="it hung"), another=True)
    assert silent.inventory.devices == TWO.inventory.devices


def test_cards_that_are_gone_by_both_are_gone():
    gone = after(TWO, cards(), EngineList(devices=()))
    assert gone.inventory.devices == ()
    assert gone.inventory.stale is None


def test_a_card_that_vanishes_and_returns_renames_nobody():
    assert names(TWO) == {"GPU-00000000": (0, "CUDA0"), "GPU-10000000": (1, "CUDA1")}
    one = after(TWO, cards(1), listed(1))
    assert names(one) == {"GPU-10000000": (1, "CUDA1")}
    assert not same_devices(one.inventory, TWO.inventory)
    assert one.inventory.find(0) is None
    back = after(one, cards(0, 1), listed(0, 1))
    assert same_devices(back.inventory, TWO.inventory)


def test_a_new_card_takes_what_is_free():
    more = after(TWO, cards(0, 5, 1), listed(0, 5, 1))
    assert names(more) == {**names(TWO), "GPU-50000000": (2, "CUDA2")}
    assert [each.index for each in more.inventory.devices] == [0, 1, 2]


def test_without_uuids_the_labels_are_the_engine_s():
    nothing = NvmlReading(absent=True)
    before = after(Seen(), nothing, listed(0, 1))
    assert [each.label for each in before.inventory.devices] == ["CUDA0", "CUDA1"]
    one = after(before, nothing, listed(1))
    assert [(each.label, each.name) for each in one.inventory.devices] == [("CUDA0", "card 1")]


def test_a_remote_device_stays_where_it_was_when_a_card_goes():
    def with_remote(*numbers):
        remote = Device(
            index=9, backend="rpc", label="RPC0", name="10.0.0.7:50052", total=GIB, free=GIB
        )
        return EngineList(devices=(*(listed(*numbers).devices or ()), remote))

    before = after(Seen(), cards(0, 1), with_remote(0, 1))
    assert names(before)[None] == (2, "RPC0")
    one = after(before, cards(1), with_remote(1))
    assert names(one) == {"GPU-10000000": (1, "CUDA1"), None: (2, "RPC0")}


def test_the_engine_is_asked_when_the_set_of_cards_is_another_one_and_not_when_memory_moves():
    assert not needs_list(TWO, cards(0, 1, free=1))
    assert not needs_list(TWO, LOST)
    assert needs_list(TWO, cards(1))
    assert needs_list(TWO, cards(0, 1, 2))
    ill = msgspec.structs.replace(cards(0, 1).cards[1], compute_capable=False)
    assert needs_list(TWO, NvmlReading(cards=(cards(0).cards[0], ill)))
