"""An edit touches only what it changes, and a broken one changes nothing."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.serving import (
    Json,
    Serve,
    Stream,
    Watch,
    codes,
    free_port,
    frozen,
    listens,
    row_of,
)

pytestmark = pytest.mark.timeout(150)


def in_place(config: Path, text: str) -> None:
    config.write_text(text)


def by_rename(config: Path, text: str) -> None:
    other = config.with_suffix(".new")
    other.write_text(text)
    other.replace(config)


def as_vim_does(config: Path, text: str) -> None:
    backup = config.with_name("config.toml~")
    config.rename(backup)
    with config.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    backup.unlink()


def by_symlink_swap(config: Path, text: str) -> None:
    """As Kubernetes mounts a ConfigMap: config.toml -> ..data/config.toml, ..data -> a folder."""
    number = len(list(config.parent.glob("..v*")))
    folder = config.parent / f"..v{number}"
    folder.mkdir()
    (folder / "config.toml").write_text(text)
    new = config.parent / "..data_tmp"
    new.symlink_to(folder.name)
    new.replace(config.parent / "..data")
    if not config.is_symlink():
        link = config.parent / ".link"
        link.symlink_to("..data/config.toml")
        link.replace(config)


SAVES: list[Callable[[Path, str], None]] = [in_place, by_rename, as_vim_does, by_symlink_swap]


def pids(seen: Json) -> dict[str, int | None]:
    return {row["id"]: row["instances"][0]["pid"] for row in seen["data"] if row["instances"]}


def generation(number: int) -> Callable[[Json], bool]:
    return lambda seen: seen["generation"] >= number


@pytest.fixture
def small(micro_chat: Path) -> Json:
    return {"path": str(micro_chat), "context": 256}


async def test_each_way_to_save_restarts_only_the_changed_model(serve: Serve, small: Json) -> None:
    # The link is there from the start, as a mount is.
    by_symlink_swap(serve.config, serve.text({"a": small, "b": small}))
    await serve.start()
    before = pids(await serve.ready())
    context = 256
    for save in (by_symlink_swap, by_rename, in_place, as_vim_does):
        context += 256
        text = serve.text({"a": {**small, "context": context}, "b": small})
        number = (await serve.readiness())["generation"]
        async with Watch(serve) as watch:
            save(serve.config, text)
            await serve.wait_for(generation(number + 1), what=save.__name__)
            after = pids(await serve.ready())
        states = watch.states("a")
        steps = ["ready", "draining", "queued", "loading", "ready"]
        assert states == [step for step in steps if step in states], "no step is shown twice"
        assert watch.states("b") == ["ready"], save.__name__
        assert after["b"] == before["b"], save.__name__
        assert after["a"] != before["a"], save.__name__
        assert codes(await serve.readiness()) == [], save.__name__
        before = after
    assert (await serve.readiness())["generation"] == 5, "one reload for each save"
    await serve.stop()


async def test_an_edit_leaves_open_streams_of_others_alone_and_drains_those_of_the_changed(
    serve: Serve, small: Json, programs: Any
) -> None:
    real = {"path": str(programs.model), "context": 1024}
    serve.write({"changed": real, "kept": real, "removed": small})
    await serve.start()
    seen = await serve.ready()
    old = pids(seen)
    removed_port = row_of(seen, "removed")["instances"][0]["port"]
    async with Stream(serve, "kept") as kept, Stream(serve, "changed") as changed:
        with frozen(old["kept"] or 0):
            with frozen(old["changed"] or 0):
                serve.write({"added": small, "changed": {**real, "context": 512}, "kept": real})
                # What is new comes at once; what is changed finishes its answer first.
                seen = await serve.ready("added")
                draining = row_of(seen, "changed")
                if draining["state"] != "draining":
                    draining = await serve.state("changed", "draining")
                assert draining["instances"][0]["pid"] == old["changed"]
                await serve.wait_for(lambda seen: row_of(seen, "removed")["state"] is None)
            await changed.end()
            assert changed.done, changed.lines[-3:]
            after = pids(await serve.ready("changed"))
            assert after["changed"] not in (None, old["changed"])
            assert after["kept"] == old["kept"]
        await kept.end()
    assert kept.done, kept.lines[-3:]
    assert {each.pid for each in serve.engines()} == {
        after["changed"], after["kept"], pids(await serve.readiness())["added"]
    }  # fmt: skip
    assert not listens(removed_port)
    status, body, _ = await serve.post("/v1/chat/completions", {"model": "removed", "messages": []})
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    await serve.stop()


async def test_a_broken_save_changes_nothing_and_a_repaired_one_clears_its_problems(
    serve: Serve, small: Json
) -> None:
    good = serve.text({"a": small, "b": small})
    serve.write(good)
    await serve.start()
    before = pids(await serve.ready())
    broken = {
        "unknown key": good.replace("context = 256", "contxt = 256", 1),
        "syntax": good + '\n[models.c\npath = "x"\n',
        "empty": "",
        # In a text: what is cut between two keys can be a whole config of its own.
        "cut in the middle": good[: good.rindex("chat.gguf")],
        "no file": None,
    }
    for name, text in broken.items():
        if text is None:
            serve.config.unlink()
        else:
            in_place(serve.config, text)
        seen = await serve.wait_for(codes, what=name)
        problems = seen["config"]["problems"]
        assert all(problem["message"] for problem in problems)
        assert pids(seen) == before, name
        assert [row["state"] for row in seen["data"]] == ["ready", "ready"]
        status, text = await serve.get("/readyz?verbose")
        assert status == 200, "what was running goes on"
        assert problems[0]["message"] in text, name
        assert problems[0]["message"] in serve.log()
        if name == "unknown key":
            assert problems[0]["line"] == good[: good.index("context = 256")].count("\n") + 1
            assert "context" in problems[0]["hint"]
        serve.write(good)
        seen = await serve.wait_for(lambda seen: not codes(seen), what=f"repaired: {name}")
        assert pids(seen) == before, name
    assert seen["generation"] == 1, "nothing was applied but the first"


async def test_of_many_quick_edits_the_last_one_wins(serve: Serve, small: Json) -> None:
    serve.write({"a": small, "b": small})
    await serve.start()
    before = pids(await serve.ready())
    for number in range(20):
        save = SAVES[number % 3]
        save(serve.config, serve.text({"a": {**small, "context": 300 + number}, "b": small}))
        await asyncio.sleep(0.25)
    last = str(300 + 19)

    def is_last(seen: Json) -> bool:
        engine = row_of(seen, "a")["instances"][0]["pid"]
        return row_of(seen, "a")["state"] == "ready" and last in _argv(serve, engine)

    seen = await serve.wait_for(is_last)
    await asyncio.sleep(1.0)  # an earlier edit that comes late would show now
    seen = await serve.ready()
    assert is_last(seen)
    assert pids(seen)["b"] == before["b"]
    assert codes(seen) == []
    assert len(serve.engines()) == 2


def _argv(serve: Serve, pid: int | None) -> list[str]:
    return next((each.cmdline() for each in serve.engines() if each.pid == pid), [])


async def test_hangup_reads_the_file_again_and_a_second_listen_address_needs_a_restart(
    serve: Serve, small: Json
) -> None:
    serve.write({"a": small})
    await serve.start()
    before = pids(await serve.ready())
    port = serve.port
    serve.port = free_port()
    moved = serve.text({"a": small})
    serve.port = port
    in_place(serve.config, moved)
    serve.signal(signal.SIGHUP)
    seen = await serve.wait_for(codes)
    assert codes(seen) == ["needs-restart"]
    problem = seen["config"]["problems"][0]
    assert problem["where"] == "server.listen"
    assert str(port) in problem["message"]
    assert pids(seen) == before
    assert (await serve.get("/readyz"))[0] == 200
    serve.write({"a": small})
    await serve.wait_for(lambda seen: not codes(seen))


async def test_a_model_whose_file_is_not_there_starts_by_itself_when_it_comes(
    serve: Serve, small: Json, micro_chat: Path
) -> None:
    serve.write({"a": small, "later": {**small, "path": "models/later.gguf"}})
    await serve.start()
    seen = await serve.ready("a")
    row = row_of(seen, "later")
    assert (row["state"], row["error"]["code"]) == ("not_installed", "not-installed")
    assert "models/later.gguf" in row["error"]["message"]
    assert codes(seen) == [], "a file that is not there yet is no mistake"
    (serve.folder / "models").mkdir()
    # As a download does it: growing under another name, then renamed.
    part = serve.folder / "models" / "later.gguf.part"
    shutil.copy(micro_chat, part)
    part.rename(part.with_suffix(""))
    after = await serve.ready("a", "later")
    assert pids(after)["a"] == pids(seen)["a"]


async def test_a_model_file_that_is_being_downloaded_is_waited_for(
    serve: Serve, small: Json, micro_chat: Path
) -> None:
    file = serve.folder / "slow.gguf"
    serve.write({"a": {**small, "path": file.name}})
    await serve.start()
    content = await asyncio.to_thread(micro_chat.read_bytes)
    async with Watch(serve) as watch:
        with file.open("wb", buffering=0) as out:
            for part in range(10):
                out.write(content[part * len(content) // 10 : (part + 1) * len(content) // 10])
                await asyncio.sleep(0.4)
        await serve.ready("a")
    assert "failed" not in watch.states("a")


async def test_the_host_can_be_changed_while_it_runs(
    make_serve: Callable[..., Serve], host: str, programs: Any, small: Json
) -> None:
    if programs.swap is None:
        pytest.skip("no llama-swap")
    serve = make_serve()
    serve.write({"a": small, "b": small})
    await serve.start()
    before = pids(await serve.ready())
    assert (await serve.readiness())["host"] == host
    other = "llama-swap" if host == "direct" else "direct"
    serve.write({"a": small, "b": small}, engine={"host": other})
    await serve.wait_for(lambda seen: seen["host"] == other)
    after = pids(await serve.ready())
    assert not set(before.values()) & set(after.values())
    assert len(serve.swaps()) == (2 if other == "llama-swap" else 0)
    assert len(serve.engines()) == 2
    status, body, _ = await serve.post(
        "/v1/chat/completions",
        {"model": "a", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    )
    assert status == 200, body
    await serve.stop()
