import os
from pathlib import Path

import pytest

from pannier.devices.inventory import Device
from pannier.fleet.learned_store import LearnedStore, files_identity, key_of, parts_of
from pannier.gguf.learned import Key, Learned, decode
from pannier.gguf.measured import Measurement, OnDevice, OnHost
from pannier.gguf.model_files import ModelFiles
from pannier.render.argv import Launch

KEY = Key(build="b11434", files="f", arguments="-c 4096 -fit off", devices=("GPU-1",))
TOOK = Measurement(devices=(OnDevice(weights=7),), host=OnHost(kv=3), build="b11434", at=1.0)


def test_what_was_learned_is_there_in_the_next_run(tmp_path: Path) -> None:
    store = LearnedStore(tmp_path)
    assert store.learned == Learned()
    assert store.remember(KEY, TOOK, architecture="llama")
    again = LearnedStore(tmp_path)
    assert again.learned.find(KEY) == TOOK
    assert again.notes == ()
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["learned.toml"]


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"version = 1\nloads = 7\n", b"\0" * (16 * 1024 * 1024 + 1)],
    ids=["empty", "not-text", "wrong", "too-large"],
)
def test_a_damaged_file_is_set_aside_and_all_begins_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "learned.toml").write_bytes(content)
    store = LearnedStore(tmp_path)
    assert store.learned == Learned()
    assert (tmp_path / "learned.toml.damaged").read_bytes() == content
    (note,) = store.notes
    assert "was damaged and is now learned.toml.damaged" in note
    assert store.remember(KEY, TOOK)
    assert LearnedStore(tmp_path).learned.find(KEY) == TOOK


def test_a_second_damaged_file_replaces_the_first_one_aside(tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        (tmp_path / "learned.toml").write_bytes(content)
        LearnedStore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["learned.toml.damaged"]
    assert (tmp_path / "learned.toml.damaged").read_bytes() == b"two"


def test_a_file_of_another_version_stays_until_something_is_learned(tmp_path: Path) -> None:
    path = tmp_path / "learned.toml"
    path.write_bytes(b"version = 2\nanything = true\n")
    store = LearnedStore(tmp_path)
    assert store.learned == Learned()
    assert "another version" in store.notes[0]
    assert path.read_bytes() == b"version = 2\nanything = true\n"
    store.remember(KEY, TOOK)
    assert decode(path.read_bytes()) == store.learned


def test_a_file_that_cannot_be_read_or_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "learned.toml").mkdir()
    store = LearnedStore(tmp_path)
    assert "cannot be read" in store.notes[0]
    assert not store.remember(KEY, TOOK)
    assert store.learned.find(KEY) == TOOK
    assert [path.name for path in tmp_path.iterdir()] == ["learned.toml"]


# Keys.


def files(folder: Path) -> ModelFiles:
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "p.gguf", "d.gguf"):
        path = folder / name
        if not path.exists():
            path.write_bytes(name.encode() * 50)
            os.utime(path, (1, 1))
    shards = (str(folder / "a-00001-of-00002.gguf"), str(folder / "a-00002-of-00002.gguf"))
    return ModelFiles(
        path=shards[0],
        shards=shards,
        projector=str(folder / "p.gguf"),
        draft=str(folder / "d.gguf"),
    )


def test_every_file_that_is_read_counts(tmp_path: Path) -> None:
    model = files(tmp_path)
    before = files_identity(model)
    assert files_identity(model) == before
    assert len(parts_of(model)) == 4
    for part in parts_of(model):
        status = Path(part).stat()
        os.utime(part, (2, 2))
        assert files_identity(model) != before, part
        os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert files_identity(model) == before


def test_other_content_of_the_same_size_and_time_is_another_model(tmp_path: Path) -> None:
    model = files(tmp_path)
    before = files_identity(model)
    path = tmp_path / "a-00001-of-00002.gguf"
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, (1, 1))
    assert files_identity(model) != before


def test_a_model_that_moved_is_the_same_and_one_that_is_gone_has_no_identity(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    model = files(here)
    before = files_identity(model)
    here.rename(there)
    assert files_identity(files(there)) == before
    with pytest.raises(OSError, match="No such file"):
        files_identity(model)


def test_a_key_is_made_of_engine_files_arguments_and_devices(tmp_path: Path) -> None:
    model = files(tmp_path)
    launch = Launch(
        instance="a",
        argv=("python", "-m", "launcher", "--", "llama-server", "-m", "x", "-c", "4096"),
        env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        ttl_s=0.0,
        preload=True,
        load_timeout_s=600,
        file_bytes=1,
        devices=("CUDA0", "RPC0"),
    )
    card = Device(index=0, backend="cuda", label="CUDA0", name="RTX", total=24, free=1, uuid="GPU")
    peer = Device(index=1, backend="rpc", label="RPC0", name="10.0.0.9:1", total=24, free=1)
    assert key_of(launch, model, (card, peer), "b11434") == Key(
        build="b11434",
        files=files_identity(model),
        arguments="-c 4096 -m",
        devices=("GPU", "RPC0 10.0.0.9:1 24"),
    )
