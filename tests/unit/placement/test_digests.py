"""A group has one digest, whoever asks: it is of the engine, not of what starts it."""

import pytest
from tests.fakes.values import LAUNCHER, config_of, files_of, machine

from pannier.placement.digests import digests_of
from pannier.placement.edits import with_spec
from pannier.plan.placement import make_plan
from pannier.plan.request import AUTOMATIC, read_spec
from pannier.render.argv import EngineFlavour
from pannier.render.groups import render_plan

TEXT = '[models.a]\npath = "/m/a"\ncontext = 512\n[models.b]\npath = "/m/b"\ncontext = 512\n'


def digests(text=TEXT, *, launcher=LAUNCHER, host="direct", engine="/opt/llama-server"):
    config = config_of(text)
    files = files_of(config, 1.0)
    plan = make_plan(config, machine(24), files)
    groups, problems = render_plan(
        plan, config, files, EngineFlavour(path=engine), host=host, launcher=launcher
    )
    assert problems == ()
    return digests_of(groups, host)


@pytest.mark.parametrize(
    "launcher",
    [(), ("/other/python", "-m", "pannier.fleet.launcher", "--socket", "/elsewhere"), ("x", "--")],
    ids=["none", "another", "odd"],
)
def test_what_starts_the_launcher_is_not_in_it(launcher):
    assert digests(launcher=launcher) == digests()


def test_what_runs_the_group_the_engine_and_its_arguments_are():
    before = digests()
    assert before["a"] != before["b"]
    assert digests(host="llama-swap /opt/llama-swap") != before
    assert digests(engine="/usr/bin/llama-server") != before
    after = digests(TEXT + 'args = ["--threads", "2"]\n')
    assert (after["a"] == before["a"], after["b"] == before["b"]) == (True, False)
    after = digests(
        TEXT.replace("context = 512\n[models.b]", 'context = 512\nttl = "5m"\n[models.b]')
    )
    assert (after["a"] == before["a"], after["b"] == before["b"]) == (False, True)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
def test_line_breaks_and_a_byte_order_mark_stay(end, start):
    content = start + TEXT.replace("\n", end).encode()
    spec = read_spec('{"a": {"devices": [0]}}', {"a"})
    placed = with_spec(content, spec)
    assert placed.startswith(content)
    assert placed.count(b"\r\n") == (placed.count(b"\n") if end == "\r\n" else 0)
    assert with_spec(placed, AUTOMATIC) == content
