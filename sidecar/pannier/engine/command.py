"""`pannier engine install | status`: the command line of this folder.

Reads config.toml only for the two program names, and only when it is named; everything else is the
other modules' work. Progress and notes go to stderr, what was found to stdout, so that `--json` can
be piped. Ctrl-C and SIGTERM end a build with all its compilers and leave no half install.

Must not: hold logic that a caller of `install` or `locate` would miss.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from pannier.engine import locate
from pannier.engine.locate import Configured
from pannier.engine.platforms import BACKENDS
from pannier.engine.report import Printer, Server, Status, Swap, status_lines
from pannier.errors import ConfigError, EngineError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `engine` with its two subcommands."""
    parser = subparsers.add_parser("engine", help="find or install llama-server and llama-swap")
    commands = parser.add_subparsers(dest="engine_command", required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="where the programs are, and what they can do")
    get = commands.add_parser("install", help="install what is missing, for this user only")
    get.add_argument(
        "--backend", choices=BACKENDS, help="what llama-server computes on (default: what is here)"
    )
    get.add_argument("--reinstall", action="store_true", help="also when it is there already")
    get.add_argument("--releases", metavar="URL", help="a mirror of the release server")
    for command in (status, get):
        command.add_argument("--json", action="store_true", help="what is there, for programs")
        command.add_argument("--config", type=Path, metavar="FILE", help="config.toml")


def run(args: argparse.Namespace) -> int:
    """Run `pannier engine …`; 0 when there is a llama-server to use."""
    printer = Printer()
    try:
        configured, host = _read(args.config)
        if args.engine_command == "status":
            status, problems = asyncio.run(ask(configured, host))
            return _tell(status, problems, printer, as_json=args.json)
        return asyncio.run(_stoppable(_install(args, configured, host, printer)))
    except ConfigError as error:
        printer.say(f"pannier: {error}")
        for found in error.problems:
            printer.say(f"  {found.text(str(args.config))}")
        return 2
    except EngineError as error:
        printer.say(f"pannier: {error.message}")
        if error.hint:
            printer.say(f"  what to do: {error.hint}")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        printer.say("pannier: stopped; nothing half installed was left")
        return 130


async def ask(configured: Configured, host: str = "auto") -> tuple[Status, list[EngineError]]:
    """Find and ask both programs; what is wrong with one does not hide the other."""
    problems: list[EngineError] = []
    server: Server | None = None
    swap: Swap | None = None
    try:
        found = locate.find_llama_server(configured.llama_server, base=configured.base)
        if found is not None:
            version, features = await locate.probe_llama_server(found.path)
            server = Server(
                path=found.path, version=version, source=found.source, features=features
            )
    except EngineError as error:
        problems.append(error)
    try:
        found = locate.find_llama_swap(configured.llama_swap, base=configured.base)
        if found is not None:
            version = await locate.probe_llama_swap(found.path)
            swap = Swap(path=found.path, version=version, source=found.source)
    except EngineError as error:
        problems.append(error)
    runs = "llama-swap" if swap is not None and host != "direct" else "direct"
    return Status(llama_server=server, llama_swap=swap, host=runs), problems


async def _install(
    args: argparse.Namespace, configured: Configured, host: str, printer: Printer
) -> int:
    # Only here: it brings an HTTP client, and `pannier check` shall not wait for that.
    from pannier.engine.install import install

    await install(
        backend=args.backend,
        releases=args.releases,
        say=printer.say,
        show=printer.show,
        reinstall=args.reinstall,
        configured=configured,
    )
    status, problems = await ask(configured, host)
    return _tell(status, problems, printer, as_json=args.json)


def _tell(status: Status, problems: list[EngineError], printer: Printer, *, as_json: bool) -> int:
    for problem in problems:
        printer.say(f"pannier: {problem}")
    print(_json(status) if as_json else "\n".join(status_lines(status)))
    return 0 if status.llama_server is not None else 1


async def _stoppable(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.current_task()
    if task is not None and sys.platform != "win32":
        # asyncio.run turns Ctrl-C into a cancel; a stop by the system is to do the same.
        with contextlib.suppress(NotImplementedError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def _read(file: Path | None) -> tuple[Configured, str]:
    if file is None:
        return Configured(), "auto"
    # Only here: the programs can be found and installed before there is any config.
    from pannier.config.load import parse

    try:
        data = file.read_bytes()
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror or error}") from error
    engine = parse(data).engine
    base = file.resolve().parent
    return (
        Configured(llama_server=engine.llama_server, llama_swap=engine.llama_swap, base=base),
        engine.host,
    )


def _json(status: Status) -> str:
    return msgspec.json.format(msgspec.json.encode(status), indent=2).decode()
