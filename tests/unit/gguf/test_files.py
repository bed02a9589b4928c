"""Which files a model has: shards, projector, draft; and which of them are missing."""

from pathlib import Path

import pytest
from tests.fakes.values import config_of, model

from pannier.gguf.files import find_files, find_model


def write(folder: Path, **sizes: int) -> None:
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)


def shards(folder: Path, *sizes: int, count: int = 0) -> list[Path]:
    count = count or len(sizes)
    paths = [folder / f"m-{part:05d}-of-{count:05d}.gguf" for part in range(1, len(sizes) + 1)]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(b"x" * size)
    return paths


def test_one_file_is_a_model(tmp_path):
    write(tmp_path, **{"a.gguf": 7})
    found = find_model(model(path="a.gguf"), tmp_path)
    assert (found.path, found.weights, found.total) == (str(tmp_path / "a.gguf"), 7, 7)
    assert (found.missing, found.projector, found.draft) == ((), None, None)


def test_a_relative_path_is_relative_to_the_config_and_an_absolute_one_is_not(tmp_path):
    write(tmp_path, **{"a.gguf": 7})
    absolute = str(tmp_path / "a.gguf")
    assert find_model(model(path=absolute), Path("/nowhere")).missing == ()
    assert find_model(model(path="a.gguf"), Path("/nowhere")).missing == ("/nowhere/a.gguf",)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, **{"a.gguf": 7})
    assert find_model(model(path="~/a.gguf"), Path("/nowhere")).path == str(tmp_path / "a.gguf")


def test_the_home_of_somebody_who_is_not_here_is_a_missing_file(tmp_path):
    found = find_model(model(path="~nobody-of-that-name/a.gguf"), tmp_path)
    assert found.missing == (str(tmp_path / "~nobody-of-that-name/a.gguf"),)


def test_a_missing_file_is_an_answer(tmp_path):
    found = find_model(model(path="a.gguf"), tmp_path)
    assert (found.weights, found.missing) == (0, (str(tmp_path / "a.gguf"),))


@pytest.mark.parametrize("kind", ["folder", "dangling link", "loop", "name too long"])
def test_what_is_no_file_is_missing(tmp_path, kind):
    path = tmp_path / ("x" * 300 if kind == "name too long" else "a.gguf")
    if kind == "folder":
        path.mkdir()
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "gone")
    elif kind == "loop":
        path.symlink_to(path)
    assert find_model(model(path=str(path)), tmp_path).missing == (str(path),)


def test_a_link_to_a_file_is_that_file(tmp_path):
    write(tmp_path, real=9)
    (tmp_path / "a.gguf").symlink_to(tmp_path / "real")
    assert find_model(model(path="a.gguf"), tmp_path).weights == 9


# --- shards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [0, 1, 2])
def test_any_shard_names_the_model_and_the_first_is_what_the_engine_gets(tmp_path, named):
    paths = shards(tmp_path, 1, 2, 4)
    found = find_model(model(path=str(paths[named])), tmp_path)
    assert (found.path, found.weights, found.missing) == (str(paths[0]), 7, ())


def test_a_missing_shard_is_named(tmp_path):
    paths = shards(tmp_path, 1, 2, 4)
    paths[1].unlink()
    found = find_model(model(path=str(paths[2])), tmp_path)
    assert found.missing == (str(paths[1]),)
    assert found.weights == 5


def test_a_model_of_which_one_shard_has_come_so_far_misses_the_others(tmp_path):
    paths = shards(tmp_path, 1, count=3)
    assert len(find_model(model(path=str(paths[0])), tmp_path).missing) == 2


def test_a_name_with_numbers_that_are_no_shards_is_one_file(tmp_path):
    write(tmp_path, **{"qwen-2-of-3.gguf": 5})
    assert find_model(model(path="qwen-2-of-3.gguf"), tmp_path).weights == 5


def test_a_draft_in_shards_counts_whole(tmp_path):
    write(tmp_path, **{"a.gguf": 1})
    paths = shards(tmp_path, 2, 4)
    found = find_model(model(path="a.gguf", draft=str(paths[1])), tmp_path)
    assert (found.draft, found.draft_bytes) == (str(paths[0]), 6)


# --- projector and draft --------------------------------------------------------------------------


def vision(folder: Path, *names: str, **keys: object):
    write(folder, **{"a.gguf": 1}, **dict.fromkeys(names, 5))
    return find_model(model(path="a.gguf", role="vision", **keys), folder)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["mmproj.gguf"], "mmproj.gguf"),
        (["mmproj-a-F32.gguf", "mmproj-a-f16.gguf"], "mmproj-a-f16.gguf"),
        (["mmproj-Q8_0.gguf", "mmproj-BF16.gguf"], "mmproj-BF16.gguf"),
        (["mmproj-b-F16.gguf", "mmproj-a-F16.gguf"], "mmproj-a-F16.gguf"),
    ],
)
def test_the_projector_beside_a_vision_model_is_found(tmp_path, names, chosen):
    found = vision(tmp_path, *names)
    assert (found.projector, found.projector_bytes) == (str(tmp_path / chosen), 5)
    assert found.total == 6


def test_a_vision_model_without_a_projector_waits_for_one(tmp_path):
    assert vision(tmp_path).missing == (str(tmp_path / "mmproj.gguf"),)


def test_a_named_projector_is_taken_though_another_lies_beside(tmp_path):
    found = vision(tmp_path, "mmproj-F16.gguf", "mine.gguf", mmproj="mine.gguf")
    assert found.projector == str(tmp_path / "mine.gguf")


def test_no_projector_where_none_is_wanted_or_of_use(tmp_path):
    assert vision(tmp_path, "mmproj.gguf", mmproj="none").projector is None
    chat = find_model(model(path="a.gguf", role="chat"), tmp_path)
    assert chat.projector is None


def test_a_vision_model_in_a_folder_that_cannot_be_looked_at_is_missing(tmp_path):
    found = find_model(model(path="x" * 300 + "/a.gguf", role="vision"), tmp_path)
    assert len(found.missing) == 2


def test_a_draft_counts_and_is_missed(tmp_path):
    write(tmp_path, **{"a.gguf": 1, "d.gguf": 2})
    assert find_model(model(path="a.gguf", draft="d.gguf"), tmp_path).total == 3
    missing = find_model(model(path="a.gguf", draft="e.gguf"), tmp_path).missing
    assert missing == (str(tmp_path / "e.gguf"),)


def test_every_model_of_a_config_is_looked_for(tmp_path):
    write(tmp_path, **{"a.gguf": 1})
    text = '[models.a]\npath = "a.gguf"\n[models.b]\npath = "b.gguf"\n'
    found = find_files(config_of(text), tmp_path)
    assert {name: bool(files.missing) for name, files in found.items()} == {"a": False, "b": True}
