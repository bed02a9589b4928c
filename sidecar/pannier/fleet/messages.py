"""What the owner of a group and its state machine say to each other.

Events tell what happened, effects what the owner shall do next. Both are values, so a test can feed
any order of events and read off what would be done.

Must not: carry anything that is not plain data.
"""

import msgspec

from pannier.errors import Failure


# Events: what happened.
class Begin(msgspec.Struct, frozen=True):
    """The group shall run."""


class HostUp(msgspec.Struct, frozen=True):
    """The host of the group runs."""


class HostDown(msgspec.Struct, frozen=True):
    """The host could not be started, or ended by itself."""

    failure: Failure


class HostSteady(msgspec.Struct, frozen=True):
    """The host ran long enough to forget that earlier ones ended."""


class RetryDue(msgspec.Struct, frozen=True):
    """The backoff of the host is over."""


class Asked(msgspec.Struct, frozen=True):
    """A request waits for a member; with `holds` false it is only a wish that it be loaded."""

    member: str
    holds: bool = True


class Left(msgspec.Struct, frozen=True):
    """A waiting request gave up."""

    member: str


class Done(msgspec.Struct, frozen=True):
    """A request that was being served ended."""

    member: str


class Ready(msgspec.Struct, frozen=True):
    """The engine of a member answered."""

    member: str


class Ended(msgspec.Struct, frozen=True):
    """The process of a member is gone; `failure` is None when it was asked to go."""

    member: str
    failure: Failure | None = None


class UnloadAsked(msgspec.Struct, frozen=True):
    """A person, a router or the idle timer wants a member out of memory."""

    member: str


class IdleOver(msgspec.Struct, frozen=True):
    """A member was idle for its ttl; ignored when a request came meanwhile."""

    member: str


class Steady(msgspec.Struct, frozen=True):
    """A member was ready long enough to forget earlier crashes."""

    member: str


class AgainDue(msgspec.Struct, frozen=True):
    """The backoff of a crashed member is over."""

    member: str


class DrainOver(msgspec.Struct, frozen=True):
    """A member that makes room had its time to finish what it was answering."""

    member: str


class GroupDrainOver(msgspec.Struct, frozen=True):
    """The whole group had its time to finish what it was answering."""


class StopAsked(msgspec.Struct, frozen=True):
    """The group shall end: it was changed or removed, or Pannier stops."""


class Stopped(msgspec.Struct, frozen=True):
    """The host is gone, and everything it ran."""


GroupEvent = (
    Begin | HostUp | HostDown | HostSteady | RetryDue | StopAsked | GroupDrainOver | Stopped
)
MemberEvent = (
    Asked | Left | Done | Ready | Ended | UnloadAsked | IdleOver | Steady | AgainDue | DrainOver
)
Event = GroupEvent | MemberEvent


# Effects: what the owner does next.
class StartHost(msgspec.Struct, frozen=True):
    """Start the host."""


class StopHost(msgspec.Struct, frozen=True):
    """Stop the host and everything it runs."""


class WatchHost(msgspec.Struct, frozen=True):
    """Send HostSteady when the host has run for long."""


class RetryHost(msgspec.Struct, frozen=True):
    """Send RetryDue after the backoff of this attempt."""

    attempt: int


class Load(msgspec.Struct, frozen=True):
    """Load a member."""

    member: str


class Unload(msgspec.Struct, frozen=True):
    """Stop a member's engine."""

    member: str


class Grant(msgspec.Struct, frozen=True):
    """Let the requests that wait for a member through; they count as inflight already."""

    member: str


class Refuse(msgspec.Struct, frozen=True):
    """Answer the requests that wait for a member with a failure."""

    member: str
    failure: Failure


class LoadAgain(msgspec.Struct, frozen=True):
    """Send AgainDue after the backoff of this attempt, if the member is wanted loaded."""

    member: str
    attempt: int


class WatchIdle(msgspec.Struct, frozen=True):
    """Start the idle timer of a member anew."""

    member: str


class WatchDrain(msgspec.Struct, frozen=True):
    """Send DrainOver when the drain of a member takes too long."""

    member: str


class WatchGroupDrain(msgspec.Struct, frozen=True):
    """Send GroupDrainOver when the drain of the group takes too long."""


Effect = (
    StartHost
    | StopHost
    | WatchHost
    | RetryHost
    | Load
    | Unload
    | Grant
    | Refuse
    | LoadAgain
    | WatchIdle
    | WatchDrain
    | WatchGroupDrain
)
