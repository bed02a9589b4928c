"""From the bytes of config.toml to everything that is run: one straight line, nothing kept.

Used by `serve` at start and at every reload, by `check` and by `plan`, so that what is checked,
what is shown and what runs cannot differ. It reads, asks the engine and plans; whatever is wrong
comes out as a ConfigError before anything running is touched.

Must not: start, stop or remember anything but what the engine understands, which costs seconds.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pannier import planning
from pannier.config.load import parse
from pannier.config.read_file import read_keys
from pannier.config.schema import Config, Model
from pannier.devices.engine_probe import Question, question_of
from pannier.devices.inventory import Inventory, with_reserves
from pannier.devices.monitor import Monitor
from pannier.engine.locate import Program, find_llama_server, find_llama_swap, probe_llama_server
from pannier.errors import ConfigError, EngineError, Problem
from pannier.fleet.host import HostKind, choose_host
from pannier.gguf.files import find_files
from pannier.gguf.learned import Learned
from pannier.gguf.model_files import ModelFiles
from pannier.plan.spec import PlacementSpec
from pannier.plan.values import Plan
from pannier.render.argv import EngineFlavour
from pannier.render.llama_swap import GroupLaunch
from pannier.serve.security import Access, access_of


class FailedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A load that ran out of memory: of which model, as it was written, and with what context."""

    model: Model
    context: int


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan should know of the time before it: what runs, and what its loads told.

    `resident` are the instances in memory, `failed` the loads that ran out of memory, by model.
    """

    running: Plan | None = None
    resident: frozenset[str] = frozenset()
    failed: Mapping[str, FailedLoad] = {}
    learned: Learned = Learned()


NOTHING_RUNS = Situation()


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A config that can be run: all decisions made, nothing started.

    `question` is what was planned, so that a preview asks the same with another spec.
    """

    config: Config
    access: Access
    host: HostKind
    llama_swap: str | None
    files: dict[str, ModelFiles]
    inventory: Inventory
    question: planning.Question
    plan: Plan
    groups: dict[str, GroupLaunch]
    missing: tuple[str, ...]


class Preparer:
    """Prepares configs of one path, for the devices that the monitor reads."""

    def __init__(
        self, path: Path, env: Mapping[str, str], launcher: tuple[str, ...], monitor: Monitor
    ) -> None:
        self._base = path.absolute().parent
        self._env = dict(env)
        self._launcher = launcher
        self._monitor = monitor
        self._asked: Question | None = None
        self._flavour = EngineFlavour(path="llama-server")
        self._version = ""
        self._planner = planning.Planner()
        self._planning = asyncio.Lock()

    async def answer(
        self, question: planning.Question, spec: PlacementSpec | None = None
    ) -> planning.Answer:
        """The plan of a question, or a preview with another spec, which raises PlacementError."""
        async with self._planning:
            return await asyncio.to_thread(self._planner.answer, question, spec)

    async def prepare(self, data: bytes, now: Situation = NOTHING_RUNS) -> Prepared:
        """Everything that follows from this content. Raises ConfigError with all its problems."""
        # In a thread: a hostile file of 1 MiB takes seconds, and streams must go on meanwhile.
        config = await asyncio.to_thread(parse, data)
        client_keys, admin_keys = await asyncio.to_thread(read_keys, config.server, self._base)
        server, swap = self._find_engines(config)
        await self._ask_engine(config, server)
        inventory = await self._read_devices(config, server)
        host = choose_host(config.engine.host, swap.path if swap else None)
        program = swap.path if swap and host == "llama-swap" else None
        files = await asyncio.to_thread(find_files, config, self._base)
        question = planning.Question(
            config=config,
            inventory=inventory,
            files=files,
            flavour=self._flavour,
            host=" ".join(filter(None, (host, program))),
            launcher=self._launcher,
            version=self._version,
            running=now.running,
            resident=now.resident,
            failed_at={
                name: load.context
                for name, load in now.failed.items()
                if load.model == config.models.get(name)  # one that was edited gets its chance
            },
            learned=now.learned,
        )
        made = await self.answer(question)
        if made.problems:
            raise ConfigError(made.problems)
        return Prepared(
            config=config,
            access=access_of(config.server, client_keys, admin_keys),
            host=host,
            llama_swap=program,
            files={each.id: files[each.model] for each in made.plan.instances},
            inventory=inventory,
            question=question,
            plan=made.plan,
            groups=made.groups,
            missing=tuple(path for each in files.values() for path in each.missing),
        )

    def _find_engines(self, config: Config) -> tuple[Program, Program | None]:
        problems = []
        server = swap = None
        try:
            server = find_llama_server(config.engine.llama_server, base=self._base)
            if server is None:
                problems.append(_missing("llama_server", "llama-server is not installed"))
        except EngineError as error:
            problems.append(_missing("llama_server", error.message, error.hint))
        try:
            swap = find_llama_swap(config.engine.llama_swap, base=self._base)
            if swap is None and config.engine.host == "llama-swap":
                problems.append(_missing("host", "it is llama-swap, which is not installed"))
        except EngineError as error:
            problems.append(_missing("llama_swap", error.message, error.hint))
        if server is None or problems:
            raise ConfigError(problems)
        return server, swap

    async def devices(self, config: Config) -> Inventory:
        """The devices for this config as they are now. Raises ConfigError without an engine."""
        server, _ = self._find_engines(config)
        return await self._read_devices(config, server)

    async def _read_devices(self, config: Config, server: Program) -> Inventory:
        found = await self._monitor.inventory(await self._question(config, server))
        return with_reserves(found, config.memory.reserve)

    async def _ask_engine(self, config: Config, server: Program) -> None:
        """What it understands; asked again only when that could be another answer."""
        question = await self._question(config, server)
        if question == self._asked:
            return
        try:
            self._version, features = await probe_llama_server(server.path)
        except EngineError as error:
            raise ConfigError([_missing("llama_server", error.message, error.hint)]) from error
        self._flavour = EngineFlavour(
            path=server.path, load_mode=features.load_mode, environ=question.env
        )
        self._asked = question

    async def _question(self, config: Config, server: Program) -> Question:
        try:
            return await asyncio.to_thread(question_of, server.path, config.engine, self._env)
        except OSError as error:  # it was replaced in this moment
            message = f"{server.path} cannot be read: {error.strerror}"
            raise ConfigError([_missing("llama_server", message)]) from error


def _missing(
    key: str, message: str, hint: str | None = "`pannier engine install` gets it"
) -> Problem:
    return Problem(code="engine", where=f"engine.{key}", message=message, hint=hint)
