"""How near footprints are to llama.cpp's own planner; prints Markdown.

    python -m tests.bench.accuracy [MODEL ...]

Every made model in every setting: 87 models, about two thousand launches, some minutes. The summary
comes first, then the rows; nothing is allocated.
"""

import concurrent.futures
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.engine.comparison import EVERYTHING, EXPERTS_IN_RAM, Row, rows
from tests.engine.oracle import Oracle, Refused, rpc_devices
from tests.engine.programs import get_programs
from tests.gguf_models import MODELS, header_of, write

from pannier.engine.report import Printer
from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.profile import profile_of

HEAD = "| model | setting | place | weights | cache | compute | planner's | error |"
RULE = "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"


def of_model(oracle: Oracle, name: str, folder: Path, refused: list[str]) -> Iterator[Row]:
    """All rows of one model, in MiB."""
    file, profile = write(folder, name), profile_of(header_of(name))
    choices = EVERYTHING | (EXPERTS_IN_RAM if profile.has_experts else {})
    for setting, choice in choices.items():
        settings = choice(profile.units)
        mine = footprint(profile, msgspec.structs.replace(settings, outputs=settings.batch))
        try:
            devices, host = oracle.ask(file, settings)
        except Refused as why:
            refused.append(f"{name}, {setting}: {str(why).splitlines()[0]}")
            continue
        yield from rows(name, setting, mine, devices, host)


def summary(found: list[Row], refused: list[str]) -> list[str]:
    """What the rows say together; devices and hosts apart."""
    lines = []
    for kind in ("device", "host"):
        these = [row for row in found if row.place.startswith(kind)]
        errors = [row.error for row in these]
        exact = sum(
            (int(row.weights), int(row.kv)) == (row.truth.weights, row.truth.kv) for row in these
        )
        wrong = sum(bool(row.wrong) for row in these)
        middle = statistics.median(errors)
        lines.append(
            f"- {kind}s: {len(these)}; weights and cache equal on {exact}; compute"
            f" {min(errors):+.1f} MiB at worst under, {middle:+.1f} in the middle,"
            f" {max(errors):+.1f} at worst over; {wrong} against the rule"
        )
    lines += [f"- refused by llama.cpp: {each}" for each in refused]
    return lines


def line(row: Row) -> str:
    truth = row.truth
    planner = f"{truth.weights} / {truth.kv} / {truth.compute}"
    mark = " **wrong**" if row.wrong else ""
    return (
        f"| {row.model} | {row.setting} | {row.place} | {row.weights:.1f} | {row.kv:.1f} "
        f"| {row.compute:.1f} | {planner} | {row.error:+.1f}{mark} |"
    )


def main(names: list[str]) -> None:
    printer = Printer()
    programs = get_programs(printer)
    found: list[Row] = []
    refused: list[str] = []
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        with rpc_devices(programs.server, 3, folder / "rpc.log") as endpoints:
            oracle = Oracle(programs.server, endpoints)

            def look(name: str) -> list[Row]:
                return list(of_model(oracle, name, folder, refused))

            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                for each in pool.map(look, names):
                    found += each
    print("# Footprints and the planner of llama.cpp, in MiB\n")
    print(f"{len(names)} models, {len(found)} rows\n")
    print("\n".join(summary(found, sorted(refused))), "\n")
    print("\n".join([HEAD, RULE, *map(line, found)]))


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
