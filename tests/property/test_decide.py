"""What to stop and what to start: untouched, never twice, and settled in the end, in any order."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.host import group, launch

from pannier.fleet.decide import Decision, Running, decide
from pannier.render.llama_swap import GroupLaunch

calm = settings(deadline=None, max_examples=60)

CARDS = st.lists(st.sampled_from(["CUDA0", "CUDA1", "CUDA2"]), max_size=2, unique=True)


@st.composite
def pictures(draw) -> dict[str, GroupLaunch]:
    """Groups as a plan has them: each instance is in one group."""
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=6))
    picture = {}
    while names:
        size = draw(st.integers(1, len(names)))
        members, names = names[:size], names[size:]
        cards, ttl = tuple(draw(CARDS)), draw(st.sampled_from([0.0, 60.0]))
        argv = ("llama-server", "-dev", ",".join(cards))
        launches = [launch(name, devices=cards, argv=argv, ttl_s=ttl) for name in members]
        # Named by the first, so that a group changes its members under one name.
        one = group(members[0], *launches)
        picture[one.id] = one
    return picture


class Carried:
    """Carries decisions out: what is stopped takes until `ends` is called."""

    def __init__(self) -> None:
        self.running: list[Running] = []
        self.keys = 0

    def carry_out(self, picture: dict[str, GroupLaunch]) -> Decision:
        decision = decide(picture, self.running)
        self.running = [
            msgspec.structs.replace(run, leaving=run.leaving or run.key in decision.stop)
            for run in self.running
        ]
        for group_id in decision.start:
            self.keys += 1
            started = picture[group_id]
            self.running.append(Running(key=self.keys, launch=started, leaving=False))
        return decision

    def ends(self, number: int) -> bool:
        leaving = [run for run in self.running if run.leaving]
        if leaving:
            self.running.remove(leaving[number % len(leaving)])
        return bool(leaving)

    def stays(self) -> dict[str, GroupLaunch]:
        return {run.launch.id: run.launch for run in self.running if not run.leaving}

    def check(self) -> None:
        names = [each.instance for run in self.running for each in run.launch.launches]
        assert len(names) == len(set(names)), "an instance runs twice"


EDITS = st.lists(
    st.tuples(pictures(), st.lists(st.integers(0, 9), max_size=3)), min_size=1, max_size=4
)


@calm
@given(EDITS)
def test_whatever_is_edited_meanwhile_the_last_picture_is_what_runs_in_the_end(edits):
    world = Carried()
    picture: dict[str, GroupLaunch] = {}
    for picture, ends in edits:
        world.carry_out(picture)
        world.check()
        for number in ends:
            world.ends(number)
            world.carry_out(picture)
            world.check()
    while world.ends(0):
        world.carry_out(picture)
        world.check()
    assert world.stays() == picture
    assert decide(picture, world.running) == Decision()


@calm
@given(EDITS)
def test_a_decision_that_was_carried_out_decides_nothing_more(edits):
    world = Carried()
    for picture, ends in edits:
        first = world.carry_out(picture)
        again = decide(picture, world.running)
        assert (again.stop, again.start) == ((), ())
        assert again.wait == first.wait
        for number in ends:
            world.ends(number)


@calm
@given(EDITS, pictures())
def test_a_group_that_is_unchanged_is_not_mentioned(edits, picture):
    world = Carried()
    for earlier, ends in edits:
        world.carry_out(earlier)
        for number in ends:
            world.ends(number)
    same = {
        run.key: run.launch.id
        for run in world.running
        if not run.leaving and picture.get(run.launch.id) == run.launch
    }
    decision = decide(picture, world.running)
    assert not same.keys() & set(decision.stop)
    assert not set(same.values()) & {*decision.start, *decision.wait}


@calm
@given(EDITS, pictures())
def test_nothing_starts_before_what_it_needs_is_free(edits, picture):
    world = Carried()
    for earlier, _ in edits:
        world.carry_out(earlier)
    decision = decide(picture, world.running)
    going = [run for run in world.running if run.leaving or run.key in decision.stop]
    held = {each.instance for run in going for each in run.launch.launches}
    cards = {card for run in going for each in run.launch.launches for card in each.devices}
    for group_id in decision.start:
        for each in picture[group_id].launches:
            assert each.instance not in held
            assert not cards & set(each.devices)


@calm
@given(EDITS, pictures(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_told_does_not_matter(edits, picture, random):
    world = Carried()
    for earlier, _ in edits:
        world.carry_out(earlier)
    shuffled = list(world.running)
    random.shuffle(shuffled)
    names = list(picture)
    random.shuffle(names)
    one = decide(picture, world.running)
    other = decide({name: picture[name] for name in names}, shuffled)
    assert (sorted(one.stop), one.start, one.wait) == (
        sorted(other.stop),
        other.start,
        other.wait,
    )


def test_a_group_whose_members_move_to_another_name_waits_for_the_old_one():
    world = Carried()
    world.carry_out({"x": group("x", launch("a"))})
    decision = world.carry_out({"y": group("y", launch("a"))})
    assert decision == Decision(stop=(1,), wait=("y",))
    world.ends(0)
    assert world.carry_out({"y": group("y", launch("a"))}) == Decision(start=("y",))


def test_groups_without_a_card_do_not_wait_for_each_other():
    world = Carried()
    world.carry_out({"x": group("x", launch("a"))})
    assert world.carry_out({"y": group("y", launch("b"))}) == Decision(stop=(1,), start=("y",))
