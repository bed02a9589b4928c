"""`pannier plan` and `pannier placement`: their options, and what they print.

Both work without a running Pannier, and compare with the one that runs where the config says.
Nothing is started and nothing is loaded. Exit codes of `plan --detailed-exitcode`: 0 applying it
would touch nothing, 2 it would, 1 an error.

Must not: import at start what only an answer needs; every `pannier` command passes here.
"""

import argparse
import asyncio
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pannier.errors import PannierError

if TYPE_CHECKING:
    from pannier.placement.offline import Planned, Surroundings
    from pannier.plan.view import View

_NARROWEST, _WIDEST = 60, 120
_LARGEST_SPEC = 1 << 20

Commands = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_plan(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", config: Path) -> None:
    """Add `plan`; `config` is the default of --config."""
    parser = commands.add_parser("plan", help="show what would run where, and why; starts nothing")
    _common(parser, config)
    parser.add_argument(
        "--inventory", type=Path, metavar="FILE",
        help="plan for the devices of this file (`pannier status --json`); asks none here",
    )  # fmt: skip
    parser.add_argument(
        "--spec",
        metavar="JSON",
        help="with this placement instead of the config's; null: automatic",
    )
    parser.add_argument(
        "--detailed-exitcode", action="store_true",
        help="exit code 0: nothing would change, 2: something would, 1: an error",
    )  # fmt: skip
    parser.set_defaults(run=run_plan)


def add_placement(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", config: Path
) -> None:
    """Add `placement` with its subcommands."""
    parser = commands.add_parser(
        "placement", help="where models run: show it, try another one, set it, clear it"
    )
    within = parser.add_subparsers(dest="placement_command", required=True, metavar="COMMAND")
    about = {
        "show": "what runs where; without a running Pannier what would run",
        "preview": "what would run with a placement, or null for the automatic plan",
        "set": "write a placement to config.toml, if it fits; a running Pannier follows",
        "clear": "take the placement out of config.toml: all is automatic again",
    }
    for name, what in about.items():
        one = within.add_parser(name, help=what, description=what)
        _common(one, config)
        if name in ("preview", "set"):
            one.add_argument(
                "spec", nargs="?", metavar="SPEC",
                help='JSON by role or model id, as {"chat": {"devices": [0, 1]}}; -: from stdin',
            )  # fmt: skip
            one.add_argument("--spec-file", type=Path, metavar="FILE", help="read SPEC from there")
        one.set_defaults(run=run_placement, parser=one)


def run_plan(args: argparse.Namespace) -> int:
    """Print a plan. Raises PannierError."""
    from pannier.placement.offline import plan_config
    from pannier.plan.diff import nothing_to_do

    made = asyncio.run(plan_config(_where(args), args.spec, preview=args.spec is not None))
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        _print(_plan_for_programs(made))
    else:
        _tell_plan(made, args.config)
    return 2 if args.detailed_exitcode and not nothing_to_do(made.changes) else 0


def run_placement(args: argparse.Namespace) -> int:
    """Show, try, set or clear the placement. Raises PannierError."""
    from pannier.placement import offline

    where = _where(args)
    written = None
    if args.placement_command == "show":
        view = asyncio.run(offline.get_placement(where))
        if not view.generation:
            print("note: no Pannier runs it: this is what would run", file=sys.stderr)
    elif args.placement_command == "preview":
        view = asyncio.run(offline.preview_placement(where, _spec(args)))
    else:
        spec = _spec(args) if args.placement_command == "set" else None
        view, written = asyncio.run(offline.set_placement(where, spec))
    if args.json:
        _print(view)
    else:
        _tell(view)
    if written is not None:
        said = "written; a Pannier that serves it follows" if written else "is so already"
        print(f"{args.config}: {said}", file=sys.stderr)
    return 0


def _common(parser: argparse.ArgumentParser, config: Path) -> None:
    parser.add_argument(
        "--config", type=Path, default=config, metavar="FILE",
        help="config.toml (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--state", type=Path, metavar="DIR",
        help="state folder of `pannier serve`, where it keeps what loads took",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the same, for programs")


def _where(args: argparse.Namespace) -> "Surroundings":
    from pannier.placement.offline import Surroundings, default_state

    return Surroundings(
        config=args.config,
        inventory=getattr(args, "inventory", None),
        state=args.state or default_state(),
    )


def _spec(args: argparse.Namespace) -> str | bytes:
    if (args.spec is None) == (args.spec_file is None):
        args.parser.error("give SPEC or --spec-file, one of them")
    if args.spec is not None and args.spec != "-":
        return str(args.spec)
    try:
        if args.spec == "-":
            return sys.stdin.buffer.read(_LARGEST_SPEC + 1)
        with args.spec_file.open("rb") as file:
            content: bytes = file.read(_LARGEST_SPEC + 1)
            return content
    except OSError as error:
        raise PannierError(f"{args.spec_file} cannot be read: {error.strerror}") from error


def _tell_plan(made: "Planned", config: Path) -> None:
    from pannier.placement.text import change_lines

    _tell(made.view(config))
    running = made.running
    address = running.address if running is not None and running.view is not None else None
    lines = change_lines(made.changes, address, _width())
    if lines:
        print("\n".join(["", *lines]))


def _tell(view: "View") -> None:
    from pannier.placement.text import view_lines

    print("\n".join(view_lines(view, _width())))


def _width() -> int:
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns))


def _plan_for_programs(made: "Planned") -> object:
    """The plan field by field, and what it would change."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(made.plan)
    found["changes"] = msgspec.to_builtins(made.changes)
    running = made.running
    there = running is not None and running.view is not None
    found["compared_with"] = running.address if running is not None and there else None
    return found


def _print(value: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
