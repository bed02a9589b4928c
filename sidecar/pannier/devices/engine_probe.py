"""Asks llama-server which devices it can use: its answer is the truth about what can be planned on.

`llama-server --list-devices` is the only source that knows the engine's own labels, AMD, Intel,
Apple and RPC devices. On CUDA it makes a context for a moment, so it is asked when something may
have changed, not in a loop. No answer is "unknown", never "no GPU".

Must not: plan, or keep anything.
"""

import os
from collections.abc import Mapping

import msgspec

from pannier.config.schema import Engine
from pannier.devices.inventory import DEVICE_ORDER
from pannier.devices.listing import EngineList, parse_device_list
from pannier.engine.process import run

PROBE_SECONDS = 20.0
"""A cold CUDA driver takes some seconds to start; a hung one must not hold Pannier up."""


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
        ended = await run(argv, seconds=seconds, env=question.env)
    except (OSError, ValueError) as error:
        # ValueError: a variable of the environment cannot be passed on (a NUL within it).
        return EngineList(reason=getattr(error, "strerror", None) or str(error))
    listed = parse_device_list(ended.output)
    if ended.timed_out or listed is None:
        return EngineList(reason=": ".join(filter(None, (ended.reason(), ended.tail(1)))))
    return EngineList(devices=listed)
