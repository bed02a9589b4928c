"""An inventory from a file: what `status --json` printed, read as strictly as the config."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pannier.devices.inventory import Device, HostMemory, Inventory
from pannier.devices.inventory_file import parse_inventory
from pannier.errors import PannierError

GIB = 1 << 30
CARD = {
    "index": 0, "backend": "cuda", "label": "CUDA0", "name": "x", "total": 24 * GIB, "free": GIB,
}  # fmt: skip
FOUND = Inventory(
    devices=(
        Device(
            index=0, backend="cuda", label="CUDA0", name="x", total=9, free=3, used_by_us=1,
            used_by_others=5, uuid="GPU-1",
        ),
    ),
    engine_backend="cuda", host=HostMemory(total=5, available=4), notes=("a note",), read_at=1.5,
)  # fmt: skip


def parse(value):
    return parse_inventory(json.dumps(value).encode(), "rig.json")


def refused(content):
    with pytest.raises(PannierError) as caught:
        parse_inventory(content, "rig.json")
    assert caught.value.message.startswith("rig.json: ")
    assert caught.value.hint
    return caught.value.message


def test_what_status_wrote_is_read_back_whole_or_in_its_envelope():
    bare = msgspec.json.encode(FOUND)
    assert parse_inventory(bare, "x") == FOUND
    assert (
        parse_inventory(b'{"version": "1", "engine": null, "inventory": %s}' % bare, "x") == FOUND
    )


def test_a_card_written_by_hand_needs_its_sizes_and_names_alone():
    found = parse({"devices": [CARD], "engine_backend": "cuda"})
    assert found.devices[0].used_by_others == 23 * GIB
    given_ = parse({"devices": [{**CARD, "used_by_others": 0, "used_by_us": 2}]})
    assert given_.devices[0].used_by_others == 0


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        ([{**CARD, "totl": 1}], "unknown field `totl` - at `$.devices[0]`"),
        ([{**CARD, "total": "24GiB"}], "`int`, got `str` - at `$.devices[0].total`"),
        ([{**CARD, "total": -1, "free": -1}], "`total` is -1, expected 0 or more"),
        ([{**CARD, "backend": "cudda"}], "cudda"),
        ([{**CARD, "free": 25 * GIB}], "more than `total`"),
        ([{**CARD, "label": ""}], "needs a label"),
        ([CARD, CARD], "two devices have the index 0"),
        ([CARD, {**CARD, "index": 1}], "two devices have the label 'CUDA0'"),
        ([{"index": 0}], "missing required field"),
        ([1], "$.devices[0]"),
        ({}, "$.devices"),
        (None, "$.devices"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(devices, says):
    assert says in refused(json.dumps({"devices": devices}).encode())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no JSON"), (b"{", "no JSON"), (b"\xff", "no JSON"), (b"[]", "an object is expected"),
        (b'{"inventory": 5}', "an object is expected"), (b"[" * 100_000, ""),
        (b'{"devices": [], "devcies": []}', "devcies"), (b'{"inventory": {"stale": 5}}', "stale"),
        (b'{"devices": [{"total": 1e999}]}', ""),
    ],
    ids=range(9),
)  # fmt: skip
def test_what_is_no_inventory_is_refused_in_words(content, says):
    assert says in refused(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["cuda", "CUDA0"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from([*CARD, "devices", "inventory", "host"]), inner, max_size=8),
    max_leaves=20,
)  # fmt: skip


@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_content_is_an_inventory_or_an_error_in_words(content):
    try:
        found = parse_inventory(content, "rig.json")
    except PannierError:
        return
    assert all(0 <= each.free <= each.total for each in found.devices)
