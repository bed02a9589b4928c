"""Which cards a process sees by its environment, and how a child is shown the pinned ones alone."""

import pytest

from pannier.devices.inventory import Device, backend_of
from pannier.devices.masks import (
    CUDA_MASK,
    ROCM_MASKS,
    container_note,
    device_selection,
    labels_in_child,
    rocm_note,
    visible_cards,
    why_not_together,
)
from pannier.devices.reading import Card

UUIDS = (
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-8932aaaa-0000-4106-c12f-20bd9faed9f6",
    "GPU-11112222-0000-4106-c12f-20bd9faed9f6",
)
CARDS = tuple(Card(index=n, uuid=uuid, name=f"card {n}") for n, uuid in enumerate(UUIDS))
MIG = (
    Card(index=0, uuid="MIG-aaaa1111-1", parent="GPU-parent", name="A100 MIG 1g.5gb"),
    Card(index=1, uuid="MIG-bbbb2222-2", parent="GPU-parent", name="A100 MIG 2g.10gb"),
    Card(index=2, uuid="GPU-whole", name="A100"),
)


def device(label, uuid=None, parent=None):
    return Device(
        index=0, backend=backend_of(label), label=label, name="x", total=1 << 34, free=1 << 34,
        uuid=uuid, parent=parent,
    )  # fmt: skip


def seen(mask, cards=CARDS):
    environ = {} if mask is None else {CUDA_MASK: mask}
    return [card.index for card in visible_cards(cards, environ)]


# --- what CUDA makes of a mask --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("2,1", [2, 1]),
        ("0,2,-1,1", [0, 2]),
        ("0,7,1", [0]),
        ("7", []),
        (" 1 , 0 ", [1, 0]),
        ("1,1", []),
        ("0,1,0", []),
        ("1gpu2,2ampere", [1, 2]),
        ("+1", [1]),
        ("x", []),
        ("0,,1", [0]),
        (",0", []),
        ("NoDevFiles", []),
        ("none", []),
        ("all", []),
    ],
)
def test_a_mask_of_indices_is_read_as_cuda_reads_it(mask, indices):
    assert seen(mask) == indices


def test_a_number_of_any_length_is_no_card():
    assert seen("0," + "9" * 5000 + ",1") == [0]


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (UUIDS[1], [1]),
        (f"{UUIDS[2]},{UUIDS[0]}", [2, 0]),
        ("GPU-1111", [2]),
        ("GPU-8932f", [0]),
        ("GPU-8932", []),
        ("GPU-1111,GPU-8932,GPU-8932f", [2]),
        ("GPU-dead,GPU-1111", []),
        (f"GPU-1111,{UUIDS[2]}", []),
        ("GPU-1111,0", [2]),
        ("0,GPU-1111", [0]),
        ("gpu-1111", []),
        ("GPU-", []),
    ],
)
def test_a_mask_of_uuids_takes_prefixes_that_mean_one_card(mask, indices):
    assert seen(mask) == indices


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0]),
        ("MIG-bbbb2222-2", [1]),
        ("MIG-bbbb", [1]),
        ("MIG-aaaa1111-1,MIG-bbbb2222-2", [0]),
        ("GPU-whole", [2]),
        ("1", [2]),
        ("0", [0]),
        ("GPU-parent", []),
    ],
)
def test_a_process_sees_one_mig_instance_and_nothing_beside_it(mask, indices):
    assert seen(mask, MIG) == indices


def test_a_card_on_which_cuda_cannot_run_is_not_counted():
    cards = (Card(index=0, uuid="GPU-a", compute_capable=False), Card(index=1, uuid="GPU-b"))
    assert seen("0", cards) == [1]


@pytest.mark.parametrize("wanted", ["void", "none", "", " "])
def test_a_container_without_cards_is_told_how_to_get_them(wanted):
    note = container_note({"NVIDIA_VISIBLE_DEVICES": wanted})
    assert note is not None
    assert "--gpus all" in note


@pytest.mark.parametrize("wanted", ["all", "0,1", "GPU-8932f937", "7"])
def test_a_container_s_list_has_done_its_work_already(wanted):
    assert container_note({"NVIDIA_VISIBLE_DEVICES": wanted}) is None
    assert container_note({}) is None
    assert visible_cards(CARDS, {"NVIDIA_VISIBLE_DEVICES": wanted}) == CARDS


def test_two_masks_on_amd_are_worth_a_word_and_one_is_not():
    assert rocm_note({"HIP_VISIBLE_DEVICES": "0"}) is None
    note = rocm_note({"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"})
    assert note is not None
    assert "ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES" in note


# --- what a child is given ------------------------------------------------------------------------


def test_report_13_a_pinned_model_does_not_see_the_other_card_at_all():
    chosen = device_selection([device("CUDA1", UUIDS[1])], {})
    assert chosen.env == {CUDA_MASK: UUIDS[1]}
    assert chosen.labels == ("CUDA0",)
    assert chosen.flags == ("-dev", "CUDA0")
    assert [card.index for card in visible_cards(CARDS, chosen.env)] == [1]


def test_report_14_cards_are_hidden_and_no_main_gpu_is_relied_on():
    chosen = device_selection([device("CUDA2", UUIDS[2])], {})
    assert visible_cards(CARDS, chosen.env) == (CARDS[2],)
    assert not {"-mg", "--main-gpu", "-sm"} & set(chosen.flags)


def test_report_15_a_card_with_no_share_is_left_out_rather_than_given_a_zero():
    chosen = device_selection([device("CUDA0", UUIDS[0]), device("CUDA2", UUIDS[2])], {})
    assert chosen.env == {CUDA_MASK: f"{UUIDS[0]},{UUIDS[2]}"}
    assert chosen.labels == ("CUDA0", "CUDA1")


def test_report_74_a_pin_is_by_uuid_so_that_no_order_of_cards_changes_it():
    pinned = [device("CUDA0", UUIDS[2])]
    for cards in (CARDS, CARDS[::-1], CARDS[1:] + CARDS[:1]):
        (card,) = visible_cards(cards, device_selection(pinned, {}).env)
        assert card.uuid == UUIDS[2]


def test_the_order_that_was_asked_for_is_the_order_in_the_child():
    chosen = device_selection([device("CUDA2", UUIDS[2]), device("CUDA0", UUIDS[0])], {})
    assert [card.index for card in visible_cards(CARDS, chosen.env)] == [2, 0]
    assert chosen.labels == ("CUDA0", "CUDA1")


@pytest.mark.parametrize(
    ("mask", "label", "entry"),
    [
        (None, "CUDA1", "1"),
        ("3,5", "CUDA0", "3"),
        ("3,5", "CUDA1", "5"),
        (" 3 , 5 ", "CUDA1", "5"),
        ("GPU-11,GPU-8932f", "CUDA1", "GPU-8932f"),
        ("MIG-aa", "CUDA0", "MIG-aa"),
    ],
)
def test_without_uuids_a_pin_is_the_entry_of_our_own_mask(mask, label, entry):
    environ = {} if mask is None else {CUDA_MASK: mask}
    chosen = device_selection([device(label)], environ)
    assert chosen.env == {CUDA_MASK: entry}
    assert chosen.labels == ("CUDA0",)


def test_uuids_and_indices_are_not_mixed_in_one_mask():
    chosen = device_selection([device("CUDA0", UUIDS[0]), device("CUDA1")], {CUDA_MASK: "4,2"})
    assert chosen.env == {CUDA_MASK: "4,2"}


def test_a_label_that_our_mask_cannot_have_made_is_named_and_not_masked():
    chosen = device_selection([device("CUDA3")], {CUDA_MASK: "0"})
    assert (chosen.env, chosen.flags) == ({}, ("-dev", "CUDA3"))


def test_virtual_cards_have_labels_alone():
    chosen = device_selection([device("CUDA3")], {"GGML_CUDA_DEVICES": "4"})
    assert (chosen.env, chosen.labels) == ({}, ("CUDA3",))


@pytest.mark.parametrize("label", ["ROCm1", "Vulkan0", "MTL0", "SYCL2", "RPC0", "RPC[a:1]"])
def test_other_devices_are_named_under_the_environment_that_they_were_listed_with(label):
    environ = {"HIP_VISIBLE_DEVICES": "1,0", "ROCR_VISIBLE_DEVICES": "2", CUDA_MASK: "1"}
    chosen = device_selection([device(label)], environ)
    assert (chosen.env, chosen.flags, chosen.labels) == ({}, ("-dev", label), (label,))


def test_a_remote_device_beside_a_card_keeps_its_name():
    chosen = device_selection([device("RPC1"), device("CUDA1", UUIDS[1])], {})
    assert chosen.env == {CUDA_MASK: UUIDS[1]}
    assert chosen.flags == ("-dev", "RPC1,CUDA0")


def test_the_cpu_alone_makes_no_cuda_context():
    assert device_selection([], {}, backend="cuda").env == {CUDA_MASK: ""}
    assert visible_cards(CARDS, device_selection([], {}, backend="cuda").env) == ()
    assert device_selection([], {}, backend="rocm").env == {}
    assert device_selection([], {}).flags == ("-dev", "none")


@pytest.mark.parametrize("labels", [[], ["CUDA0"], ["ROCm0", "RPC0"], ["Vulkan1"]])
def test_never_more_than_one_mask_is_set(labels):
    for backend in ("cuda", "rocm", "unknown"):
        chosen = device_selection([device(label) for label in labels], {}, backend=backend)
        assert len(set(chosen.env) & set(ROCM_MASKS)) <= 1


def test_a_mig_instance_cannot_be_split_with_another_card():
    part = device("CUDA0", "MIG-a", parent="GPU-p")
    reason = why_not_together([part, device("CUDA1", "GPU-b")])
    assert reason is not None
    assert "CUDA0 is a MIG instance" in reason
    with pytest.raises(ValueError, match="MIG"):
        device_selection([part, device("CUDA1", "GPU-b")], {})
    assert why_not_together([part]) is None
    assert why_not_together([part, device("RPC0")]) is None
    assert device_selection([part], {}).env == {CUDA_MASK: "MIG-a"}


def test_names_in_a_child_count_from_zero_for_cuda_alone():
    devices = [device("CUDA3"), device("RPC0"), device("CUDA1"), device("ROCm1")]
    assert labels_in_child(devices) == ("CUDA0", "RPC0", "CUDA1", "ROCm1")
