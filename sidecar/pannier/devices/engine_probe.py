"""Asks llama-server which devices it can use: its answer is the truth about what can be planned on.

`llama-server --list-devices` is the only source that knows the engine's own labels, AMD, Intel,
Apple and RPC devices. On CUDA it makes a context for a moment, so it is asked when something may
have changed, not in a loop. No answer is "unknown", never "no GPU".

Must not: plan, or keep anything.
"""

import os
import re
from collections.abc import Mapping

import msgspec

from pannier.config.schema import Engine
from pannier.devices.inventory import DEVICE_ORDER
from pannier.devices.listing import EngineList, parse_device_list
from pannier.engine.process import Ended, run

PROBE_SECONDS = 20.0
"""A cold CUDA driver takes some seconds to start; a hung one must not hold Pannier up."""

_NO_BACKTRACE = {"GGML_NO_BACKTRACE": "1"}
"""Else an engine that gives up starts a debugger on itself: 4 seconds instead of 0.07, and its last
line is the debugger's (ggml.c, b11434)."""

_NO_CONNECTION = re.compile(r"Failed to connect to (\S+)")
"""One endpoint that does not answer, and llama-server lists nothing at all (ggml-rpc.cpp)."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is asked with. Equal questions may be answered by an earlier answer.

    `env` is the whole environment, as far as devices go what the engine will run with; `stamp` is
    size and modification time of the program, so that another build under the same name is asked.
    """

    server: str
    rpc: tuple[str, ...] = ()
    env: dict[str, str] = {}
    stamp: tuple[int, int] = (0, 0)


def question_of(server: str, engine: Engine, environ: Mapping[str, str]) -> Question:
    """The question to this engine; `environ` is what children get of our environment.

    Whoever shows, plans or runs asks with this, so that a card has one index for all of them.
    Raises OSError when the program is not there.
    """
    status = os.stat(server)  # noqa: PTH116 (a program, not a path of ours)
    return Question(
        server=server,
        rpc=tuple(engine.rpc),
        env=asking_environment(engine, environ),
        stamp=(status.st_size, status.st_mtime_ns),
    )


def asking_environment(engine: Engine, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the question: what children get, one order of cards, the config's own."""
    return {**environ, **DEVICE_ORDER, **engine.env}


async def list_devices(question: Question, *, seconds: float = PROBE_SECONDS) -> EngineList:
    """The engine's own list. Never raises; a program that hangs is ended with all it started."""
    argv = [question.server, "--list-devices"]
    if question.rpc:
        argv[1:1] = ["--rpc", ",".join(question.rpc)]
    try:
        ended = await run(argv, seconds=seconds, env={**question.env, **_NO_BACKTRACE})
    except (OSError, ValueError) as error:
        # ValueError: a variable of the environment cannot be passed on (a NUL within it).
        return EngineList(reason=getattr(error, "strerror", None) or str(error))
    listed = parse_device_list(ended.output)
    if ended.timed_out or listed is None:
        return EngineList(reason=_reason(ended))
    return EngineList(devices=listed)


def _reason(ended: Ended) -> str:
    """Why there is no list, in words."""
    if unreachable := _NO_CONNECTION.search(ended.output):
        return f"the RPC endpoint {unreachable[1]} does not answer (`rpc` under [engine])"
    return ": ".join(filter(None, (ended.reason(), ended.tail(1))))
