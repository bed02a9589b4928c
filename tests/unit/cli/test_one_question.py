"""The devices that `plan` and `status` show are those that `serve` plans on.

A small real program stands in for llama-server and writes down the environment that it is asked
with: by that CUDA orders its cards, and a mask hides some.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from pannier.check import inventory
from pannier.config.load import parse
from pannier.devices.monitor import Monitor
from pannier.devices.nvml import Nvml
from pannier.fleet.backoff import delay_s
from pannier.fleet.process import child_environment
from pannier.reload import Preparer

ENGINE = """#!{python}
import json, os, sys
if "--list-devices" in sys.argv:
    with open({asked!r}, "a") as out:
        out.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
    print("Available devices:")
    print("  CUDA0: a card (24000 MiB, 23000 MiB free)")
else:
    print("version: 1 (abc)")
"""


@pytest.mark.parametrize(
    "own", ["", "env = { CUDA_DEVICE_ORDER = 'FASTEST_FIRST' }", "rpc = ['127.0.0.1:5']"]
)
async def test_plan_and_serve_ask_the_engine_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    asked, engine = tmp_path / "asked", tmp_path / "llama-server"
    engine.write_text(ENGINE.format(python=sys.executable, asked=str(asked)))
    engine.chmod(0o755)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("A_SECRET_TOKEN", "none of an engine's business")
    config = f'[engine]\nhost = "direct"\nllama_server = "{engine}"\n{own}\n'.encode()
    env = child_environment(os.environ)

    shown = await inventory(parse(config), tmp_path)
    async with Monitor(Nvml(), pause_s=delay_s) as monitor:
        preparer = Preparer(tmp_path / "config.toml", env, ("launcher",), monitor)
        run = (await preparer.prepare(config)).plan

    first, second = (json.loads(line) for line in asked.read_text().splitlines())
    assert first == second
    assert shown.devices == run.devices
    wanted = "FASTEST_FIRST" if "ORDER" in own else "PCI_BUS_ID"
    assert first[1]["CUDA_DEVICE_ORDER"] == wanted
    assert first[1]["CUDA_VISIBLE_DEVICES"] == "1"
    assert "A_SECRET_TOKEN" not in first[1]
