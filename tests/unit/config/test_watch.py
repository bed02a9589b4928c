"""Hints that config.toml may have changed: every way to save one, on a real disk."""

import asyncio
import os
import shutil
import time

import pytest

from pannier.config import watch
from pannier.config.watch import has_settled, hints, signature

PATIENCE = 15.0
POLL_S = 0.2
BEFORE = b"[server]\n"
AFTER = b"[server]\nallow_http_placement = true\n"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(BEFORE)
    return path


class Watched:
    """The hints about a path, one at a time."""

    def __init__(self, path, **options):
        self._hints = hints(path, **options)
        self._next = None

    async def __aenter__(self):
        await self.settle()
        return self

    async def __aexit__(self, *error):
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._hints.aclose()

    async def hint(self, seconds=PATIENCE):
        """Whether a hint comes within this time."""
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._hints))
        done, _ = await asyncio.wait({self._next}, timeout=seconds)
        if done:
            self._next.result()
            self._next = None
        return bool(done)

    async def settle(self):
        """Takes what comes at the start, until it is quiet and the folder is watched."""
        while await self.hint(0.6):
            pass


def make_old(path):
    """A file that was saved long ago, as most are."""
    os.utime(path, (time.time() - 100, time.time() - 100))


def in_place(path):
    path.write_bytes(AFTER)


def by_rename(path):
    new = path.with_name("tmp123")
    new.write_bytes(AFTER)
    new.replace(path)


def as_vim(path):
    old = path.with_name("config.toml~")
    path.rename(old)
    path.write_bytes(AFTER)
    old.unlink()


def deleted_and_made(path):
    path.unlink()
    path.write_bytes(AFTER)


def same_size(path):
    path.write_bytes(BEFORE.replace(b"s", b"S"))


SAVES = [in_place, by_rename, as_vim, deleted_and_made, same_size]


@pytest.mark.parametrize("save", SAVES, ids=lambda save: save.__name__)
@pytest.mark.parametrize("poll_s", [60.0, POLL_S], ids=["by notice", "by notice or look"])
async def test_a_save_is_noticed_and_the_next_one_too(path, save, poll_s):
    make_old(path)
    async with Watched(path, poll_s=poll_s) as watched:
        for _ in range(2):
            save(path)
            assert await watched.hint()
            make_old(path)
            await watched.settle()


@pytest.mark.parametrize("save", SAVES, ids=lambda save: save.__name__)
async def test_where_no_notice_comes_a_look_finds_it(path, save, monkeypatch):
    async def deaf(folder, noticed, retry_s):
        await asyncio.Event().wait()

    monkeypatch.setattr(watch, "_watch_folder", deaf)
    make_old(path)
    async with Watched(path, poll_s=POLL_S) as watched:
        save(path)
        assert await watched.hint()


async def test_a_folder_that_is_swapped_by_a_symlink_is_noticed(tmp_path):
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "config.toml").write_bytes(b"# %d\n" % number)
    (tmp_path / "..data").symlink_to("v1")
    path = tmp_path / "config.toml"
    path.symlink_to("..data/config.toml")
    async with Watched(path, poll_s=60.0) as watched:
        (tmp_path / "new").symlink_to("v2")
        (tmp_path / "new").replace(tmp_path / "..data")
        assert await watched.hint()


async def test_the_target_of_a_link_in_another_folder_is_looked_at(tmp_path):
    (tmp_path / "far").mkdir()
    target = tmp_path / "far" / "real.toml"
    target.write_bytes(BEFORE)
    (tmp_path / "near").mkdir()
    path = tmp_path / "near" / "config.toml"
    path.symlink_to(target)
    make_old(target)
    async with Watched(path, poll_s=POLL_S) as watched:
        target.write_bytes(AFTER)
        assert await watched.hint()


async def test_a_file_that_goes_and_comes_is_noticed_both_times(path):
    async with Watched(path, poll_s=POLL_S) as watched:
        path.unlink()
        assert await watched.hint()
        await watched.settle()
        path.write_bytes(AFTER)
        assert await watched.hint()


async def test_a_folder_that_goes_and_comes_is_noticed_both_times(tmp_path):
    folder = tmp_path / "etc"
    folder.mkdir()
    path = folder / "config.toml"
    path.write_bytes(BEFORE)
    async with Watched(path, poll_s=POLL_S) as watched:
        shutil.rmtree(folder)
        assert await watched.hint()
        await watched.settle()
        folder.mkdir()
        path.write_bytes(AFTER)
        assert await watched.hint()
        make_old(path)
        await watched.settle()
        path.write_bytes(BEFORE)
        assert await watched.hint()


async def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path):
    path = tmp_path / "later" / "config.toml"
    async with Watched(path, poll_s=POLL_S) as watched:
        path.parent.mkdir()
        path.write_bytes(AFTER)
        assert await watched.hint()


async def test_where_nothing_changes_there_is_no_hint(path):
    make_old(path)
    async with Watched(path, poll_s=0.02) as watched:
        for _ in range(3):
            path.read_bytes()
        assert not await watched.hint(0.5)


async def test_other_files_of_the_folder_are_no_hint(path):
    make_old(path)
    async with Watched(path, poll_s=POLL_S) as watched:
        for number in range(5):
            (path.parent / "log.txt").write_bytes(b"x" * number)
            await asyncio.sleep(0.01)
        assert not await watched.hint(1.0)


async def test_a_change_of_its_rights_alone_makes_no_storm(path):
    make_old(path)
    async with Watched(path, poll_s=0.05) as watched:
        path.chmod(0o600)
        assert not await watched.hint(1.0)


async def test_a_save_between_the_first_reading_and_the_first_look_is_not_lost(path):
    make_old(path)
    watched = Watched(path, poll_s=60.0)
    assert await watched.hint(1.0), "the first hint comes at once, whatever was read before"
    await watched.__aexit__()


async def test_something_else_that_is_waited_for_is_a_hint(path):
    make_old(path)
    news = []
    async with Watched(path, also=lambda: tuple(news), poll_s=POLL_S) as watched:
        assert not await watched.hint(0.5)
        news.append("a model came")
        assert await watched.hint()


async def test_the_task_that_watches_ends_with_the_hints(path):
    async with Watched(path, poll_s=POLL_S):
        assert any(task.get_name() == "config folder" for task in asyncio.all_tasks())
    assert not any(task.get_name() == "config folder" for task in asyncio.all_tasks())


def test_the_signature_of_a_file_tells_one_save_from_another(path):
    before = signature(path)
    assert signature(path) == before
    by_rename(path)
    assert signature(path) != before
    path.unlink()
    assert signature(path) == ("FileNotFoundError",)
    assert signature(path / "x") == signature(path / "y")


def test_a_file_has_settled_when_it_is_there_and_old_enough(path):
    assert not has_settled(path)
    make_old(path)
    assert has_settled(path)
    assert not has_settled(path.with_name("gone"))
