"""Our reader of headers takes what llama.cpp's takes and refuses what it refuses."""

import io
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.programs import ROOT, Programs
from tests.fuzz.pieces import BOOL, F32, TEXT, array, gguf, key, tensor, text, u32
from tests.fuzz.seeds import SEEDS

from pannier.errors import GgufError
from pannier.gguf.header import Header, read_header

LIBRARIES = ("libggml-base.so", "libggml-base.dylib")
MUTANTS = 3000
BYTES = (b"", b"\0", b"\1", b"\x80", b"\xff", b"\0" * 8, b"\xff" * 8, b"\0\0\0\x80")


@pytest.fixture(scope="session")
def library(programs: Programs) -> Path:
    folders = (Path(programs.server).parent, Path(programs.server).resolve().parent)
    found = [folder / name for folder in folders for name in LIBRARIES if (folder / name).exists()]
    if not found:
        pytest.skip("this llama-server is one file: it has no library that could be asked")
    return found[0]


def ours(raw: bytes) -> Header | GgufError:
    try:
        return read_header(io.BytesIO(raw), len(raw))
    except GgufError as error:
        return error


def theirs(library: Path, paths: list[Path]) -> list[dict[str, list[object]] | None]:
    argv = [sys.executable, "-m", "tests.engine.llama_gguf", str(library)]
    ended = subprocess.run(
        argv,
        cwd=ROOT,
        input="".join(f"{path}\n" for path in paths),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=50,
    )
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    at = paths[len(answers)].name if len(answers) < len(paths) else ""
    assert ended.returncode == 0, f"{at}: {ended.stderr[-1000:]}"
    return answers


def difference(raw: bytes, other: dict[str, list[object]] | None) -> str | None:
    """What we say to a file that llama.cpp does not."""
    found = ours(raw)
    if other is not None:
        # That all data are there is seen to by llama.cpp's loader, src/llama-model-loader.h.
        ends = [place + size for _, _, size, place in other["tensors"]]  # type: ignore[misc]
        if any(end > len(raw) for end in ends):
            return None if isinstance(found, GgufError) else "data are missing"
    if isinstance(found, GgufError):
        return None if other is None else f"refused: {found}"
    if other is None:
        return f"read: {found}"
    tensors = [[in_c(each.name), each.kind, each.size] for each in found.tensors]
    if tensors != [each[:3] for each in other["tensors"]]:  # type: ignore[index]
        return f"{tensors} are {other['tensors']}"
    keys = list(map(in_c, found.metadata))
    return None if keys == other["keys"] else f"{keys} are {other['keys']}"


def in_c(name: str) -> str:
    return name.partition("\0")[0]


def compare(library: Path, folder: Path, files: dict[str, bytes]) -> list[str]:
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    answers = theirs(library, [folder / name for name in files])
    found = zip(files, map(difference, files.values(), answers), strict=True)
    assert any(answers)
    assert not all(answers)
    return [f"{name}: {words}" for name, words in found if words]


def test_each_kind_of_damage_is_one_to_llama_cpp_too(library, tmp_path):
    assert compare(library, tmp_path, {name: raw for name, (raw, _) in SEEDS.items()}) == []


def test_what_is_changed_anywhere_is_the_same_to_llama_cpp(library, tmp_path):
    whole = gguf(
        key("general.architecture", TEXT, text("llama")),
        u32("general.alignment", 32),
        array("words", TEXT, 3, text("a") + text("bcd") + text("")),
        array("numbers", F32, 2, bytes(8)),
        key("flag", BOOL, b"\1"),
        tensors=(
            tensor("a", 8, 2),
            tensor("b", 256, kind=12, offset=64),
            tensor("c", 32, 1, 1, 2, kind=8, offset=224),
        ),
        body=320,
    )
    source, files = random.Random(11), {"whole": whole}
    for number in range(MUTANTS):
        raw = bytearray(whole[: source.choice([len(whole), source.randrange(len(whole))])])
        for _ in range(source.randint(1, 2)):
            at, new = source.randrange(len(raw) + 1), source.choice(BYTES)
            raw[at : at + len(new)] = new
        files[f"mutant-{number}"] = bytes(raw)
    assert compare(library, tmp_path, files) == []
