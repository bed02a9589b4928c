import asyncio
import json
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pannier.errors import StoreError
from pannier.fleet.reports import MAX_LINE, ReportServer
from pannier.progress.parse import Report


def line(instance: str = "a", launcher: int = 41, phase: str = "loading", **more: object) -> bytes:
    body = {"v": 1, "instance": instance, "launcher": launcher, "pid": 42, "port": 8601}
    return json.dumps({**body, "phase": phase, **more}).encode() + b"\n"


class Owner:
    """A mailbox, as the owner of the server has one."""

    def __init__(self) -> None:
        self.mail: asyncio.Queue[Report | tuple[str, int]] = asyncio.Queue()

    def on_report(self, report: Report) -> None:
        self.mail.put_nowait(report)

    def on_lost(self, instance: str, launcher_pid: int) -> None:
        self.mail.put_nowait((instance, launcher_pid))

    async def next(self) -> Report | tuple[str, int]:
        return await asyncio.wait_for(self.mail.get(), 5)


def found(path: Path) -> bool:
    return path.exists()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def in_the_way(path: Path) -> Path:
    path.parent.mkdir()
    path.write_text("mine")
    return path


@pytest.fixture
def stale(path: Path) -> Path:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    return path


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "reports.sock"


@pytest.fixture
async def server(owner: Owner, path: Path) -> AsyncIterator[ReportServer]:
    async with ReportServer(path, on_report=owner.on_report, on_lost=owner.on_lost) as server:
        yield server
    left = [task for task in asyncio.all_tasks() if "report" in task.get_name()]
    assert not left, "close left a task behind"
    assert not found(path), "close left the socket file behind"


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(str(path))


async def closed_by_the_server(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionError:
        return True


async def test_reports_arrive_in_order_and_the_end_of_the_connection_is_told(
    server: ReportServer, owner: Owner, path: Path
) -> None:
    _, writer = await connect(path)
    writer.write(line(value=0.1) + line(value=0.2))
    writer.write(line(phase="ready"))
    first, second, third = [await owner.next() for _ in range(3)]
    assert isinstance(first, Report)
    assert isinstance(second, Report)
    assert isinstance(third, Report)
    assert (first.value, second.value, third.phase) == (0.1, 0.2, "ready")
    writer.close()
    assert await owner.next() == ("a", 41)


async def test_two_launchers_are_told_apart(server: ReportServer, owner: Owner, path: Path) -> None:
    _, one = await connect(path)
    _, two = await connect(path)
    one.write(line("a", 1))
    await owner.next()
    two.write(line("b", 2))
    await owner.next()
    one.close()
    assert await owner.next() == ("a", 1)
    two.close()
    assert await owner.next() == ("b", 2)


async def test_a_line_that_was_cut_off_by_a_death_is_not_a_report(
    server: ReportServer, owner: Owner, path: Path
) -> None:
    _, writer = await connect(path)
    writer.write(line() + line(value=0.5)[:-5])
    await owner.next()
    writer.close()
    assert await owner.next() == ("a", 41)


@pytest.mark.parametrize(
    "garbage",
    [b"hello\n", b"\n", b"\xff\n", b"x" * (MAX_LINE + 10), line("other", 99)],
    ids=["text", "empty", "bytes", "endless", "another launcher"],
)
async def test_garbage_closes_its_connection_alone(
    server: ReportServer, owner: Owner, path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    _, good = await connect(path)
    good.write(line("good", 1))
    await owner.next()
    reader, bad = await connect(path)
    with caplog.at_level(logging.WARNING):
        bad.write(line("bad", 2))
        await owner.next()
        bad.write(garbage)
        assert await closed_by_the_server(reader)
    assert await owner.next() == ("bad", 2)
    assert "closed a report connection" in caplog.text
    good.write(line("good", 1, "ready"))
    assert isinstance(await owner.next(), Report)
    bad.close()
    good.close()


async def test_a_connection_that_never_said_who_it_is_is_not_lost(
    server: ReportServer, owner: Owner, path: Path
) -> None:
    reader, silent = await connect(path)
    silent.write_eof()
    assert await closed_by_the_server(reader)
    silent.close()
    assert owner.mail.empty()


async def test_the_socket_is_for_our_own_user_only(server: ReportServer, path: Path) -> None:
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700


async def test_another_user_is_refused(
    server: ReportServer,
    owner: Owner,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pannier.fleet.reports.os.getuid", lambda: os.geteuid() + 1)
    reader, writer = await connect(path)
    with caplog.at_level(logging.WARNING):
        writer.write(line())
        assert await closed_by_the_server(reader)
    assert "another user" in caplog.text
    assert owner.mail.empty()
    writer.close()


async def test_a_socket_left_by_an_earlier_run_is_replaced(owner: Owner, stale: Path) -> None:
    async with ReportServer(stale, on_report=owner.on_report, on_lost=owner.on_lost):
        _, writer = await connect(stale)
        writer.write(line())
        assert isinstance(await owner.next(), Report)
        writer.close()


async def test_a_file_that_is_no_socket_is_left_alone(owner: Owner, in_the_way: Path) -> None:
    with pytest.raises(StoreError, match="in the way"):
        await ReportServer(in_the_way, on_report=owner.on_report, on_lost=owner.on_lost).start()
    assert found(in_the_way)


async def test_a_path_too_long_for_a_socket_is_said_in_words(owner: Owner, tmp_path: Path) -> None:
    server = ReportServer(tmp_path / ("x" * 120), on_report=owner.on_report, on_lost=owner.on_lost)
    with pytest.raises(StoreError, match="shorter"):
        await server.start()


async def test_close_ends_open_connections_without_calling_them_lost(
    owner: Owner, path: Path
) -> None:
    server = ReportServer(path, on_report=owner.on_report, on_lost=owner.on_lost)
    await server.start()
    reader, writer = await connect(path)
    writer.write(line())
    await owner.next()
    await asyncio.wait_for(server.close(), 2)
    assert await closed_by_the_server(reader)
    assert owner.mail.empty()
    await server.close()
    writer.close()


async def test_it_can_be_started_again_on_the_same_path(owner: Owner, path: Path) -> None:
    server = ReportServer(path, on_report=owner.on_report, on_lost=owner.on_lost)
    for _ in range(2):
        async with server:
            _, writer = await connect(path)
            writer.write(line())
            assert isinstance(await owner.next(), Report)
            writer.close()
            assert await owner.next() == ("a", 41)
