"""What runs a group, as a protocol, and the choice between the two kinds.

A host only carries out: which member is loaded or makes room is decided in `state.py`, for both
alike. How far a load is, that an engine is ready and why one died comes from the launchers, for
both alike; a host adds only what a launcher cannot say: that no launcher came to life, or that the
host itself is gone.

| call     | direct              | llama-swap                                        |
| -------- | ------------------- | ------------------------------------------------- |
| start    | takes ports         | takes ports, writes the config, starts llama-swap |
| load     | starts the launcher | asks for `/upstream/<id>/health`, held open       |
| unload   | stops the launcher  | `POST /api/models/unload/<id>`                    |
| stop     | stops all launchers | unloads all, stops llama-swap, sweeps its session |
| upstream | llama-server itself | `/upstream/<id>` of llama-swap                    |
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from pannier.errors import Failure
from pannier.fleet.ports import Ports
from pannier.fleet.store import Store

HostKind = Literal["llama-swap", "direct"]

STOP_GRACE_S = 12.0
"""A launcher gives its engine 10 s to end by itself before it kills it."""


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """Where the requests of an instance go: the base of the URL, and what must be sent along."""

    url: str
    headers: dict[str, str] = {}


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """How a host tells its owner what it sees. Called from the loop, never from a thread.

    `gone(instance, why)`: no engine runs for this instance any more, as far as the host can see.
    `down(failure)`: the host itself ended. `say(line)`: a line for the log.
    """

    gone: Callable[[str, str], None]
    down: Callable[[Failure], None]
    say: Callable[[str], None]


class Workplace(msgspec.Struct, frozen=True, kw_only=True):
    """What all hosts of a fleet share."""

    store: Store
    ports: Ports
    env: dict[str, str]


class Host(Protocol):
    """What runs one group; its owner task makes one call at a time per instance."""

    async def start(self) -> None:
        """Bring the host up. Raises HostError."""

    async def load(self, instance: str) -> None:
        """Begin to load; returns when the engine is being started. Raises HostError."""

    async def unload(self, instance: str) -> None:
        """Stop the engine of an instance; returns when it is gone. Never raises."""

    async def stop(self) -> None:
        """Stop everything; returns when nothing is left. Never raises, in any state."""

    def upstream(self, instance: str) -> Upstream:
        """Where the requests of an instance go while it is ready."""

    def port(self, instance: str) -> int | None:
        """The port of an instance's llama-server, None before the start."""


def launcher_command(socket: Path) -> tuple[str, ...]:
    """The argv that every llama-server is started behind, up to the instance's id."""
    return (sys.executable, "-m", "pannier.fleet.launcher", "--socket", str(socket))


def guard_command() -> tuple[str, ...]:
    """The argv that llama-swap is started behind: it dies with us, which Go cannot promise."""
    return (sys.executable, "-m", "pannier.fleet.launcher", "--guard", "--")


def choose_host(wanted: str, llama_swap: str | None) -> HostKind:
    """`auto` takes llama-swap where it is found. What was asked for by name was checked before."""
    if wanted == "direct" or llama_swap is None:
        return "direct"
    return "llama-swap"
