"""Memory that is not what the rules say is told where people look: among the notes."""

import json

import msgspec
from tests.fakes.snapshots import TWO, snapshot_of

from pannier.serve.rows import listing


def notes(snapshot):
    return json.loads(msgspec.json.encode(listing(snapshot, 0.0)))["config"]["notes"]


def test_what_a_load_took_beyond_the_rules_is_told_with_its_instance() -> None:
    snapshot = msgspec.structs.replace(
        snapshot_of(TWO), memory_notes={"b": ("more KV",), "a": ("more weights", "more KV")}
    )
    assert notes(snapshot) == ["a: more weights", "a: more KV", "b: more KV"]


def test_an_instance_that_is_not_planned_any_more_is_not_told_of() -> None:
    snapshot = msgspec.structs.replace(snapshot_of(TWO), memory_notes={"gone": ("more KV",)})
    assert notes(snapshot) == []
