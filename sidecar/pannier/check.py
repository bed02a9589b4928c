"""`pannier check`, `status` and `init`: what can be said about a config without running it.

The same reader as `serve`. Works on every platform and without an engine; where there is no engine
to ask, the devices are those of a machine without GPUs, and a note says so.

Must not: start a server or write anything but the example.
"""

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import msgspec

from pannier import __version__
from pannier.config.load import parse
from pannier.config.locate import key_lines
from pannier.config.read_file import read_keys, read_now
from pannier.config.schema import Config, schema_json
from pannier.devices.engine_probe import asking_environment, question_of
from pannier.devices.host import host_memory
from pannier.devices.inventory import Inventory, with_reserves
from pannier.devices.inventory_file import parse_inventory
from pannier.devices.join import join
from pannier.devices.listing import EngineList
from pannier.devices.monitor import Monitor
from pannier.devices.nvml import Nvml
from pannier.devices.table import inventory_lines
from pannier.engine.locate import find_llama_server
from pannier.errors import ConfigError, EngineError, PannierError, Problem
from pannier.fleet.backoff import delay_s
from pannier.fleet.process import child_environment
from pannier.gguf.files import find_files
from pannier.render.conflicts import config_problems, uncounted

LARGEST_INVENTORY = 4 << 20
"""Bytes; one of a hundred devices has about 40,000."""


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
        content = read_now(path)
        config = parse(content)
        read_keys(config.server, base)
        if found := config_problems(config, key_lines(content.decode("utf-8-sig"))):
            raise ConfigError(found)
    except ConfigError as error:
        return CheckReport(ok=False, file=str(path), problems=error.problems)
    notes = [*uncounted(config)]
    notes += [
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


def read_inventory(path: Path) -> Inventory:
    """The inventory in a file. Raises PannierError."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_INVENTORY + 1)
    except OSError as error:
        raise PannierError(f"{path} cannot be read: {error.strerror}", code="inventory") from error
    if len(content) > LARGEST_INVENTORY:
        raise PannierError(
            f"{path} is larger than {LARGEST_INVENTORY >> 20} MiB, which no inventory is",
            code="inventory",
        )
    return parse_inventory(content, str(path))


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What is there to run models on. `plan --inventory` takes it, of whatever machine it is."""

    version: str
    engine: str | None
    inventory: Inventory


async def status(config: Config, base: Path) -> Status:
    """The devices that this config's engine can use, and which engine that is."""
    server = _server(config, base)
    return Status(version=__version__, engine=server, inventory=await inventory(config, base))


async def inventory(config: Config, base: Path) -> Inventory:
    """The devices that this config's engine can use; `base` is the config's folder."""
    server = _server(config, base)
    environ = child_environment(os.environ)
    if server is None:
        found = await _without_engine(asking_environment(config.engine, environ))
    else:
        async with Monitor(Nvml(), pause_s=delay_s) as monitor:
            found = await monitor.inventory(question_of(server, config.engine, environ))
    return with_reserves(found, config.memory.reserve)


def _server(config: Config, base: Path) -> str | None:
    try:
        server = find_llama_server(config.engine.llama_server, base=base)
    except EngineError:
        return None
    return server.path if server is not None else None


async def _without_engine(environ: Mapping[str, str]) -> Inventory:
    """What NVML sees, which is not planned on: only an engine says what it can use."""
    nvml = Nvml()
    try:
        reading = await nvml.read()
    finally:
        nvml.close()
    found = join(
        EngineList(reason="it is not installed"), reading, environ=environ, host=host_memory()
    )
    note = "no llama-server to ask for devices: planned as a machine without GPUs"
    return msgspec.structs.replace(found, notes=(note, *found.notes[1:]))


def status_lines(found: Status) -> list[str]:
    """The devices for a person, with the names that `placement` takes."""
    engine = found.engine or "not installed: `pannier engine install` gets it"
    return [*inventory_lines(found.inventory), f"engine: {engine}"]


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
