"""The state machine of a group against a small model of the world that answers its effects.

The world starts hosts, loads and unloads engines, lets both fail and crash, and holds requests as
the owner does. Whatever order things happen in, what the machine believes must be what is so; and
when the world goes on fairly, everybody who waits is answered.
"""

from collections import Counter, deque

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pannier.errors import Failure
from pannier.fleet import messages as m
from pannier.fleet.backoff import MAX_TRIES
from pannier.fleet.state import initial, step

NAMES = ("a", "b", "c")
CRASH = Failure(code="engine-exited", message="it crashed")
DOWN = Failure(code="host-failed", message="the host is down")
calm = settings(deadline=None, max_examples=150, stateful_step_count=60)

MEMBER = st.sampled_from(NAMES)
FAILURE = st.sampled_from([None, CRASH])
ANY_EVENT = st.one_of(
    st.sampled_from(
        (
            *(m.Begin(), m.HostUp(), m.HostDown(DOWN), m.HostSteady(), m.RetryDue()),
            *(m.StopAsked(), m.GroupDrainOver(), m.Stopped()),
        )
    ),
    st.builds(m.Asked, MEMBER, st.booleans()),
    st.builds(m.Ended, MEMBER, FAILURE),
    *[
        st.builds(kind, MEMBER)
        for kind in (m.Left, m.Done, m.Ready, m.UnloadAsked, m.IdleOver, m.Steady)
    ],
    st.builds(m.AgainDue, MEMBER),
    st.builds(m.DrainOver, st.sampled_from((*NAMES, "a stranger"))),
)


@calm
@given(st.lists(ANY_EVENT, max_size=60), st.booleans())
def test_no_event_in_any_state_raises_or_breaks_the_books(events, swap):
    state = initial(NAMES, swap=swap)
    for event in events:
        state, _ = step(state, event)
        assert set(state.members) == set(NAMES)
        assert len(set(state.queue)) == len(state.queue)
        for name, member in state.members.items():
            assert member.asked >= 0
            assert member.inflight >= 0
            assert (member.failure is not None) == (member.phase == "failed")
            waits = member.asked and state.phase not in ("draining", "stopping")
            assert not waits or name in state.queue or member.phase == "loading"


class World:
    """What the effects of one group do, and the requests that hold its members."""

    def __init__(self, *, swap: bool) -> None:
        self.state = initial(NAMES, swap=swap)
        self.host = "none"
        self.engines: dict[str, str] = {}
        self.waiting: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self.again: set[str] = set()
        self.tries: dict[str, list[int]] = {name: [] for name in NAMES}
        self.retry = self.unsteady = False
        self.starts: list[str] = []
        self.cut: set[str] = set()

    def tell(self, event: m.Event) -> None:
        self.state, effects = step(self.state, event)
        for effect in effects:
            self.carry_out(effect)

    def carry_out(self, effect: m.Effect) -> None:
        match effect:
            case m.StartHost():
                assert self.host in ("none", "broken")
                self.host = "starting"
                self.starts.append("start")
            case m.StopHost():
                assert self.host not in ("stopping", "gone"), "stopped twice"
                self.host = "stopping"
                self.starts.append("stop")
            case m.RetryHost(attempt=attempt):
                assert 1 <= attempt < MAX_TRIES
                self.retry = True
            case m.Load(member=name):
                assert self.host == "up"
                assert name not in self.engines, "it still runs"
                assert not self.state.swap or not self.engines, "there is no room"
                self.engines[name] = "loading"
            case m.Unload(member=name):
                assert self.host == "up"
                assert self.engines[name] in ("loading", "ready")
                # While it loads, what is still served was let through to an engine before it.
                answering = self.served[name] and self.engines[name] == "ready"
                assert not answering or name in self.cut, "it was still answering"
                self.engines[name] = "leaving"
            case m.Grant(member=name):
                assert self.engines[name] == "ready"
                self.served[name] += self.waiting.pop(name)
            case m.Refuse(member=name):
                assert self.waiting.pop(name) > 0, "nobody waited"
            case m.LoadAgain(member=name, attempt=attempt):
                self.again.add(name)
                self.tries[name].append(attempt)

    def ask(self, name: str) -> None:
        self.waiting[name] += 1
        self.tell(m.Asked(name))

    def done(self, name: str) -> None:
        self.served[name] -= 1
        self.tell(m.Done(name))

    def host_goes_down(self) -> None:
        self.host, self.engines = "broken", {}
        self.tell(m.HostDown(DOWN))

    def ends(self, name: str, failure: Failure | None) -> None:
        del self.engines[name]
        self.tell(m.Ended(name, failure))

    def go_on(self) -> bool:
        """One thing that a healthy world does next; false when nothing is left to happen."""
        if self.host == "starting":
            self.host = "up"
            self.tell(m.HostUp())
        elif self.host == "stopping":
            self.host, self.engines = "gone", {}
            self.tell(m.Stopped())
        elif self.retry:
            self.retry = False
            self.tell(m.RetryDue())
        elif leaving := [name for name, phase in self.engines.items() if phase == "leaving"]:
            self.ends(leaving[0], None)
        elif loading := [name for name, phase in self.engines.items() if phase == "loading"]:
            self.engines[loading[0]] = "ready"
            self.tell(m.Ready(loading[0]))
        elif served := [name for name in NAMES if self.served[name] > 0]:
            self.done(served[0])
        else:
            return False
        return True


class Life(RuleBasedStateMachine):
    """Everything that can happen to a group, in any order."""

    @initialize(swap=st.booleans())
    def begin(self, swap):
        self.world = World(swap=swap)
        self.world.tell(m.Begin())

    @rule(name=MEMBER, many=st.integers(1, 3))
    def ask(self, name, many):
        for _ in range(many):
            self.world.ask(name)

    @rule(name=MEMBER)
    def wish(self, name):
        self.world.tell(m.Asked(name, holds=False))

    @precondition(lambda self: self.world.waiting.total())
    @rule(data=st.data())
    def leave(self, data):
        name = data.draw(st.sampled_from(sorted(+self.world.waiting)))
        loads = dict(self.world.engines)
        self.world.waiting[name] -= 1
        self.world.tell(m.Left(name))
        assert self.world.engines == loads, "a load stops for nobody who leaves"

    @rule(times=st.integers(1, 4))
    def the_world_goes_on(self, times):
        for _ in range(times):
            self.world.go_on()

    @precondition(lambda self: self.world.engines)
    @rule(data=st.data())
    def an_engine_crashes(self, data):
        name = data.draw(st.sampled_from(sorted(self.world.engines)))
        self.world.ends(name, CRASH)

    @precondition(lambda self: self.world.engines)
    @rule(data=st.data())
    def an_engine_ends_by_itself(self, data):
        self.world.ends(data.draw(st.sampled_from(sorted(self.world.engines))), None)

    @precondition(lambda self: self.world.host in ("starting", "up"))
    @rule()
    def the_host_goes_down(self):
        self.world.host_goes_down()

    @rule(name=MEMBER)
    def unload(self, name):
        refuses = self.world.state.phase == "ready" and self.world.engines.get(name) == "loading"
        self.world.tell(m.UnloadAsked(name))
        assert not refuses or not self.world.waiting[name] or name in self.world.state.queue

    @rule(name=MEMBER)
    def idle(self, name):
        self.world.tell(m.IdleOver(name))

    @rule(name=MEMBER)
    def the_drain_of_a_member_is_over(self, name):
        self.world.cut.add(name)
        self.world.tell(m.DrainOver(name))
        self.world.cut.discard(name)

    @precondition(lambda self: self.world.again)
    @rule(data=st.data())
    def a_wait_after_a_crash_is_over(self, data):
        name = data.draw(st.sampled_from(sorted(self.world.again)))
        self.world.again.discard(name)
        self.world.tell(m.AgainDue(name))

    @rule(name=MEMBER)
    def steady(self, name):
        self.world.tries[name].clear()
        self.world.tell(m.Steady(name))

    @rule()
    def the_host_is_steady(self):
        self.world.tell(m.HostSteady())

    @rule(rarely=st.integers(0, 9), cut=st.booleans())
    def stop(self, rarely, cut):
        if rarely == 0:
            self.world.tell(m.StopAsked())
            if cut:
                self.world.tell(m.GroupDrainOver())

    @invariant()
    def what_it_believes_is_so(self):
        world, state = self.world, self.world.state
        # A group on its way out only counts: what ends in it is not looked at any more.
        running = state.phase not in ("draining", "stopping", "absent")
        for name, member in state.members.items():
            if running or state.phase == "draining":
                assert member.inflight == world.served[name]
            assert member.asked == world.waiting[name]
            believed = {"loading": "loading", "ready": "ready", "draining": "ready"}
            if running and name in world.engines:
                assert believed.get(member.phase, "leaving") == world.engines[name]
            elif running:
                assert member.phase in ("cold", "queued", "failed")

    @invariant()
    def in_a_swap_set_at_most_one_is_in_memory(self):
        busy = [
            name
            for name, member in self.world.state.members.items()
            if member.phase in ("loading", "ready", "draining", "unloading")
        ]
        assert not self.world.state.swap or len(busy) <= 1

    @invariant()
    def tries_rise_and_end(self):
        assert all(attempt < MAX_TRIES for each in self.world.tries.values() for attempt in each)

    def teardown(self):
        if not hasattr(self, "world"):
            return
        world = self.world
        moves = 0
        while world.go_on():
            moves += 1
            assert moves < 500, "it never comes to rest"
        assert not +world.waiting, "somebody waits for ever"
        world.tell(m.StopAsked())
        while world.go_on():
            pass
        assert world.state.phase == "absent"
        assert world.starts.count("stop") == 1
        assert world.starts[-1] == "stop"


Life.TestCase.settings = calm
TestLife = Life.TestCase


@calm
@given(st.permutations(NAMES), st.integers(1, 3))
def test_a_stream_of_requests_for_one_member_cannot_starve_the_others(order, stream):
    world = World(swap=True)
    world.tell(m.Begin())
    served: deque[str] = deque()
    for name in order:
        world.ask(name)
    greedy = order[0]
    for _ in range(60):
        for _ in range(stream):
            world.ask(greedy)
        world.go_on()
        served += [name for name in NAMES if world.served[name] and name not in served]
        if len(served) == len(NAMES):
            break
    assert list(served) == list(order), "who asks first is served first"


@calm
@given(st.lists(MEMBER, min_size=1, max_size=12))
def test_in_a_swap_set_members_are_served_in_the_order_of_their_first_request(asked):
    world = World(swap=True)
    world.tell(m.Begin())
    for name in asked:
        world.ask(name)
    served: list[str] = []
    while world.go_on():
        served += [name for name in NAMES if world.served[name] and name not in served]
    assert served == list(dict.fromkeys(asked))
