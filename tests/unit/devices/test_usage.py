"""Who holds a card's memory: exact where process ids are readable, honest where they are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pannier.devices.reading import Card, CardProcess, NvmlReading
from pannier.devices.usage import Use, held_by, used_by

OURS = frozenset((10, 11))


def card(uuid: str, used: int | None, *processes: tuple[int, int | None]) -> Card:
    return Card(
        index=0,
        uuid=uuid,
        used=used,
        processes=tuple(CardProcess(pid=pid, bytes=size) for pid, size in processes),
    )


def uses(*cards: Card, pids: frozenset[int] = OURS, **held: int) -> list[tuple]:
    found = used_by(NvmlReading(cards=cards), pids, held)
    return [(use.by_us, use.by_others, use.how) for use in found]


def test_our_processes_are_ours_and_the_rest_is_others():
    found = uses(card("a", 1000, (10, 300), (99, 500)), card("b", 50, (11, 20), (10, 20)))
    assert found == [(300, 700, "pids"), (40, 10, "pids")]


def test_a_card_without_a_process_of_ours_is_others_when_ids_are_readable():
    assert uses(card("a", 9, (10, 9)), card("b", 70, (99, 70)), b=50)[1] == (0, 70, "pids")


def test_whoever_runs_nothing_holds_nothing():
    assert uses(card("a", 70, (99, 70)), pids=frozenset()) == [(0, 70, "pids")]


def test_in_a_container_the_ids_of_the_host_say_nothing_and_it_is_said():
    assert uses(card("a", 900, (4000, 600), (4001, 300)), a=600) == [(600, 300, "difference")]


def test_in_a_container_that_shows_no_process_it_is_the_difference():
    assert uses(card("a", 900), a=600) == [(600, 300, "difference")]


def test_nobody_knows_what_nobody_tells():
    assert uses(card("a", 900, (4000, 600))) == [(None, None, "unknown")]


def test_processes_that_may_not_be_seen_are_the_difference():
    hidden = Card(index=0, uuid="a", used=900)
    assert uses(hidden, a=600) == [(600, 300, "difference")]
    assert uses(hidden) == [(None, None, "unknown")]


def test_ids_without_bytes_are_the_difference():
    assert uses(card("a", 900, (10, None), (11, 5)), a=600) == [(600, 300, "difference")]
    assert uses(card("a", 900, (10, None), (11, 5))) == [(None, None, "unknown")]


def test_what_is_held_by_our_knowledge_is_no_more_than_what_is_used():
    assert uses(card("a", 100), a=600) == [(100, 0, "difference")]


def test_ours_are_known_even_when_the_memory_could_not_be_read():
    assert uses(card("a", None, (10, 300))) == [(300, None, "pids")]
    assert uses(card("a", None), a=600) == [(600, None, "difference")]


def test_two_answers_of_two_moments_give_no_negative_memory():
    assert uses(card("a", 250, (10, 300))) == [(300, 0, "pids")]


def test_a_card_without_a_uuid_is_held_by_nobody_we_know():
    nameless = Card(index=0, used=100, processes=())
    assert used_by(NvmlReading(cards=(nameless,)), OURS, {"": 0}) == (Use(),)


def test_a_reading_that_was_lost_has_no_cards():
    assert used_by(NvmlReading(lost="a hang"), OURS, {"a": 5}) == ()


SIZES = st.integers(0, 1 << 40)
PROCESSES = st.lists(
    st.builds(CardProcess, pid=st.integers(1, 30), bytes=st.none() | SIZES),
    unique_by=lambda process: process.pid,
    max_size=6,
).map(tuple)
CARDS = st.builds(
    Card,
    index=st.integers(0, 3),
    uuid=st.none() | st.sampled_from("abc"),
    used=st.none() | SIZES,
    processes=st.none() | PROCESSES,
)
READINGS = st.builds(NvmlReading, cards=st.lists(CARDS, max_size=4).map(tuple))
PIDS = st.frozensets(st.integers(1, 30), max_size=5)


@given(reading=READINGS, pids=PIDS, held=st.dictionaries(st.sampled_from("abc"), SIZES))
def test_every_card_has_an_answer_that_adds_up(reading, pids, held):
    found = used_by(reading, pids, held)
    assert len(found) == len(reading.cards)
    for card, use in zip(reading.cards, found, strict=True):
        assert (use.how == "unknown") == (use.by_us is None)
        assert (use.by_others is None) == (card.used is None or use.how == "unknown")
        if use.by_others is not None:
            assert use.by_us >= 0
            assert use.by_others == max(0, card.used - use.by_us)
        if use.how == "difference":
            assert use.by_us <= held[card.uuid]


@given(reading=READINGS, pids=PIDS, held=st.dictionaries(st.sampled_from("abc"), SIZES))
def test_ids_that_are_readable_are_exact_whatever_we_believe_to_hold(reading, pids, held):
    visible = {process.pid for card in reading.cards for process in card.processes or ()} & pids
    for card, use in zip(reading.cards, used_by(reading, pids, held), strict=True):
        if use.how == "pids" and pids:
            assert visible or not held.get(card.uuid or "")
            mine = [process.bytes for process in card.processes if process.pid in pids]
            assert use.by_us == sum(mine)


@pytest.mark.parametrize("kind", ["compute", "graphics"])
def test_the_kind_of_a_process_does_not_matter(kind):
    process = CardProcess(pid=10, bytes=7, kind=kind)
    reading = NvmlReading(cards=(Card(index=0, used=9, processes=(process,)),))
    assert used_by(reading, OURS) == (Use(by_us=7, by_others=2, how="pids"),)


def test_what_one_process_holds_is_told_by_card() -> None:
    nameless = Card(index=2, processes=(CardProcess(pid=10, bytes=5),))
    hidden = Card(index=3, uuid="h")
    reading = NvmlReading(
        cards=(card("a", 900, (10, 300), (11, 7)), card("b", 9, (10, 2)), nameless, hidden)
    )
    assert held_by(reading, 10) == {"a": 300, "b": 2}
    assert held_by(reading, 11) == {"a": 7}
    assert held_by(reading, 12) == {}


def test_a_process_whose_bytes_are_not_told_holds_nothing_that_is_known() -> None:
    assert held_by(NvmlReading(cards=(card("a", 900, (10, None)),)), 10) == {}


@given(reading=READINGS, pids=PIDS)
def test_what_our_processes_hold_one_by_one_is_what_they_hold_together(reading, pids):
    """Where all of it is told; a card's UUID may stand for one card alone."""
    uuids = [each.uuid for each in reading.cards]
    for one, use in zip(reading.cards, used_by(reading, pids), strict=True):
        if use.how != "pids" or uuids.count(one.uuid) > 1 or not one.uuid or not pids:
            continue
        alone = [held_by(reading, pid).get(one.uuid, 0) for pid in sorted(pids)]
        assert sum(alone) == use.by_us
