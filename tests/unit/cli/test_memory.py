"""`pannier memory`: the numbers of a header for a person and for programs, errors in words."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gguf_models import header_of, write
from tests.gguf_writer import GgufWriter, micro_chat
from tests.unit.cli.test_platforms import run_without_posix

from pannier.cli import main
from pannier.fleet.learned_store import FILE, LearnedStore, files_identity
from pannier.gguf.arguments import arguments_of
from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.profile import profile_of
from pannier.gguf.footprint.values import LaunchSettings
from pannier.gguf.learned import Key, Learned
from pannier.gguf.measured import Measurement, OnDevice, OnHost, peak
from pannier.gguf.model_files import ModelFiles
from pannier.memory.answer import answer
from pannier.memory.question import Question
from pannier.memory.remembered import loads_like
from pannier.memory.report import lines_of, report_of

MIB = 1 << 20

DEVICE = ["weights", "kv", "compute", "projector", "draft", "overhead", "total"]
HOST = ["weights", "kv", "compute", "prompt_cache", "checkpoints", "total"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models of real dimensions, and no state of any Pannier."""
    found = tmp_path_factory.mktemp("models")
    names = ["llama32-1b", "qwen3-30b-a3b", "gemma4-e4b", "bge-reranker-like", "llama31-8b"]
    for name in [*names, "gemma3-4b", "mmproj-gemma3-4b", "granite4-h-tiny"]:
        write(found, name)
    return found


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "no-state"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)


def run(capsys, line):
    code = main(["memory", *shlex.split(line)])
    said = capsys.readouterr()
    return code, said.out, said.err


def ask(capsys, line):
    code, out, err = run(capsys, f"{line} --json")
    assert (code, err) == (0, "")
    return json.loads(out)


def adds_up(found):
    rows = [*found["devices"], found["host"]]
    return all(sum(row.values()) == 2 * row["total"] for row in rows)


ASKED = {
    "llama32-1b.gguf": {},
    "llama32-1b.gguf --context 5000 --slots 3": {"context": 5000, "slots": 3},
    "llama32-1b.gguf --context 4096 --slots 4 --unified": {
        "context": 4096, "slots": 4, "unified": True,
    },
    "llama32-1b.gguf --context 4096 --slots 4 --no-unified": {"context": 4096, "slots": 4},
    "llama32-1b.gguf --kv-type q8_0": {"kv_k": "q8_0", "kv_v": "q8_0"},
    "llama32-1b.gguf --kv-type q8_0,f16": {"kv_k": "q8_0"},
    "llama32-1b.gguf --flash-attention off": {"flash_attention": "off"},
    "llama32-1b.gguf --batch 4096 --ubatch 1024": {"batch": 4096, "ubatch": 1024},
    "llama32-1b.gguf --gpu-layers 5": {"gpu_layers": 5},
    "llama32-1b.gguf --gpu-layers all": {},
    "qwen3-30b-a3b.gguf --cpu-moe 7": {"cpu_moe": 7},
    "qwen3-30b-a3b.gguf --cpu-moe all": {"cpu_moe": None},
    "llama32-1b.gguf --devices 0": {"devices": ()},
    "llama32-1b.gguf --devices 3": {"devices": ("cuda",) * 3},
    "llama32-1b.gguf --tensor-split 3,1": {"devices": ("cuda",) * 2, "split": (3, 1)},
    "llama32-1b.gguf --backend vulkan": {"devices": ("vulkan",)},
    "llama32-1b.gguf --context 4096 --embedding": {
        "context": 4096, "batch": 2048, "ubatch": 2048, "pooling": "embed",
    },
    "bge-reranker-like.gguf --rerank --context 600": {
        "context": 600, "batch": 600, "ubatch": 600, "pooling": "rerank",
    },
    "granite4-h-tiny.gguf --slots 2": {"slots": 2},
}  # fmt: skip


@pytest.mark.parametrize("line", ASKED)
def test_each_option_is_the_setting_that_it_says_and_the_rest_is_as_serve_starts_it(
    folder, capsys, line
):
    name = line.split(".gguf")[0]
    profile = profile_of(header_of(name))
    launch = {"context": profile.shape.trained, "cache_ram": 0, "checkpoints": 4, **ASKED[line]}
    wanted = footprint(profile, LaunchSettings(**launch))
    found = ask(capsys, line)
    assert list(found) == [
        "model", "architecture", "exact", "measured", "devices", "host", "notes",
    ]  # fmt: skip
    assert (found["model"], found["architecture"]) == (f"{name}.gguf", profile.architecture)
    assert (found["exact"], found["measured"]) == (wanted.exact, False)
    assert list(found["host"]) == HOST
    assert adds_up(found)
    assert len(found["devices"]) == len(wanted.devices)
    for row, share in zip(found["devices"], wanted.devices, strict=True):
        assert list(row) == DEVICE
        assert list(row.values()) == [getattr(share, part) for part in DEVICE]
    assert list(found["host"].values()) == [getattr(wanted.host, part) for part in HOST]


def test_what_a_projector_and_a_draft_take_of_ram_counts_as_weights_there(capsys):
    line = "gemma3-4b.gguf --context 4096 --devices 0"
    alone = ask(capsys, line)["host"]
    both = ask(capsys, f"{line} --mmproj mmproj-gemma3-4b.gguf --draft llama32-1b.gguf")["host"]
    assert sum(both.values()) == 2 * both["total"]
    assert both["weights"] > alone["weights"] + 800 * MIB
    assert {**both, "weights": 0, "total": 0} == {**alone, "weights": 0, "total": 0}
    on_device = ask(
        capsys,
        "gemma3-4b.gguf --context 4096 --mmproj mmproj-gemma3-4b.gguf --draft llama32-1b.gguf",
    )
    assert adds_up(on_device)
    assert on_device["devices"][0]["projector"] > 800 * MIB
    assert on_device["devices"][0]["draft"] > 800 * MIB


QUESTIONS = st.builds(
    Question,
    model=st.sampled_from(["gemma3-4b.gguf", "granite4-h-tiny.gguf", "gemma4-e4b.gguf"]),
    mmproj=st.sampled_from([None, "mmproj-gemma3-4b.gguf"]),
    draft=st.sampled_from([None, "llama32-1b.gguf"]),
    context=st.none() | st.integers(1, 1 << 24),
    slots=st.integers(1, 256),
    unified=st.booleans(),
    kv_v=st.sampled_from(["f16", "q4_0"]),
    flash_attention=st.sampled_from(["auto", "on", "off"]),
    batch=st.integers(1, 1 << 24),
    ubatch=st.integers(1, 1 << 24),
    gpu_layers=st.none() | st.integers(0, 60),
    cpu_moe=st.none() | st.integers(0, 60),
    devices=st.integers(0, 16),
    backend=st.sampled_from(["cuda", "rpc"]),
    pooling=st.sampled_from(["none", "embed", "rerank"]),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(QUESTIONS)
def test_every_row_adds_up_whatever_is_asked(folder, question):
    found = answer(question, folder, folder)
    report = msgspec.to_builtins(report_of(found))
    assert adds_up(report)
    shown = lines_of(found)
    widths = {len(line) for line in shown[3 : 3 + question.devices + 2]}
    assert len(widths) == 1


def test_a_person_gets_a_table_whose_rows_are_what_programs_get(capsys):
    line = "gemma4-e4b.gguf --context 4096 --slots 2 --tensor-split 2,1"
    code, out, _ = run(capsys, line)
    found = ask(capsys, line)
    title, launch, _, *rows = out.splitlines()
    assert code == 0
    assert title == "gemma4-e4b.gguf: gemma4"
    assert launch.startswith("4096 tokens for each of 2 slots, f16 cache, flash attention auto")
    assert rows[0].split() == [
        "MiB", "weights", "kv", "compute", "overhead", "checkpoints", "total",
    ]  # fmt: skip
    for text, row in zip(rows[1:4], [*found["devices"], found["host"]], strict=True):
        shown = [float(each) for each in text.rsplit(maxsplit=6)[1:]]
        assert shown[0] == pytest.approx(row["weights"] / MIB, abs=0.01)
        assert shown[-1] == pytest.approx(row["total"] / MIB, abs=0.01)
        assert shown[-1] == pytest.approx(sum(shown[:-1]), abs=0.05)
    assert rows[1].startswith("device 0, cuda ")
    assert rows[3].startswith("RAM ")
    on_devices = sum(row["total"] for row in found["devices"]) / (1 << 30)
    assert f"total: {on_devices:.2f} GiB on 2 devices, " in out


def test_the_help_says_what_a_context_is(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["memory", "--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "tokens per slot" in said
    assert "-c CONTEXT x SLOTS" in said
    assert "With --unified it is given -c CONTEXT, and all slots share them" in said


# --- notes ----------------------------------------------------------------------------------------

NOTES = {
    "gemma4-e4b.gguf --devices 2": "must not be split over devices: the last 18 layers",
    "gemma4-e4b.gguf": "must not be split over devices: the last 18 layers",
    "llama31-8b.gguf --context 200000": "the model was trained on 131072 tokens",
    "llama31-8b.gguf --kv-type f16,q8_0 --flash-attention off": "refuses a quantized cache of V",
    "llama31-8b.gguf --cpu-moe 4": "no experts: --cpu-moe changes nothing",
    "bge-reranker-like.gguf": "is made for ranking: --rerank",
}


@pytest.mark.parametrize("line", NOTES)
def test_what_a_person_should_know_is_a_note(capsys, line):
    assert any(NOTES[line] in note for note in ask(capsys, line)["notes"])
    told = [each for each in run(capsys, line)[1].splitlines() if each.startswith("note: ")]
    assert any(NOTES[line] in each for each in told)


@pytest.mark.parametrize(
    "line", ["llama31-8b.gguf", "bge-reranker-like.gguf --rerank", "qwen3-30b-a3b.gguf --cpu-moe 9"]
)
def test_where_there_is_nothing_to_say_there_is_no_note(capsys, line):
    assert ask(capsys, line)["notes"] == []


def test_numbers_of_a_split_that_must_not_be_are_not_called_exact(capsys):
    assert ask(capsys, "gemma4-e4b.gguf")["exact"]
    assert not ask(capsys, "gemma4-e4b.gguf --devices 2")["exact"]
    assert "not sure, estimated" in run(capsys, "gemma4-e4b.gguf --devices 2")[1]


def test_an_architecture_that_is_not_known_is_an_upper_bound_and_cannot_touch_the_terminal(
    tmp_path, capsys
):
    model = GgufWriter("\x1b[2Jnew", "a model")
    model.tensor("token_embd.weight", 64, 100)
    model.tensor("blk.0.attn_k.weight", 64, 64)
    path = model.write(tmp_path / "new.gguf")
    code, out, _ = run(capsys, f"'{path}'")
    assert code == 0
    assert "\x1b" not in out
    assert "?[2Jnew" in out
    assert "an upper bound, estimated" in out
    assert "does not say what window it was trained on: 8192 tokens" in out
    assert not ask(capsys, f"'{path}'")["exact"]


# --- errors ---------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named(capsys, folder):
    code, out, err = run(capsys, "nothing.gguf")
    assert (code, out) == (1, "")
    assert str(folder / "nothing.gguf") in err
    assert "what to do:" in err


def shards(folder, gone=()):
    """A model in three files, the first with all metadata."""
    for part in (1, 2, 3):
        writer = GgufWriter("llama", "parts")
        if part == 1:
            writer.arch_meta(
                block_count=2, context_length=2048, embedding_length=64,
                feed_forward_length=128, attention__head_count=4,
            )  # fmt: skip
        writer.meta("split.no", part - 1)
        writer.meta("split.count", 3)
        writer.meta("split.tensors.count", 3)
        writer.tensor(f"blk.{part % 2}.{part}.weight", 64, 64)
        if part not in gone:
            writer.write(folder / f"m-{part:05d}-of-00003.gguf")


@pytest.mark.parametrize("named", [1, 2, 3])
def test_any_shard_stands_for_the_whole_model(tmp_path, capsys, named):
    shards(tmp_path)
    code, out, err = run(capsys, f"{tmp_path}/m-{named:05d}-of-00003.gguf")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith(" in 3 files: llama")
    assert "2048 tokens" in out


def test_a_shard_that_is_missing_is_named_and_no_other(tmp_path, capsys):
    shards(tmp_path, gone=[2])
    code, out, err = run(capsys, f"{tmp_path}/m-00003-of-00003.gguf")
    assert (code, out) == (1, "")
    assert "m-00002-of-00003.gguf" in err
    assert "m-00001-of-00003.gguf" not in err
    assert "the model is in 3 files" in err
    shards(tmp_path)
    _, _, err = run(capsys, f"{tmp_path}/m-00001-of-00003.gguf --mmproj {tmp_path}/p.gguf")
    assert f"not there: {tmp_path}/p.gguf\n" in err
    assert "3 files" not in err


def test_what_is_no_model_is_said_with_the_file_and_the_reason(tmp_path, capsys):
    whole = micro_chat(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "text.gguf").write_text("a text of some length")
    (tmp_path / "cut.gguf").write_bytes(whole[:600])
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "folder.gguf").mkdir()
    for name, words in {
        "text": "no GGUF",
        "cut": "it is damaged or not complete (at byte ",
        "empty": "the file is empty",
        "folder": "this is a folder, not a file",
    }.items():
        code, out, err = run(capsys, f"{tmp_path}/{name}.gguf")
        assert (code, out) == (1, "")
        assert err.startswith(f"pannier: {tmp_path}/{name}.gguf: ")
        assert words in err
    for option in ("--draft", "--mmproj"):
        code, _, err = run(capsys, f"{tmp_path}/whole.gguf {option} {tmp_path}/text.gguf")
        assert code == 1
        assert err.startswith(f"pannier: {tmp_path}/text.gguf: no GGUF")


def test_a_projector_is_no_model_and_a_model_no_projector(capsys):
    code, _, err = run(capsys, "mmproj-gemma3-4b.gguf")
    assert code == 1
    assert "is a projector, not a model" in err
    assert "--mmproj" in err
    code, _, err = run(capsys, "gemma3-4b.gguf --mmproj llama31-8b.gguf")
    assert code == 1
    assert "is no projector: its architecture is 'llama'" in err


WRONG = {
    "": "MODEL.gguf",
    "''": "expected the path of a file",
    "a.gguf --context 0": "from 1 to 16777216, found '0'",
    "a.gguf --context 1e3": "found '1e3'",
    "a.gguf --context ٣": "found '٣'",
    "a.gguf --slots 257": "from 1 to 256",
    "a.gguf --kv-type q9_0": "found 'q9_0'; types: f32, f16",
    "a.gguf --kv-type f16,f16,f16": "one for keys and one for values",
    "a.gguf --flash-attention maybe": "invalid choice: 'maybe'",
    "a.gguf --batch -1": "from 1 to",
    "a.gguf --ubatch x": "found 'x'",
    "a.gguf --gpu-layers some": 'or "all", found',
    "a.gguf --cpu-moe -2": 'or "all", found',
    "a.gguf --devices 17": "from 0 to 16",
    "a.gguf --tensor-split 1,0": "from 1 to 1000000, found '0'",
    "a.gguf --tensor-split 1,2 --devices 3": "2 shares for 3 devices",
    "a.gguf --tensor-split 1 --devices 0": "1 shares for 0 devices",
    "a.gguf --embedding --rerank": "not allowed with",
    "a.gguf --backend abacus": "invalid choice: 'abacus'",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage_says_what_is_allowed_and_ends_with_2(capsys, line):
    with pytest.raises(SystemExit) as ended:
        main(["memory", *shlex.split(line)])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert WRONG[line] in said.err


# --- what was measured ----------------------------------------------------------------------------

AS_SERVED = (
    "/opt/llama-server -m {model} --alias a -c 4096 -np 1 -b 2048 -ub 512 -ctk f16 -ctv f16"
    " -fa auto --cache-ram 0 --ctx-checkpoints 4 {devices} -fit off --load-mode none"
    " --no-ui --offline --threads 4 --host 127.0.0.1 --port 4711"
)
ONE, TWO = "-dev CUDA1 -ngl all", "-dev CUDA0,CUDA1 -sm layer -ts 9,8 -ngl all"


@pytest.fixture
def store(tmp_path):
    return LearnedStore(tmp_path)


def remember(store, *, build="b11434", name="GPU-1", words=ONE, at=1.0, kv=77, **sizes):
    """Writes a load of the 1B model down as `serve` does."""
    model = str(Path("llama32-1b.gguf").absolute())
    argv = AS_SERVED.format(model=model, devices=words).split()
    count = words.count("CUDA")
    key = Key(
        build=build,
        files=files_identity(ModelFiles(path=model, shards=(model,))),
        arguments=arguments_of(argv, {}),
        devices=tuple(f"{name}{place}" for place in range(count)),
    )
    on = tuple(OnDevice(weights=800 * MIB, kv=kv, compute=3, **sizes) for _ in range(count))
    took = Measurement(
        devices=on, host=OnHost(resident=5, kv=0 if count else kv, compute=7), build=build, at=at
    )
    store.remember(key, took, architecture="llama")
    return took


LINE = "llama32-1b.gguf --context 4096 --state '{store}'"


def known(capsys, store, options=""):
    return ask(capsys, f"{LINE.format(store=store.path.parent)} {options}")


def test_a_load_like_this_is_told_as_it_was_measured(capsys, store):
    remember(store, overhead=300 * MIB, at=1_700_000_000.0)
    found = known(capsys, store)
    assert found["measured"]
    assert adds_up(found)
    (row,) = found["devices"]
    assert (row["weights"], row["kv"], row["compute"]) == (800 * MIB, 77, 3)
    assert row["overhead"] == peak(300 * MIB)
    assert found["host"]["weights"] == 5
    notes = " ".join(found["notes"])
    assert "measured: llama-server b11434 took this on CUDA1, 2023-11-14" in notes
    assert "new architecture or changed rules" in notes  # 77 bytes of cache are not what rules say
    code, out, _ = run(capsys, LINE.format(store=store.path.parent))
    assert code == 0
    assert "of RAM; measured\n" in out


@pytest.mark.parametrize(
    "options",
    [
        "--context 4097", "--slots 2", "--kv-type f16,q8_0", "--flash-attention on", "--batch 1024",
        "--ubatch 256", "--gpu-layers 3", "--cpu-moe 2", "--devices 0", "--devices 2",
        "--backend vulkan", "--draft llama32-1b.gguf", "--embedding",
    ],
)  # fmt: skip
def test_another_launch_is_estimated(capsys, store, options):
    remember(store)
    assert known(capsys, store)["measured"]
    assert not known(capsys, store, options)["measured"]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("-dev none -ngl 0", "--devices 0"),
        ("", "--devices 0"),
        ("-dev CUDA0 --n-cpu-moe 0 -ngl 17", ""),
        ("-dev CUDA0 -ngl 99 --no-mmap", ""),
        ("-dev CUDA0 -ngl 4", "--gpu-layers 4"),
        ("-dev CUDA0 -ngl all --cpu-moe", "--cpu-moe all"),
        (TWO, "--devices 2"),
        (TWO, "--tensor-split 18,16"),
    ],
)
def test_spellings_of_the_same_launch_are_the_same(capsys, store, words, options):
    remember(store, words=words)
    assert known(capsys, store, options)["measured"]


def test_another_split_is_another_launch_and_a_free_one_is_like_none(capsys, store):
    remember(store, words=TWO)
    assert known(capsys, store, "--devices 2")["measured"]
    assert not known(capsys, store, "--tensor-split 3,1")["measured"]
    store.path.unlink()
    free = LearnedStore(store.path.parent)
    remember(free, words="-dev CUDA0,CUDA1 -ngl all")
    assert not known(capsys, free, "--devices 2")["measured"]


@pytest.mark.parametrize("word", ["-ot exps=CPU", "--swa-full", "-kvu", "--no-such-flag 3"])
def test_arguments_that_a_person_added_are_another_launch(capsys, store, word):
    remember(store, words=f"{ONE} {word}")
    assert not known(capsys, store)["measured"]


def test_the_newest_build_tells_and_of_that_the_largest_load(capsys, store):
    remember(store, build="b9000", name="GPU-a", at=9.0, kv=90 * MIB)
    remember(store, build="b11434", name="GPU-b", at=3.0, kv=70 * MIB)
    remember(store, build="b11434", name="GPU-c", at=2.0, kv=80 * MIB)
    remember(store, build="b11434", name="GPU-d", at=4.0, kv=60 * MIB)
    remember(store, build="unknown", name="GPU-e", at=8.0, kv=99 * MIB)
    assert known(capsys, store)["devices"][0]["kv"] == 80 * MIB


def test_a_file_that_has_changed_since_is_another_model(capsys, store, folder):
    remember(store)
    model = folder / "llama32-1b.gguf"
    content = model.stat()
    assert known(capsys, store)["measured"]
    os.utime(model, ns=(content.st_atime_ns, content.st_mtime_ns + 1))
    assert not known(capsys, store)["measured"]


def test_a_damaged_file_of_loads_is_a_note_and_stays_as_it_is(capsys, store):
    remember(store)
    state = store.path
    for content, words in {
        b"version = 1\n[[loads]]\nkey = \xff": "cannot be used: not a file of learned loads",
        b"version = 99\n": "was written by another version",
    }.items():
        state.write_bytes(content)
        found = known(capsys, store)
        assert not found["measured"]
        assert any(words in note and FILE in note for note in found["notes"])
        assert [each.name for each in state.parent.iterdir()] == [FILE]
        assert state.read_bytes() == content
    state.unlink()
    state.mkdir()
    assert any("cannot be read: " in note for note in known(capsys, store)["notes"])


@given(st.text(max_size=60), st.floats())
def test_whatever_the_arguments_of_a_load_are_the_search_ends(arguments, at):
    took = Measurement(devices=(OnDevice(),), host=OnHost(), build="b1", at=at)
    key = Key(build="b1", files="f", arguments=f"-dev CUDA0 {arguments}", devices=("d",))
    learned = Learned().remember(key, took)
    for split in (None, (1,)):
        launch = LaunchSettings(context=1, split=split)
        assert loads_like(learned, launch, 17, projector=False, draft=False) == ()


# --- how it works ---------------------------------------------------------------------------------

WATCHED = """
import sys
seen = []
sys.addaudithook(lambda name, args: seen.append(name))
from pannier.cli import main
before = len(seen)
code = main(sys.argv[1:])
bad = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.remove", "os.rename")
print(code, [name for name in seen[before:] if name.startswith(bad)], "aiohttp" in sys.modules)
"""


def test_it_opens_no_network_starts_no_program_and_imports_no_http(folder, store):
    remember(store)
    argv = ["memory", "llama32-1b.gguf", "--context", "4096", "--state", str(store.path.parent)]
    ended = subprocess.run(
        [sys.executable, "-c", WATCHED, *argv],
        capture_output=True, text=True, timeout=50, cwd=folder, check=False,
    )  # fmt: skip
    assert ended.stderr == ""
    assert "; measured\n" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "0 [] False"


def test_it_works_without_posix(tmp_path):
    micro_chat(tmp_path / "a.gguf")
    ended = run_without_posix("memory", "a.gguf", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "exact, estimated from the header" in ended.stdout
