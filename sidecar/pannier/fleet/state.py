r"""The state machine of one group: (state, event) -> (state, effects). Pure.

Every decision about a group is made here and nowhere else, for both hosts: what is loaded next,
who makes room in a swap set, when a drain is over, what a crash means. The owner task in `loop.py`
feeds events in one at a time and carries the effects out.

A member of a group:

    cold -> queued -> loading -> ready -> draining -> unloading -> cold
                          \-> failed (until somebody asks again)

Fairness in a swap set: who asks first is served first. A resident member whose room another one
waits for takes no new requests (it drains), finishes the running ones, and makes room; requests for
it that come meanwhile stand in the queue behind.

Must not: read a clock, wait, or know what a process is.
"""

from typing import Literal, assert_never

import msgspec

from pannier.errors import Failure
from pannier.fleet import messages as m
from pannier.fleet.backoff import MAX_TRIES
from pannier.fleet.messages import Effect, Event

GroupPhase = Literal["absent", "starting", "ready", "draining", "stopping", "backoff", "failed"]
MemberPhase = Literal["cold", "queued", "loading", "ready", "draining", "unloading", "failed"]

REPLACED = Failure(
    code="replaced", message="the model is being restarted by a change of the config"
)
UNLOADED = Failure(code="unloaded", message="the model was unloaded while it was loading")


class Member(msgspec.Struct, frozen=True):
    """One instance of the group: `asked` requests wait for it, `inflight` are being served.

    `wished` says that it shall be loaded whether anybody waits or not.
    """

    phase: MemberPhase = "cold"
    asked: int = 0
    wished: bool = False
    inflight: int = 0
    crashes: int = 0
    failure: Failure | None = None


class GroupState(msgspec.Struct, frozen=True):
    """The whole state of a group; `queue` holds members that wait for a load, in their order."""

    members: dict[str, Member]
    swap: bool = False
    phase: GroupPhase = "absent"
    queue: tuple[str, ...] = ()
    attempts: int = 0
    failure: Failure | None = None


Step = tuple[GroupState, tuple[Effect, ...]]


def initial(members: tuple[str, ...], *, swap: bool) -> GroupState:
    """The state of a group that nothing has been done for."""
    return GroupState(members={name: Member() for name in members}, swap=swap)


def step(state: GroupState, event: Event) -> Step:
    """The next state and what has to be done. Total: no event in any state raises."""
    if isinstance(event, m.GroupEvent):
        return _group_event(state, event)
    return _member_event(state, event) if event.member in state.members else (state, ())


def _group_event(state: GroupState, event: m.GroupEvent) -> Step:
    leaving = state.phase in ("draining", "stopping")
    match event:
        case m.Begin() if state.phase == "absent":
            return _with(state, phase="starting"), (m.StartHost(),)
        case m.RetryDue() if state.phase == "backoff":
            return _with(state, phase="starting"), (m.StartHost(),)
        case m.HostUp() if state.phase == "starting":
            return _host_up(state)
        case m.HostSteady() if state.phase == "ready":
            return _with(state, attempts=0), ()
        case m.HostDown(failure=failure) if state.phase in ("starting", "ready"):
            return _host_down(state, failure)
        case m.StopAsked() if state.phase == "absent":
            return state, ()
        case m.StopAsked() if not leaving:
            return _drain_group(state)
        case m.GroupDrainOver():
            return _stop_now(state)
        case m.Stopped() if state.phase == "stopping":
            cold = {name: Member() for name in state.members}
            return _with(state, phase="absent", members=cold, queue=()), ()
        case _:
            return state, ()


def _host_up(state: GroupState) -> Step:
    """Up is not steady: a host that only ever comes up and dies is given up as well."""
    state, effects = _pump(_with(state, phase="ready", failure=None))
    return state, (m.WatchHost(), *effects)


def _host_down(state: GroupState, failure: Failure) -> Step:
    """All members are gone with their host; waiting requests are told why. Then a new try."""
    attempts = state.attempts + 1
    effects: list[Effect] = []
    members = {}
    for name, member in state.members.items():
        if member.asked:
            effects.append(m.Refuse(name, failure))
        if member.phase == "failed":  # it keeps its own reason
            members[name] = member
            continue
        hit = member.asked or member.phase in ("queued", "loading", "ready", "draining")
        members[name] = Member(
            phase="failed" if hit else "cold",
            inflight=member.inflight,
            crashes=member.crashes,
            failure=failure if hit else None,
        )
    given_up = attempts >= MAX_TRIES
    after = _with(
        state,
        phase="failed" if given_up else "backoff",
        members=members,
        queue=(),
        attempts=attempts,
        failure=failure,
    )
    if not given_up:
        effects.append(m.RetryHost(attempts))
        effects += [m.LoadAgain(name, attempts) for name, each in members.items() if each.failure]
    return after, tuple(effects)


def _drain_group(state: GroupState) -> Step:
    effects: list[Effect] = []
    members = {}
    for name, member in state.members.items():
        if member.asked:
            effects.append(m.Refuse(name, REPLACED))
        phase = "draining" if member.inflight and member.phase == "ready" else member.phase
        members[name] = msgspec.structs.replace(member, asked=0, phase=phase)
    after = _with(state, phase="draining", members=members, queue=())
    if any(member.inflight for member in members.values()):
        return after, (*effects, m.WatchGroupDrain())
    stopped, more = _stop_now(after)
    return stopped, (*effects, *more)


def _stop_now(state: GroupState) -> Step:
    if state.phase != "draining":
        return state, ()
    return _with(state, phase="stopping"), (m.StopHost(),)


def _member_event(state: GroupState, event: m.MemberEvent) -> Step:
    name = event.member
    member = state.members[name]
    match event:
        case m.Asked():
            return _asked(state, name, member, holds=event.holds)
        case m.Left():
            return _left(state, name, member)
        case m.Done():
            return _done(state, name, member)
        case m.Ready():
            return _ready(state, name, member)
        case m.Ended():
            return _ended(state, name, member, event.failure)
        case m.Steady():
            return _put(state, name, crashes=0), ()
        case m.AgainDue():
            return _again(state, name, member)
        case m.IdleOver() if member.phase != "ready" or member.inflight:
            return state, ()
        case m.UnloadAsked() | m.IdleOver():
            return _unload(state, name, member)
        case m.DrainOver():
            if member.phase != "draining" or state.phase != "ready":
                return state, ()
            return _put(state, name, phase="unloading"), (m.Unload(name),)
        case _:
            assert_never(event)


def _asked(state: GroupState, name: str, member: Member, *, holds: bool) -> Step:
    if state.phase in ("draining", "stopping", "absent"):
        return state, ((m.Refuse(name, REPLACED),) if holds else ())
    if member.phase == "ready":
        if not holds:
            return state, ()
        return _put(state, name, inflight=member.inflight + 1), (m.Grant(name),)
    asked = member.asked + 1 if holds else member.asked
    state = _put(state, name, asked=asked, wished=member.wished or not holds)
    if member.phase in ("cold", "failed"):
        state = _put(state, name, phase="queued", failure=None)
    if state.members[name].phase != "loading" and name not in state.queue:
        state = _with(state, queue=(*state.queue, name))
    if state.phase == "failed":
        return _with(state, phase="starting", attempts=0), (m.StartHost(),)
    return _pump(state)


def _left(state: GroupState, name: str, member: Member) -> Step:
    """Nobody waits any more for what has not begun: it must not push another one out."""
    state = _put(state, name, asked=max(0, member.asked - 1))
    if member.asked > 1 or member.wished or name not in state.queue:
        return state, ()
    state = _with(state, queue=tuple(other for other in state.queue if other != name))
    if member.phase == "queued":
        state = _put(state, name, phase="cold")
    return _pump(state)


def _again(state: GroupState, name: str, member: Member) -> Step:
    """A wait that is over is nobody who asks: it wakes no host that was given up."""
    if member.phase != "failed" or state.phase == "failed":
        return state, ()
    return _asked(state, name, member, holds=False)


def _done(state: GroupState, name: str, member: Member) -> Step:
    left = max(0, member.inflight - 1)
    state = _put(state, name, inflight=left)
    if state.phase == "draining":
        busy = any(other.inflight for other in state.members.values())
        return (state, ()) if busy else _stop_now(state)
    if left or state.phase != "ready":
        return state, ()
    if member.phase == "draining":
        return _put(state, name, phase="unloading"), (m.Unload(name),)
    return state, ((m.WatchIdle(name),) if member.phase == "ready" else ())


def _ready(state: GroupState, name: str, member: Member) -> Step:
    if member.phase != "loading":
        return state, ()
    effects: tuple[Effect, ...] = (m.Grant(name),) if member.asked else (m.WatchIdle(name),)
    state = _put(
        state,
        name,
        phase="ready",
        inflight=member.inflight + member.asked,
        asked=0,
        wished=False,
        failure=None,
    )
    state, more = _pump(state)
    return state, (*effects, *more)


def _ended(state: GroupState, name: str, member: Member, failure: Failure | None) -> Step:
    if state.phase != "ready":
        return state, ()
    if member.phase == "failed":
        return state, ()
    if member.phase == "unloading" or failure is None:
        waits = name in state.queue
        effects: tuple[Effect, ...] = ()
        if member.phase == "loading" and member.asked and not waits:
            effects = (m.Refuse(name, UNLOADED),)
            member = msgspec.structs.replace(member, asked=0)
        gone = _put(state, name, phase="queued" if waits else "cold", asked=member.asked)
        after, more = _pump(gone)
        return after, (*effects, *more)
    if member.phase not in ("loading", "ready", "draining"):
        return state, ()
    was_ready = member.phase != "loading"
    crashes = member.crashes + 1 if was_ready else member.crashes
    effects = (m.Refuse(name, failure),) if member.asked else ()
    if was_ready and crashes < MAX_TRIES:
        effects = (*effects, m.LoadAgain(name, crashes))
    state = _put(
        state, name, phase="failed", asked=0, wished=False, crashes=crashes, failure=failure
    )
    state = _with(state, queue=tuple(other for other in state.queue if other != name))
    state, more = _pump(state)
    return state, (*effects, *more)


def _unload(state: GroupState, name: str, member: Member) -> Step:
    if state.phase != "ready":
        return state, ()
    match member.phase:
        case "ready" if member.inflight:
            return _put(state, name, phase="draining"), (m.WatchDrain(name),)
        case "ready":
            return _put(state, name, phase="unloading"), (m.Unload(name),)
        case "loading":
            effects: tuple[Effect, ...] = (m.Refuse(name, UNLOADED),) if member.asked else ()
            gone = _put(state, name, phase="unloading", asked=0, wished=False)
            return gone, (*effects, m.Unload(name))
        case "queued":
            state = _with(state, queue=tuple(other for other in state.queue if other != name))
            effects = (m.Refuse(name, UNLOADED),) if member.asked else ()
            return _put(state, name, phase="cold", asked=0, wished=False), effects
        case "failed":
            return _put(state, name, phase="cold", failure=None), ()
        case _:
            return state, ()


def _pump(state: GroupState) -> Step:
    """Starts what can be started; in a swap set, makes room for the first in the queue."""
    if state.phase != "ready" or not state.queue:
        return state, ()
    if not state.swap:
        effects: list[Effect] = []
        later = []
        for name in state.queue:
            if state.members[name].phase == "queued":
                state = _put(state, name, phase="loading")
                effects.append(m.Load(name))
            else:
                later.append(name)  # it is still leaving: it loads again when it is gone
        return _with(state, queue=tuple(later)), tuple(effects)
    return _pump_swap(state)


def _pump_swap(state: GroupState) -> Step:
    first = state.queue[0]
    busy = [
        name
        for name, member in state.members.items()
        if member.phase in ("loading", "draining", "unloading")
    ]
    if busy:
        return state, ()
    resident = [name for name, member in state.members.items() if member.phase == "ready"]
    if not resident:
        state = _put(_with(state, queue=state.queue[1:]), first, phase="loading")
        return state, (m.Load(first),)
    effects: list[Effect] = []
    for name in resident:
        if state.members[name].inflight:
            state = _put(state, name, phase="draining")
            effects.append(m.WatchDrain(name))
        else:
            state = _put(state, name, phase="unloading")
            effects.append(m.Unload(name))
    return state, tuple(effects)


def _put(state: GroupState, name: str, **changes: object) -> GroupState:
    member = msgspec.structs.replace(state.members[name], **changes)
    return _with(state, members={**state.members, name: member})


def _with(state: GroupState, **changes: object) -> GroupState:
    return msgspec.structs.replace(state, **changes)
