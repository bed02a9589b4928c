"""Config and machine in, plan and rendered groups out: each case is a pair of files.

`NAME.toml` is a config whose first lines say what the machine is and how large the files are:

    #: cards 24 12        (GiB each; none: a machine without GPUs)
    #: backend CUDA       (the prefix of the labels)
    #: ram 64             (GiB)
    #: size 4.0           (GiB of a model file that no line below names)
    #: files a=30 b=-1    (-1: not there)

`NAME.json` is what must come of it. `pytest --update-golden` writes these anew; read the diff.
"""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fakes.values import LAUNCHER, files_of, machine

from pannier.config.load import parse
from pannier.plan.placement import make_plan
from pannier.render.argv import EngineFlavour
from pannier.render.groups import render_plan
from pannier.render.llama_swap import render

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*.toml"))


def facts(text: str) -> dict[str, str]:
    return dict(re.findall(r"^#: (\w+) ?(.*)$", text, re.MULTILINE))


def outcome(data: bytes) -> dict[str, Any]:
    """What comes of a case, as plain values."""
    found = facts(data.decode())
    config = parse(data)
    cards = [float(each) for each in found.get("cards", "").split()]
    inventory = machine(
        *cards, prefix=found.get("backend", "CUDA"), ram_gib=float(found.get("ram", "64"))
    )
    sizes = dict.fromkeys(config.models, float(found.get("size", "4.0")))
    sizes |= {
        name: float(size)
        for name, _, size in (each.rpartition("=") for each in found.get("files", "").split())
    }
    files = files_of(config, sizes)
    plan = make_plan(config, inventory, files)
    engine = EngineFlavour(path="/opt/llama-server")
    groups, problems = render_plan(
        plan, config, files, engine, host="llama-swap", launcher=LAUNCHER
    )
    rendered = {}
    for group in groups.values():
        ports = {launch.instance: 9000 + n for n, launch in enumerate(group.launches)}
        rendered[group.id] = msgspec.json.decode(render(group, ports, key="a-key-for-one-run"))
    shown = msgspec.to_builtins(plan)
    del shown["devices"]
    return {"plan": shown, "problems": msgspec.to_builtins(problems), "llama-swap": rendered}


def test_there_are_twenty_cases_at_least():
    assert len(CASES) >= 20


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_case_comes_out_as_its_file_says(case, request):
    made = msgspec.json.format(msgspec.json.encode(outcome(case.read_bytes())), indent=2) + b"\n"
    expected = case.with_suffix(".json")
    if request.config.getoption("--update-golden"):
        expected.write_bytes(made)
    assert expected.exists(), "no expected file yet: run pytest --update-golden and read it"
    assert msgspec.json.decode(made) == msgspec.json.decode(expected.read_bytes())
    assert made == expected.read_bytes()


def test_no_expected_file_is_without_its_case():
    assert {path.stem for path in HERE.glob("*.json")} <= {case.stem for case in CASES}
