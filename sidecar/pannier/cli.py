"""The command `pannier`: parses arguments, calls one part, turns errors into words and exit codes.

What a program may read goes to stdout, what a person is told to stderr. Imports of the parts are
made by the command that needs them: `pannier check` must not wait for an HTTP server to be
imported, and works where `serve` cannot (Windows).

Exit codes: 0 done, 1 a problem that was reported, 2 wrong usage, 130 stopped by Ctrl-C.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pannier import __version__
from pannier.engine import command as engine_command
from pannier.errors import ConfigError, PannierError
from pannier.memory import command as memory_command
from pannier.placement import command as placement_command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    args = _parser().parse_args(argv)
    _log_to_stderr(verbose=getattr(args, "verbose", False))
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except ConfigError as error:
        print(f"pannier: {error.message}", file=sys.stderr)
        for problem in error.problems:
            print(f"  {problem.text(str(args.config))}", file=sys.stderr)
        return 1
    except PannierError as error:
        print(f"pannier: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  what to do: {error.hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`pannier plan | head -1`): nothing to tell anybody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def default_config() -> Path:
    """Where config.toml is unless told: the XDG config home."""
    xdg = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".config"
    return base / "pannier" / "config.toml"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pannier",
        description="Packs local models onto your GPUs, keeps them there while you edit, and tells"
        " the chat how far a load has come.",
        epilog="Exit codes: 0 done, 1 a problem that was reported, 2 wrong usage, 130 Ctrl-C.",
    )
    parser.add_argument("--version", action="version", version=f"pannier {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve the models of a config, and follow its edits")
    _config_option(serve)
    serve.add_argument(
        "--state", type=Path, metavar="DIR", help="state folder (default: XDG state home)"
    )
    serve.add_argument(
        "--drain", type=float, default=30.0, metavar="SECONDS",
        help="how long running answers may go on when their model changes (default: 30)",
    )  # fmt: skip
    serve.add_argument("--verbose", action="store_true", help="also log what the engines say")
    serve.set_defaults(run=_serve)

    _looking(commands, "check", _check, "print every problem of a config; exit code 0 or 1")
    placement_command.add_plan(commands, default_config())
    _looking(commands, "status", _status, "the devices that models can be placed on")

    placement_command.add_placement(commands, default_config())
    memory_command.add_parser(commands).set_defaults(run=_memory)

    schema = commands.add_parser("schema", help="print the JSON Schema of config.toml, for editors")
    schema.set_defaults(run=_schema)

    init = commands.add_parser("init", help="write an example config.toml and its schema")
    _config_option(init)
    init.set_defaults(run=_init)

    demo = commands.add_parser("demo", help="a real small model, from nothing, in ./pannier-demo")
    demo.add_argument("--check", action="store_true", help="run once, print the answer, and end")
    demo.add_argument("--folder", type=Path, default=Path("pannier-demo"), metavar="DIR")
    demo.add_argument("--host", choices=("auto", "llama-swap", "direct"), default="auto")
    demo.set_defaults(run=_demo)

    engine_command.add_parser(commands)
    commands.choices["engine"].set_defaults(run=engine_command.run)
    return parser


def _looking(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    what: str,
) -> argparse.ArgumentParser:
    """A command that only looks at a config and prints what it sees."""
    parser = commands.add_parser(name, help=what)
    _config_option(parser)
    parser.add_argument("--json", action="store_true", help="the same, for programs")
    parser.set_defaults(run=run)
    return parser


def _config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, default=default_config(), metavar="FILE",
        help="config.toml (default: %(default)s)",
    )  # fmt: skip


def _log_to_stderr(*, verbose: bool) -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S"
    )
    # It logs every notice; a log file beside config.toml would then feed itself.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    logging.getLogger("pannier.engine").setLevel(logging.INFO if verbose else logging.WARNING)


def _serve(args: argparse.Namespace) -> int:
    if sys.platform == "win32":
        raise _windows("serve")
    from pannier import service

    options = service.Options(config=args.config, state=args.state, drain_s=args.drain)
    asyncio.run(service.serve(options, started=service.announce))
    return 0


def _windows(command: str) -> PannierError:
    return PannierError(
        f"{command} does not run on Windows",
        hint="run it in WSL 2; check, plan, memory and schema work here",
        code="platform",
    )


def _check(args: argparse.Namespace) -> int:
    from pannier.check import check

    report = check(args.config)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        for problem in report.problems:
            print(problem.text(str(args.config)))
        for note in report.notes:
            print(f"{args.config}: note: {note}")
        count = len(report.problems)
        print("no problems" if not count else f"{count} problem{'s' if count > 1 else ''}")
    return 0 if report.ok else 1


def _status(args: argparse.Namespace) -> int:
    from pannier.check import status, status_lines
    from pannier.config.load import parse
    from pannier.config.read_file import read_now
    from pannier.config.schema import Config

    # Devices can be looked at before there is any config.
    config = parse(read_now(args.config)) if args.config.exists() else Config()
    found = asyncio.run(status(config, args.config.absolute().parent))
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print("\n".join(status_lines(found)))
    return 0


def _memory(args: argparse.Namespace) -> int:
    print(memory_command.text_of(args))
    return 0


def _schema(args: argparse.Namespace) -> int:
    from pannier.config.schema import schema_json

    print(schema_json().decode(), end="")
    return 0


def _init(args: argparse.Namespace) -> int:
    from pannier.check import write_example

    for written in write_example(args.config):
        print(f"wrote {written}")
    return 0


def _demo(args: argparse.Namespace) -> int:
    if sys.platform == "win32":
        raise _windows("demo")
    from pannier.demo.run import demo

    return asyncio.run(demo(args.folder, host=args.host, once=args.check))


if __name__ == "__main__":
    raise SystemExit(main())
