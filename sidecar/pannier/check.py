"""`pannier check`, `plan` and `init`: what can be said about a config without running it.

The same reader and planner as `serve`. Works on every platform and without an engine; where there
is no engine to ask, the plan is for a machine without GPUs, and says so.

Must not: start a server or write anything but the example.
"""

import os
from importlib import resources
from pathlib import Path

import msgspec

from pannier.config.load import parse
from pannier.config.read_file import read_keys, read_now
from pannier.config.schema import Config, schema_json
from pannier.devices.engine_probe import asking_environment, host_memory, probe
from pannier.devices.inventory import Inventory
from pannier.engine.locate import find_llama_server
from pannier.errors import ConfigError, EngineError, PannierError, Problem
from pannier.fleet.process import child_environment
from pannier.gguf.files import find_files
from pannier.plan.placement import Plan, make_plan


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. Notes are no problems: a missing model file is waited for."""

    ok: bool
    file: str
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def check(path: Path) -> CheckReport:
    """Every problem of a config file. Never raises for a bad one."""
    base = path.absolute().parent
    try:
        config = parse(read_now(path))
        read_keys(config.server, base)
    except ConfigError as error:
        return CheckReport(ok=False, file=str(path), problems=error.problems)
    notes = [
        f"models.{name}: {missing} is not there yet"
        for name, files in find_files(config, base).items()
        for missing in files.missing
    ]
    try:
        if find_llama_server(config.engine.llama_server, base=base) is None:
            notes.append("llama-server is not installed: `pannier engine install`")
    except EngineError as error:
        notes.append(str(error))
    return CheckReport(ok=True, file=str(path), notes=tuple(notes))


async def plan(path: Path, base: Path) -> Plan:
    """The plan for this machine; `base` is the config's folder. Raises ConfigError."""
    config = parse(read_now(path))
    return make_plan(config, await inventory(config, base), find_files(config, base))


async def inventory(config: Config, base: Path) -> Inventory:
    """The devices that this config's engine can use; `base` is the config's folder."""
    try:
        server = find_llama_server(config.engine.llama_server, base=base)
    except EngineError:
        server = None
    if server is None:
        note = "no llama-server to ask for devices: planned as a machine without GPUs"
        return Inventory(host=host_memory(), notes=(note,))
    env = asking_environment(config.engine, child_environment(os.environ))
    return await probe(server.path, rpc=config.engine.rpc, env=env)


def device_lines(found: Inventory) -> list[str]:
    """The devices for a person, with the names that `placement` takes."""
    gib = 1024**3
    lines = [
        f"{each.index}  {each.label}  {each.name}  {each.total / gib:.1f} GiB,"
        f" {each.free / gib:.1f} GiB free"
        for each in found.devices
    ]
    if not lines:
        host = found.host
        known = found.engine_backend == "cpu"
        what = "no GPU" if known else "devices unknown"
        lines = [f"{what}; RAM {host.total / gib:.1f} GiB, {host.available / gib:.1f} GiB free"]
    return [*lines, *(f"note: {note}" for note in found.notes)]


def plan_lines(made: Plan) -> list[str]:
    """A plan for a person: one line per instance, then what is not placed, then the reasons."""
    lines = []
    swaps = {member: group.id for group in made.groups if group.swap for member in group.members}
    for each in made.instances:
        where = ", ".join(each.devices) or "CPU"
        split = f" split {':'.join(map(str, each.tensor_split))}" if each.tensor_split else ""
        shared = f", shares {swaps[each.id]}" if each.id in swaps else ""
        size = f"about {each.bytes_needed / 1024**3:.2f} GiB"
        lines.append(
            f"{each.id} ({each.role}): {where}{split}, {each.context} tokens x {each.slots},"
            f" {size}{shared}"
        )
    lines += [f"{name}: not installed" for name in made.skipped_not_installed]
    lines += [f"{each.model}: cannot be placed: {each.reason}" for each in made.unplaceable]
    lines += [f"why: {reason}" for reason in made.reasons]
    return lines or ["no models"]


def write_example(path: Path) -> list[Path]:
    """Writes the example config and its schema. Raises PannierError for a file that exists."""
    schema = path.with_name("config.schema.json")
    if path.exists():
        raise PannierError(f"{path} exists and is left alone", hint="name another with --config")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(resources.files("pannier.config").joinpath("example.toml").read_bytes())
        schema.write_bytes(schema_json())
    except OSError as error:
        raise PannierError(f"{path} cannot be written: {error.strerror}") from error
    return [path, schema]
