"""The command line: what goes to which stream, in which shape, and with which exit code."""

import json
import subprocess
import sys

import msgspec
import pytest
from tests.fakes.values import machine

from pannier import __version__
from pannier.cli import _windows, default_config, main
from pannier.config.load import parse

GOOD = '[models.a]\npath = "a.gguf"\n[server]\nlisten = "127.0.0.1:0"\n'
BAD = '[models.a]\nrole = "chta"\n\n[sever]\n'


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config in a folder of its own, on a machine without engines."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("PANNIER_LLAMA_SERVER", "PANNIER_LLAMA_SWAP"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config.toml"
    path.write_text(GOOD)
    return path


def run(capsys, *argv):
    code = main([str(each) for each in argv])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_good_config_has_no_problems_and_notes_of_what_is_missing(config, capsys):
    code, out, err = run(capsys, "check", "--config", config)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "no problems"
    assert "a.gguf is not there yet" in out
    assert "pannier engine install" in out


def test_every_problem_is_a_line_with_its_place(config, capsys):
    config.write_text(BAD)
    code, out, _ = run(capsys, "check", "--config", config)
    assert code == 1
    assert f"{config}:2: models.a.role: " in out
    assert f"{config}:4: " in out
    assert out.splitlines()[-1] == "3 problems"


@pytest.mark.parametrize(("text", "ok"), [(GOOD, True), (BAD, False)])
def test_the_check_for_programs(config, capsys, text, ok):
    config.write_text(text)
    code, out, _ = run(capsys, "check", "--json", "--config", config)
    report = json.loads(out)
    assert set(report) == {"ok", "file", "problems", "notes"}
    assert (report["ok"], code) == (ok, 0 if ok else 1)
    for problem in report["problems"]:
        assert set(problem) == {"code", "where", "line", "message", "hint"}


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_config_that_is_not_there_is_told_with_the_way_out(tmp_path, capsys, command):
    code, out, err = run(capsys, command, "--config", tmp_path / "none.toml")
    assert code == 1
    assert "pannier init" in out + err


def test_a_plan_without_an_engine_says_that_it_is_one(config, capsys):
    (config.parent / "a.gguf").write_bytes(b"x")
    code, out, _ = run(capsys, "plan", "--config", config)
    assert code == 0
    row = " ".join(out.splitlines()[1].split())
    assert row == "a chat CPU 8192 x 1 about 0.25 GiB"
    assert "no devices: no llama-server to ask for devices" in out


def test_the_plan_for_programs_is_the_plan(config, capsys):
    code, out, _ = run(capsys, "plan", "--json", "--config", config)
    assert code == 0
    plan = json.loads(out)
    assert plan["skipped_not_installed"] == ["a"]
    assert {"instances", "groups", "unplaceable", "tight", "reasons", "devices"} <= set(plan)


def test_a_plan_of_a_bad_config_names_its_problems_on_stderr(config, capsys):
    config.write_text(BAD)
    code, out, err = run(capsys, "plan", "--config", config)
    assert (code, out) == (1, "")
    assert f"{config}:2: models.a.role" in err


def test_devices_can_be_asked_for_before_there_is_a_config(config, capsys):
    code, out, _ = run(capsys, "status", "--config", config.with_name("none.toml"))
    assert code == 0
    assert out
    code, out, _ = run(capsys, "status", "--json", "--config", config)
    assert (code, json.loads(out)["inventory"]["devices"]) == (0, [])


def test_what_status_prints_is_what_a_plan_takes(config, capsys, tmp_path):
    _, out, _ = run(capsys, "status", "--json", "--config", config)
    shown = json.loads(out)
    assert set(shown) == {"version", "engine", "inventory"}
    assert (shown["version"], shown["engine"]) == (__version__, None)
    file = tmp_path / "inventory.json"
    for content in (out, json.dumps(shown["inventory"])):
        file.write_text(content)
        code, out, err = run(capsys, "plan", "--inventory", file, "--config", config)
        assert (code, err) == (0, "")


def test_a_plan_for_the_devices_of_a_file_asks_no_device_here(config, capsys, tmp_path):
    (config.parent / "a.gguf").write_bytes(b"x")
    engine = tmp_path / "llama-server"
    engine.write_text("#!/bin/sh\ntouch asked\n")
    engine.chmod(0o755)
    config.write_text(f'[engine]\nllama_server = "{engine}"\n{GOOD}')
    file = tmp_path / "inventory.json"
    file.write_bytes(msgspec.json.encode(machine(24, 12)))
    code, out, _ = run(capsys, "plan", "--json", "--inventory", file, "--config", config)
    assert code == 0
    plan = json.loads(out)
    assert [each["label"] for each in plan["devices"]] == ["CUDA0", "CUDA1"]
    assert plan["instances"][0]["devices"] in (["CUDA0"], ["CUDA1"])
    assert not list(tmp_path.rglob("asked"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"{", "this is no JSON"),
        (b'{"devices": [{"index": 0}]}', "missing required field"),
        (b" " * (5 << 20), "larger than 4 MiB"),
    ],
    ids=["missing", "broken", "incomplete", "huge"],
)
def test_a_bad_inventory_is_refused_with_its_name(config, capsys, tmp_path, content, says):
    file = tmp_path / "inventory.json"
    if content is not None:
        file.write_bytes(content)
    code, out, err = run(capsys, "plan", "--inventory", file, "--config", config)
    assert (code, out) == (1, "")
    assert str(file) in err
    assert says in err


def test_the_schema_is_json_on_stdout(capsys):
    code, out, err = run(capsys, "schema")
    assert (code, err) == (0, "")
    assert "models" in json.loads(out)["properties"]


def test_init_writes_a_config_that_is_accepted_and_its_schema(tmp_path, capsys):
    path = tmp_path / "new folder" / "config.toml"
    code, out, _ = run(capsys, "init", "--config", path)
    assert code == 0
    assert out.splitlines() == [
        f"wrote {path}",
        f"wrote {path.with_name('config.schema.json')}",
    ]
    parse(path.read_bytes())
    json.loads(path.with_name("config.schema.json").read_bytes())


def test_init_leaves_what_is_there_alone(config, capsys):
    code, out, err = run(capsys, "init", "--config", config)
    assert (code, out) == (1, "")
    assert "exists" in err
    assert "what to do: name another with --config" in err
    assert config.read_text() == GOOD


def test_init_in_a_place_that_cannot_be_written_is_told(config, capsys):
    code, _, err = run(capsys, "init", "--config", config / "x" / "config.toml")
    assert code == 1
    assert "cannot be written" in err


@pytest.mark.parametrize(
    "argv",
    [[], ["nonsense"], ["check", "--nonsense"], ["serve", "--drain", "x"], ["check", "x"]],
)
def test_wrong_usage_ends_with_two(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "usage: pannier" in said.err


def test_the_help_names_the_exit_codes_and_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "Exit codes: 0 done, 1 a problem that was reported, 2 wrong usage, 130 Ctrl-C." in out
    for command in ("serve", "check", "plan", "status", "schema", "init", "demo", "engine"):
        assert f" {command} " in out


def test_the_version_is_ours(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"pannier {__version__}\n"


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_what_does_not_run_on_windows_says_what_does(command):
    error = _windows(command)
    assert error.code == "platform"
    assert command in error.message
    assert "WSL" in str(error)


def test_the_config_is_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_config() == tmp_path / "pannier" / "config.toml"
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert default_config() == tmp_path / ".config" / "pannier" / "config.toml"


def test_what_only_looks_loads_no_http_server():
    code = "import sys; from pannier.cli import main; main(['schema']);"
    code += "sys.exit('pannier.serve' in sys.modules or 'pannier.service' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
