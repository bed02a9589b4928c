"""`pannier placement`: works on a file alone, plans first, and writes only what fits."""

import io
import json
import sys

import pytest

from pannier.cli import main

TEXT = """\
# mine
[server]
listen = "127.0.0.1:0"
[models.a]   # the one
path = "a.gguf"
"""
RPC = """#!{python}
import sys
if "--list-devices" in sys.argv:
    print("Available devices:")
    for at in (0, 1):
        print(f"  CUDA{{at}}: a card (24000 MiB, 24000 MiB free)")
else:
    print("version: 1 (abc)")
"""
ON_ONE = '{"a": {"devices": [1]}}'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A config and its model, on a machine whose engine lists two cards."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("PANNIER_LLAMA_SERVER", "PANNIER_LLAMA_SWAP", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    engine = tmp_path / "llama-server"
    engine.write_text(RPC.format(python=sys.executable))
    engine.chmod(0o755)
    monkeypatch.setenv("PANNIER_LLAMA_SERVER", str(engine))
    (tmp_path / "config.toml").write_text(TEXT)
    (tmp_path / "a.gguf").write_bytes(b"x" * 100)
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    def run(command, *argv):
        code = main(["placement", command, "--config", str(folder / "config.toml"), *argv])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def text_of(folder):
    return (folder / "config.toml").read_text()


def test_show_without_a_running_pannier_is_what_would_run(run, folder):
    code, out, err = run("show")
    assert (code, err) == (0, "note: no Pannier runs it: this is what would run\n")
    assert out.startswith("model ")
    assert "CUDA1  a card" in out
    code, out, _ = run("show", "--json")
    view = json.loads(out)
    assert (code, view["object"], view["manual"]) == (0, "placement", False)
    assert [row["model"] for row in view["roles"]] == ["a"]
    assert view["config"] == str(folder / "config.toml")


def test_v_1_a_preview_shows_what_a_set_then_writes(run, folder):
    code, tried, _ = run("preview", "--json", ON_ONE)
    assert (code, text_of(folder)) == (0, TEXT)
    code, written, err = run("set", "--json", ON_ONE)
    assert (code, "written" in err) == (0, True)
    assert json.loads(tried)["roles"] == json.loads(written)["roles"]
    assert json.loads(tried)["etag"] == json.loads(written)["etag"]
    assert json.loads(written)["roles"][0]["devices"] == ["CUDA1"]


def test_ap_18_set_writes_the_tables_and_clear_takes_them_out(run, folder):
    run("set", ON_ONE)
    assert text_of(folder) == f"{TEXT}\n[placement.a]\ndevices = [1]\n"
    assert sorted(path.name for path in folder.iterdir()) == [
        "a.gguf", "config.toml", "llama-server"
    ]  # fmt: skip
    code, _, err = run("set", ON_ONE)
    assert (code, "is so already" in err) == (0, True)
    code, _, err = run("clear")
    assert (code, "written" in err) == (0, True)
    assert text_of(folder) == TEXT


def test_ap_19_nothing_is_started_and_no_state_is_made(run, folder):
    run("set", ON_ONE)
    assert not (folder / "state").exists()


def test_ap_16_what_does_not_fit_is_told_with_need_and_have_and_not_written(run, folder):
    with (folder / "a.gguf").open("wb") as file:
        file.truncate(90 << 30)
    for command in ("set", "preview"):
        code, out, err = run(command, ON_ONE)
        assert (code, out) == (1, "")
        assert "GiB on CUDA1, which has " in err
        assert "force" in err
    assert text_of(folder) == TEXT
    forced = '{"a": {"devices": [1], "force": true}}'
    code, out, _ = run("set", forced)
    assert code == 0
    assert "a: tight, " in out
    assert "force = true" in text_of(folder)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{", "not valid JSON"),
        ('{"b": {"devices": [0]}}', 'found "b"'),
        ('{"a": {"devices": [7]}}', "CUDA0"),
    ],
)
def test_a_mistake_is_told_and_not_written(run, folder, spec, says):
    code, out, err = run("set", spec)
    assert (code, out) == (1, "")
    assert says in err
    assert text_of(folder) == TEXT


def test_a_spec_comes_from_a_file_or_from_stdin_too(run, folder, monkeypatch):
    (folder / "spec.json").write_text(ON_ONE)
    code, out, _ = run("preview", "--json", "--spec-file", str(folder / "spec.json"))
    assert (code, json.loads(out)["spec"]) == (0, json.loads(ON_ONE))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ON_ONE.encode())))
    code, out, _ = run("preview", "--json", "-")
    assert (code, json.loads(out)["spec"]) == (0, json.loads(ON_ONE))
    code, _, err = run("preview", "--spec-file", str(folder / "none.json"))
    assert (code, "cannot be read" in err) == (1, True)


def test_a_placement_that_is_broken_in_the_file_can_be_replaced(run, folder):
    (folder / "config.toml").write_text(f"{TEXT}\n[placement.a]\ndevices = []\n")
    code, _, err = run("show")
    assert (code, "placement.a" in err) == (1, True)
    code, _, _ = run("set", ON_ONE)
    assert code == 0
    assert text_of(folder) == f"{TEXT}\n[placement.a]\ndevices = [1]\n"


def test_a_file_that_is_broken_elsewhere_is_left_alone(run, folder):
    (folder / "config.toml").write_text(TEXT + "[sever]\n")
    code, out, err = run("set", ON_ONE)
    assert (code, out) == (1, "")
    assert "sever" in err
    assert text_of(folder) == TEXT + "[sever]\n"


@pytest.mark.parametrize("argv", [["set"], ["preview"], ["set", "x", "--spec-file", "y"], ["x"]])
def test_wrong_usage_ends_with_two(run, argv):
    with pytest.raises(SystemExit) as ended:
        run(*argv)
    assert ended.value.code == 2
