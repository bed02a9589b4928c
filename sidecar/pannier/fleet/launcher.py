"""The small process around each llama-server, and around each llama-swap.

`--instance` owns one llama-server: it holds its stdin, reads its progress, stops it cleanly, knows
why it ended, reports all of that to Pannier, and takes it along when it dies itself. `--guard`
gives llama-swap the same care without reports. It is a process of its own because llama-swap, not
Pannier, starts the servers, and because only a parent sees the true end of a child.

Must not: import anything beyond the standard library (it starts once for every load), use threads
(the death signal of a child is bound to the thread that started it), block on anybody, or decide
anything about models: it runs the command line that it was given.
"""

import sys
from collections.abc import Sequence

from pannier.fleet.launcher_care import Guard
from pannier.fleet.launcher_engine import Engine
from pannier.fleet.launcher_loop import Loop
from pannier.render.flags import PORT_FLAG

USAGE = """\
usage: python -m pannier.fleet.launcher --instance ID --socket PATH [--stop-timeout S] -- COMMAND…
       python -m pannier.fleet.launcher --guard [--stop-timeout S] -- COMMAND…"""

EXIT_USAGE = 64
"""EX_USAGE: distinct from everything that llama-server itself exits with."""

STOP_TIMEOUT_S = 10.0
GUARD_STOP_TIMEOUT_S = 40.0
"""llama-swap drains for at most 30 s, and has a backstop 5 s later."""


def main(arguments: Sequence[str]) -> int:
    """Run one command under care and return its exit code, 128 + n for signal n."""
    try:
        options, command = _parse(arguments)
        build = _guard if "--guard" in options else _instance
        care = build(options, command)
    except ValueError as error:
        print(f"launcher: {error}\n{USAGE}", file=sys.stderr)
        return EXIT_USAGE
    return care.run()


def _parse(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options by name, and the command after `--`; argparse would cost a tenth of a start."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name = rest.pop(0)
        if name == "--":
            break
        if name == "--guard":
            options[name] = ""
        elif name in ("--instance", "--socket", "--stop-timeout") and rest:
            options[name] = rest.pop(0)
        else:
            raise ValueError(f"{name} is not an option, or lacks its value")
    if not rest:
        raise ValueError("no command after --")
    return options, rest


def _instance(options: dict[str, str], command: list[str]) -> Engine:
    for name in ("--instance", "--socket"):
        if not options.get(name):
            raise ValueError(f"{name} is missing")
    return Engine(
        Loop(),
        command,
        instance=options["--instance"],
        socket_path=options["--socket"],
        port=_port(command),
        stop_timeout=float(options.get("--stop-timeout", STOP_TIMEOUT_S)),
    )


def _guard(options: dict[str, str], command: list[str]) -> Guard:
    return Guard(
        Loop(),
        command,
        stop_timeout=float(options.get("--stop-timeout", GUARD_STOP_TIMEOUT_S)),
    )


def _port(command: Sequence[str]) -> int:
    """The port that the command line ends with; ours is the last one, so the last one counts."""
    for at in range(len(command) - 2, 0, -1):
        if command[at] == PORT_FLAG:
            return int(command[at + 1])
    raise ValueError(f"the command has no {PORT_FLAG}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
