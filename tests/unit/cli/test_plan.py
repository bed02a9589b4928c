"""`pannier plan`: what a person reads, what a program reads, and what it is compared with."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from tests.fakes.values import GIB, config_of, machine, plan_of

from pannier.cli import main
from pannier.placement.text import change_lines, view_lines
from pannier.plan.diff import Change
from pannier.plan.view import View, view_of

MODELS = """\
[server]
listen = "127.0.0.1:{port}"
[models.a]
path = "a.gguf"
context = 4096
[models.b]
path = "b.gguf"
context = 4096
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of models on a machine without engines, whose terminal has 80 columns."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("PANNIER_LLAMA_SERVER", "PANNIER_LLAMA_SWAP", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config.toml").write_text(MODELS.format(port=0))
    for name in ("a", "b"):
        (tmp_path / f"{name}.gguf").write_bytes(b"x" * 100)
    (tmp_path / "cards.json").write_bytes(msgspec.json.encode(machine(24, 12)))
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    def run(*argv, config="config.toml"):
        code = main(["plan", "--config", str(folder / config), *map(str, argv)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@contextlib.contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[tuple[int, list[str]]]:
    """A server on loopback that has one answer; its port, and what it was asked."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(f"{self.path} {self.headers.get('Authorization')}")
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            """Nothing; stderr is what is tested."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# For a person.


def test_a_plan_says_who_runs_where_how_much_of_what_and_what_stays_free(run, folder):
    code, out, err = run("--inventory", folder / "cards.json")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["model", "role", "where", "context", "takes"]
    assert any(line.startswith("a      chat  CUDA") for line in lines)
    assert "CUDA0  Card 0, 24.00 GiB" in lines
    assert "kept free 0.50 GiB" in out
    assert "free 1" in out
    assert "changes, nothing runs: all is new" in lines
    assert "  + create   a" in lines


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_line_of_a_device_or_a_reason_is_longer_than_the_terminal(width):
    text = "".join(f'[models.model-{at}]\npath = "/m/{at}"\n' for at in range(9))
    inventory = machine(24, 12)
    view = view_of(plan_of(config_of(text), inventory, 9.0), inventory)
    lines = view_lines(view, width)
    at = next(number for number, line in enumerate(lines) if line.startswith("CUDA0"))
    assert max(map(len, lines[at:])) <= width
    bars = [line for line in lines[at:] if line.count("█") > 1]
    assert [len(bar) for bar in bars] == [2 + min(72, width - 4)] * 2


def test_a_bar_is_as_full_as_its_device_and_says_what_is_too_much():
    view = view_of(
        plan_of(config_of('[models.a]\npath = "/m/a"\n'), machine(24), 10.0), machine(24)
    )
    (row,) = view.gpus
    lines = view_lines(view, 80)
    bar = next(line for line in lines if "█" in line and "GiB" not in line)
    assert bar.count("█") == round(72 * row.planned_bytes / (24 * GIB))
    assert "·" in bar
    big = view_of(plan_of(config_of('[models.a]\npath = "/m/a"\n'), machine(8), 40.0), machine(8))
    lines = view_lines(big, 80)
    assert next(line for line in lines if "█" in line and "GiB" not in line).endswith("█!")
    assert any("! too much by" in line for line in lines)
    assert any(line.startswith("a: tight, ") for line in lines)


def test_what_is_not_served_says_what_it_needs_and_what_would_help(run, folder):
    with (folder / "b.gguf").open("wb") as file:
        file.truncate(900 * GIB)
    (folder / "a.gguf").unlink()
    code, out, _ = run()
    assert code == 0
    assert "no model runs: 1 not installed, 1 cannot be placed on this machine" in out
    assert "a: not installed" in out
    assert "  needs: weights 900.00 GiB" in out
    assert "  have: host " in out
    assert "  would help: a smaller model" in out


def test_an_empty_config_says_so():
    assert view_lines(view_of(plan_of(config_of("[server]\n"), machine(8)), machine(8)))[0] == (
        "the config has no models"
    )


def test_changes_are_marked_and_explained():
    found = (
        Change(group="swap-CUDA0", kind="create", members=("a", "b")),
        Change(group="c", kind="replace", members=("c",), why=("context 512 -> 1024",)),
        Change(group="d", kind="keep", members=("d",)),
        Change(group="e", kind="remove", members=("e",)),
    )
    assert change_lines(found, "127.0.0.1:8484") == [
        "changes, against what runs on 127.0.0.1:8484",
        "  + create   swap-CUDA0  a, b",
        "  ~ replace  c           context 512 -> 1024",
        "  = keep     d",
        "  - remove   e",
    ]
    assert change_lines((), None) == []


# For a program.


def test_the_json_is_the_plan_field_by_field_in_bytes(run, folder):
    code, out, _ = run("--inventory", folder / "cards.json", "--json")
    plan = json.loads(out)
    assert code == 0
    fields = {"generation", "manual", "spec", "rejected", "devices", "instances", "groups"}
    fields |= {"unplaceable", "skipped_not_installed", "tight", "co_tenants", "reasons"}
    assert set(plan) == fields | {"changes", "compared_with"}
    (instance, _) = plan["instances"]
    assert {"id", "model", "devices", "tensor_split", "context", "device_bytes"} <= set(instance)
    assert isinstance(instance["device_bytes"][0]["weights"], int)
    assert [each["kind"] for each in plan["changes"]] == ["create", "create"]
    assert plan["compared_with"] is None


def test_the_exit_code_tells_whether_anything_would_change(run, folder):
    assert run("--detailed-exitcode")[0] == 2
    for name in ("a.gguf", "b.gguf"):
        (folder / name).unlink()
    assert run("--detailed-exitcode")[0] == 0
    assert run("--detailed-exitcode", config="none.toml")[0] == 1


def test_a_plan_with_another_placement(run, folder):
    cards = ("--inventory", folder / "cards.json")
    code, out, _ = run(*cards, "--json", "--spec", '{"a": {"devices": [1]}}')
    plan = json.loads(out)
    assert (code, plan["manual"], plan["spec"]) == (0, True, '{"a": {"devices": [1]}}')
    assert plan["instances"][0]["devices"] == ["CUDA1"]
    code, out, err = run(*cards, "--spec", '{"a": {"devices": [7]}}')
    assert (code, out) == (1, "")
    assert "CUDA0" in err
    code, out, err = run(*cards, "--spec", "{")
    assert (code, out) == (1, "")
    assert "not valid JSON" in err


# Compared with what runs.


def shown(folder, run) -> View:
    """What a Pannier that serves this config would show."""
    _, out, _ = run("--inventory", folder / "cards.json", "--json")
    plan = plan_of(config_of(MODELS.format(port=0)), machine(24, 12), 1.0)
    assert len(json.loads(out)["instances"]) == len(plan.instances)
    return view_of(plan, machine(24, 12), {"a": "digest", "gone": "digest"})


def test_what_runs_is_asked_for_and_its_devices_are_planned_on(run, folder):
    view = shown(folder, run)
    groups = (*view.groups, msgspec.structs.replace(view.groups[0], id="gone", members=("gone",)))
    body = msgspec.json.encode(msgspec.structs.replace(view, groups=groups))
    (folder / "key").write_text("a-key-of-this-test-1")
    with answering(body) as (port, asked):
        text = MODELS.format(port=port).replace("[models.a]", 'api_key_file = "key"\n[models.a]')
        (folder / "config.toml").write_text(text)
        code, out, err = run("--json", "--detailed-exitcode")
    plan = json.loads(out)
    assert (code, err) == (2, "")
    assert asked == ["/v1/placement Bearer a-key-of-this-test-1"]
    assert plan["compared_with"] == f"127.0.0.1:{port}"
    assert [each["label"] for each in plan["devices"]] == ["CUDA0", "CUDA1"]
    kinds = {each["group"]: each["kind"] for each in plan["changes"]}
    assert kinds == {"a": "replace", "b": "replace", "gone": "remove"}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{}", 200, "no Pannier of this version"),
        (b"<html>", 200, "no Pannier of this version"),
        (b"", 401, "none of the keys"),
        (b"", 404, "answers with 404"),
    ],
    ids=["other json", "a page", "keys", "older"],
)
def test_what_is_no_pannier_is_a_note_and_the_plan_is_made(run, folder, body, status, says):
    with answering(body, status) as (port, _):
        (folder / "config.toml").write_text(MODELS.format(port=port))
        code, out, err = run()
    assert code == 0
    assert out.startswith("model ")
    assert says in err
    assert "nothing runs: all is new" in out


def test_a_listener_that_says_nothing_is_waited_for_two_seconds(run, folder):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (folder / "config.toml").write_text(MODELS.format(port=silent.getsockname()[1]))
        code, _, err = run()
    assert code == 0
    assert "was not compared with: timed out" in err


def test_for_the_devices_of_a_file_nothing_here_is_asked(run, folder):
    with answering(b"{}") as (port, asked):
        (folder / "config.toml").write_text(MODELS.format(port=port))
        code, _, err = run("--inventory", folder / "cards.json")
    assert (code, err, asked) == (0, "", [])
