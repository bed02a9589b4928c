"""Which files a model has (shards, projector, draft), which are missing, and their headers."""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fakes.values import config_of, model
from tests.fuzz import pieces

from pannier.errors import GgufError
from pannier.gguf.files import HeaderCache, find_files, find_model, read_model
from pannier.gguf.header import Header
from pannier.gguf.model_files import ModelFiles, ModelHeaders


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
    assert found.shards == tuple(map(str, paths))


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
    assert found.draft_shards == tuple(map(str, paths))


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


# --- headers --------------------------------------------------------------------------------------


def header_file(path: Path, *names: str, **keys: int) -> Path:
    tensors = tuple(pieces.tensor(name, 8, offset=32 * at) for at, name in enumerate(names))
    found = [pieces.u32(name.replace("__", "."), value) for name, value in keys.items()]
    path.write_bytes(pieces.gguf(*found, tensors=tensors, body=32 * len(names)))
    return path


def header_shards(folder: Path, *names: str) -> list[Path]:
    count = len(names)
    return [
        header_file(
            folder / f"m-{at + 1:05d}-of-{count:05d}.gguf",
            name,
            split__no=at,
            split__count=count,
            split__tensors__count=count,
        )
        for at, name in enumerate(names)
    ]


def tensors_of(header: Header | None) -> list[str]:
    assert header is not None
    return [tensor.name for tensor in header.tensors]


class Opens:
    """Hears of each file that the operating system is asked to open; such hooks stay for ever."""

    def __init__(self) -> None:
        self.heard: Callable[[str], None] | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.heard and event == "open" and arguments[1] is None:  # os.open, not open itself
            self.heard(str(arguments[0]))

    @contextmanager
    def to(self, heard: Callable[[str], None]) -> Iterator[None]:
        self.heard = heard
        try:
            yield
        finally:
            self.heard = None


OPENS = Opens()


def opened(call: Callable[[], object]) -> int:
    """How many GGUF files were opened."""
    paths: list[str] = []
    with OPENS.to(paths.append):
        call()
    return sum(path.endswith(".gguf") for path in paths)


def test_the_headers_of_a_model_are_those_of_all_its_files(tmp_path):
    header_shards(tmp_path, "a", "b")
    header_file(tmp_path / "mmproj-F16.gguf", "v.patch")
    header_file(tmp_path / "d.gguf", "d")
    keys = {"path": "m-00002-of-00002.gguf", "role": "vision", "draft": "d.gguf"}
    found = read_model(find_model(model(**keys), tmp_path), HeaderCache())
    assert tensors_of(found.model) == ["a", "b"]
    assert tensors_of(found.projector) == ["v.patch"]
    assert tensors_of(found.draft) == ["d"]
    assert found.errors == ()


def test_the_draft_may_have_shards(tmp_path):
    header_file(tmp_path / "a.gguf", "a")
    header_shards(tmp_path, "d", "e")
    files = find_model(model(path="a.gguf", draft="m-00001-of-00002.gguf"), tmp_path)
    assert tensors_of(read_model(files, HeaderCache()).draft) == ["d", "e"]


def test_a_model_of_which_only_the_first_file_is_told_is_that_file(tmp_path):
    path = header_file(tmp_path / "a.gguf", "a")
    assert tensors_of(read_model(ModelFiles(path=str(path)), HeaderCache()).model) == ["a"]


def test_a_file_that_is_missing_is_no_error(tmp_path):
    paths = header_shards(tmp_path, "a", "b")
    paths[1].unlink()
    files = find_model(model(path=str(paths[0]), draft="gone.gguf"), tmp_path)
    assert read_model(files, HeaderCache()) == ModelHeaders()


@pytest.mark.parametrize("part", ["model", "projector", "draft"])
def test_a_damaged_part_has_its_error_and_the_others_are_whole(tmp_path, part):
    paths = {"model": "a.gguf", "projector": "mmproj.gguf", "draft": "d.gguf"}
    for name in paths.values():
        header_file(tmp_path / name, "t")
    broken = tmp_path / paths[part]
    broken.write_bytes(broken.read_bytes()[:40])
    files = find_model(model(path="a.gguf", role="vision", draft="d.gguf"), tmp_path)
    found = read_model(files, HeaderCache())
    assert {name for name in paths if getattr(found, name) is None} == {part}
    assert found.errors == (getattr(found, f"{part}_error"),)
    assert str(broken) in found.errors[0]


def test_the_shard_that_is_damaged_is_named(tmp_path):
    paths = header_shards(tmp_path, "a", "b", "c")
    paths[1].write_bytes(b"")
    with pytest.raises(GgufError, match="is empty") as caught:
        HeaderCache().read([str(path) for path in paths])
    assert caught.value.path == str(paths[1])


def test_shards_of_different_models_are_refused(tmp_path):
    paths = [header_file(tmp_path / f"m-0000{at}-of-00002.gguf", "a") for at in (1, 2)]
    with pytest.raises(GgufError, match="has 1 file, its name says 2") as caught:
        HeaderCache().read([str(path) for path in paths])
    assert caught.value.path == str(paths[0])


# --- what a file system does to a file


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["folder", "pipe", "gone", "zero byte", "link to nowhere"])
def test_what_cannot_be_read_is_an_error_with_words(tmp_path, kind):
    path = tmp_path / ("a\0.gguf" if kind == "zero byte" else "a.gguf")
    words = "not there any more"
    if kind == "folder":
        path.mkdir()
        words = "a folder"
    elif kind == "pipe":
        os.mkfifo(path)
        words = "a pipe"
    elif kind == "zero byte":
        words = "cannot be the path"
    elif kind == "link to nowhere":
        path.symlink_to(tmp_path / "nowhere")
    found = read_model(ModelFiles(path=str(path)), HeaderCache())
    assert found.model is None
    assert found.model_error is not None
    assert words in found.model_error


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_we_may_not_read_is_an_error_until_we_may(tmp_path):
    path, cache = header_file(tmp_path / "a.gguf", "a"), HeaderCache()
    path.chmod(0)
    with pytest.raises(GgufError, match="may not be read by the user"):
        cache.read([str(path)])
    path.chmod(0o600)
    assert tensors_of(cache.read([str(path)])) == ["a"]


def test_a_large_file_with_holes_is_read_at_once(tmp_path):
    path = tmp_path / "a.gguf"
    size = 64 << 30
    line = pieces.tensor("a", size // 4)
    with path.open("wb") as file:
        file.write(pieces.gguf(tensors=(line,)))
        file.truncate(file.tell() + size)
    header = HeaderCache().read([str(path)])
    assert header.tensors[0].size == size
    assert header.file_size == path.stat().st_size


def test_a_file_that_is_written_on_while_it_is_read_is_refused_and_read_anew(tmp_path):
    path, cache = header_file(tmp_path / "a.gguf", "a"), HeaderCache()
    whole = path.read_bytes()

    def write_on(opened: str) -> None:
        if opened == str(path):
            os.truncate(path, len(whole) + 5)

    with OPENS.to(write_on), pytest.raises(GgufError, match="changes while it is read") as caught:
        cache.read([str(path)])
    assert caught.value.path == str(path)
    assert tensors_of(cache.read([str(path)])) == ["a"]


# --- the cache


def test_a_file_is_read_once_as_long_as_it_does_not_change(tmp_path):
    path, cache = header_file(tmp_path / "a.gguf", "a"), HeaderCache()
    assert opened(lambda: cache.read([str(path)])) == 1
    assert opened(lambda: cache.read([str(path)])) == 0
    assert cache.read([str(path)]) is cache.read([str(path)])
    header_file(path, "b")
    assert tensors_of(cache.read([str(path)])) == ["b"]


def test_another_file_of_the_same_size_and_age_in_its_place_is_read(tmp_path):
    path, cache = header_file(tmp_path / "a.gguf", "a"), HeaderCache()
    other = header_file(tmp_path / "b.gguf", "b")
    age = path.stat().st_mtime_ns
    os.utime(other, ns=(age, age))
    assert tensors_of(cache.read([str(path)])) == ["a"]
    other.replace(path)
    assert tensors_of(cache.read([str(path)])) == ["b"]


def test_a_damaged_file_is_read_once_and_refused_each_time(tmp_path):
    path, cache = tmp_path / "a.gguf", HeaderCache()
    path.write_bytes(b"GGUF" + bytes(100))
    errors = []

    def read() -> None:
        with pytest.raises(GgufError) as caught:
            cache.read([str(path)])
        errors.append(str(caught.value))

    assert [opened(read) for _ in range(3)] == [1, 0, 0]
    assert len(set(errors)) == 1
    header_file(path, "a")
    assert tensors_of(cache.read([str(path)])) == ["a"]


def test_a_change_of_any_shard_is_seen(tmp_path):
    paths, cache = header_shards(tmp_path, "a", "b"), HeaderCache()
    assert tensors_of(cache.read(list(map(str, paths)))) == ["a", "b"]
    header_file(paths[1], "c", split__no=1)
    assert tensors_of(cache.read(list(map(str, paths)))) == ["a", "c"]


def test_what_was_not_asked_for_the_longest_is_forgotten_first(tmp_path):
    paths = [str(header_file(tmp_path / f"{at}.gguf", "t")) for at in range(3)]
    cache = HeaderCache(limit=10_000)  # two headers
    for at in (0, 1, 0, 2):
        cache.read([paths[at]])
    assert [opened(lambda at=at: cache.read([paths[at]])) for at in (0, 2, 1)] == [0, 0, 1]


def test_a_header_that_is_larger_than_the_cache_is_read_all_the_same(tmp_path):
    path, cache = header_file(tmp_path / "a.gguf", "a"), HeaderCache(limit=0)
    assert tensors_of(cache.read([str(path)])) == ["a"]


def test_several_threads_may_read_at_the_same_time(tmp_path):
    paths = [str(header_file(tmp_path / f"{at}.gguf", f"t{at}")) for at in range(20)]
    cache = HeaderCache(limit=20_000)

    def read(at: int) -> bool:
        return tensors_of(cache.read([paths[at % 20]])) == [f"t{at % 20}"]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(2000)))
