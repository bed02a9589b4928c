"""The placement of a config file, without being the Pannier that serves it.

For the command line and for programs: `get_placement`, `preview_placement` and `set_placement`
plan with the planner that `serve` uses, on the devices of this machine, of a file, or of the
Pannier that runs, which knows what its own models hold. A change is planned first and written only
when it fits; who serves the file sees it there.

Must not: start an engine, or wait for one; a running Pannier does.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from pannier import planning
from pannier.check import inventory, read_inventory
from pannier.config.load import parse
from pannier.config.read_file import read_now
from pannier.config.schema import Config
from pannier.config.write_file import write_file
from pannier.devices.inventory import Inventory, with_reserves
from pannier.engine.locate import (
    Program,
    find_llama_server,
    find_llama_swap,
    probe_llama_server,
)
from pannier.errors import ConfigError, EngineError
from pannier.fleet.host import choose_host
from pannier.fleet.learned_store import FILE
from pannier.fleet.store import state_folder
from pannier.gguf.files import find_files
from pannier.gguf.learned import Learned
from pannier.memory.answer import read_learned
from pannier.placement.digests import digests_of
from pannier.placement.edits import with_spec
from pannier.placement.running import Running, ask_running
from pannier.plan.diff import Change, changes
from pannier.plan.request import StaleError, read_spec
from pannier.plan.spec import PlacementError, PlacementSpec
from pannier.plan.values import Plan
from pannier.plan.view import View, inventory_of, plan_of, view_of
from pannier.render.argv import EngineFlavour


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a plan is made: the config's path, another machine's devices, the state folder."""

    config: Path
    inventory: Path | None = None
    state: Path | None = None

    @property
    def base(self) -> Path:
        """The folder that paths of the config start from."""
        return self.config.absolute().parent


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that is not run: on which devices, and what applying it would change."""

    plan: Plan
    inventory: Inventory
    changes: tuple[Change, ...]
    digests: dict[str, str]
    running: Running | None = None
    notes: tuple[str, ...] = ()

    def view(self, path: Path) -> View:
        """The same as every other view."""
        return view_of(self.plan, self.inventory, self.digests, config=str(path))


async def get_placement(where: Surroundings) -> View:
    """What runs, from the Pannier that serves this config; without one, what would run.

    Raises ConfigError, and PannierError for a bad inventory file.
    """
    content = read_now(where.config)
    config = parse(content)
    running = await _ask(config, where)
    if running is not None and running.view is not None:
        return running.view
    return (await _planned(config, where, None, running)).view(where.config)


async def preview_placement(where: Surroundings, text: str | bytes | None) -> View:
    """What would run with this spec; none: the automatic plan. Raises PlacementError."""
    return (await plan_config(where, text, preview=True)).view(where.config)


async def set_placement(
    where: Surroundings,
    text: str | bytes | None,
    matches: Callable[[str], bool] = lambda _: True,
) -> tuple[View, bool]:
    """Plans with this spec, and writes it; the view, and whether the file was changed.

    `matches` judges the ETag of the plan of now. Raises PlacementError, ConfigError, EditError,
    WriteError, and StaleError; nothing is written then.
    """
    before = read_now(where.config)
    spec = read_spec(text, _models(before))
    content = with_spec(before, spec)
    config = parse(content)
    running = await _ask(config, where)
    if running is not None and running.view is not None and not matches(running.view.etag):
        raise StaleError("the placement has been changed meanwhile", hint="look at it again")
    planned = await _planned(config, where, None, running)
    if planned.plan.rejected is not None:
        raise PlacementError(planned.plan.rejected.reason)
    await asyncio.to_thread(write_file, where.config, content, before=before)
    return planned.view(where.config), content != before


async def plan_config(
    where: Surroundings, text: str | bytes | None = None, *, preview: bool = False
) -> Planned:
    """The plan of a config as it is in the file; with `preview`, with another spec.

    Raises ConfigError, PannierError for a bad inventory file, and PlacementError for a spec.
    """
    config = parse(read_now(where.config))
    spec = read_spec(text, config.models) if preview else None
    return await _planned(config, where, spec, await _ask(config, where))


def _models(content: bytes) -> frozenset[str]:
    """The ids of a file whose placement may be broken: it is about to be replaced."""
    return frozenset(parse(with_spec(content, PlacementSpec())).models)


async def _ask(config: Config, where: Surroundings) -> Running | None:
    if where.inventory is not None:  # another machine's, where nothing of here runs
        return None
    return await asyncio.to_thread(ask_running, config.server, where.base)


async def _planned(
    config: Config, where: Surroundings, spec: PlacementSpec | None, running: Running | None
) -> Planned:
    view = running.view if running is not None else None
    learned, notes = read_learned(where.state / FILE) if where.state else (Learned(), ())
    question = await _question(config, where, view, learned)
    answer = await asyncio.to_thread(planning.Planner().answer, question, spec)
    if answer.problems:
        raise ConfigError(answer.problems)
    digests = digests_of(answer.groups, question.host)
    before = {g.id: g.digest or "" for g in view.groups} if view is not None else {}
    said = (running.note,) if running is not None and running.note else ()
    return Planned(
        plan=answer.plan,
        inventory=question.inventory,
        changes=changes(question.running or Plan(), answer.plan, before, digests),
        digests=digests,
        running=running,
        notes=(*said, *notes),
    )


async def _question(
    config: Config, where: Surroundings, view: View | None, learned: Learned
) -> planning.Question:
    server, swap = _engines(config, where.base)
    version, flavour = "", EngineFlavour(path=server.path if server else "llama-server")
    if server is not None:
        # What is wrong with it is told by `check` and `engine status`.
        with contextlib.suppress(EngineError):
            version, features = await probe_llama_server(server.path)
            flavour = EngineFlavour(path=server.path, load_mode=features.load_mode)
    host = choose_host(config.engine.host, swap.path if swap else None)
    program = swap.path if swap and host == "llama-swap" else None
    return planning.Question(
        config=config,
        inventory=await _inventory(config, where, view),
        files=await asyncio.to_thread(find_files, config, where.base),
        flavour=flavour,
        host=" ".join(filter(None, (host, program))),
        launcher=(),
        version=version,
        running=plan_of(view) if view is not None else None,
        resident=frozenset(_ids(view)),
        learned=learned,
    )


def _ids(view: View | None) -> list[str]:
    """What runs counts as resident: its RAM is its own."""
    return [each.id for row in view.roles for each in row.instances] if view is not None else []


async def _inventory(config: Config, where: Surroundings, view: View | None) -> Inventory:
    if where.inventory is not None:
        return with_reserves(read_inventory(where.inventory), config.memory.reserve)
    if view is not None:
        return with_reserves(inventory_of(view), config.memory.reserve)
    return await inventory(config, where.base)


def _engines(config: Config, base: Path) -> tuple[Program | None, Program | None]:
    """The programs that are there; a plan is made without them too."""
    server = swap = None
    with contextlib.suppress(EngineError):
        server = find_llama_server(config.engine.llama_server, base=base)
    with contextlib.suppress(EngineError):
        swap = find_llama_swap(config.engine.llama_swap, base=base)
    return server, swap


def default_state() -> Path:
    """The state folder of a `serve` that was told none."""
    return state_folder(os.environ, Path.home())
