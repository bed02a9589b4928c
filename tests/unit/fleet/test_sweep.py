"""What an earlier run left behind is found and ended, and nothing else is touched."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launching import alive, gone

from pannier.fleet.host import Workplace
from pannier.fleet.loop import Fleet
from pannier.fleet.ports import Ports
from pannier.fleet.store import hold
from pannier.fleet.sweep import Session, boot_id, end_sessions, is_ours, members, start_time

RUN = """
import os, signal, sys, time
if os.fork() == 0:
    os.setpgid(0, 0)
    if "deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""
"""A leader, and a member of its session in a process group of its own; prints the member's pid."""


class Left:
    """A session whose leader may be killed."""

    def __init__(self, *arguments: str) -> None:
        self.leader = subprocess.Popen(
            [sys.executable, "-c", RUN, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.leader.stdout is not None
        self.member = int(self.leader.stdout.readline())
        self.session = Session(self.leader.pid, start_time(self.leader.pid) or 0)

    def kill_leader(self) -> "Left":
        self.leader.kill()
        self.leader.wait()
        return self

    def close(self) -> None:
        for pid in {self.member, *members(self.leader.pid)}:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.leader.wait()
        assert self.leader.stdout is not None
        self.leader.stdout.close()


@pytest.fixture
def left() -> Iterator[Callable[..., Left]]:
    made: list[Left] = []

    def make(*arguments: str) -> Left:
        made.append(Left(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def test_what_a_killed_leader_left_is_found_by_its_session_and_ended(left):
    run = left().kill_leader()
    assert os.getpgid(run.member) == run.member, "no signal to the leader's group reaches it"
    assert await end_sessions([run.session]) == [run.member]
    assert not alive(run.member)


async def test_what_ignores_term_is_killed(left):
    run = left("deaf").kill_leader()
    assert await end_sessions([run.session], grace_s=0.2) == [run.member]
    await gone(run.member)


async def test_a_session_whose_leader_lives_is_ended_with_it(left):
    run = left()
    waited = asyncio.create_task(asyncio.to_thread(run.leader.wait))
    found = await end_sessions([run.session])
    assert sorted(found) == sorted([run.leader.pid, run.member])
    assert await waited == -signal.SIGTERM


async def test_a_number_that_belongs_to_another_process_now_is_not_touched(left):
    stranger = left()
    recorded = Session(stranger.leader.pid, stranger.session.started - 100)
    assert not is_ours(recorded)
    assert await end_sessions([recorded], grace_s=0.1) == []
    assert alive(stranger.leader.pid)
    assert alive(stranger.member)


async def test_a_session_that_is_gone_costs_nothing(left):
    run = left()
    run.close()
    assert await end_sessions([run.session]) == []


def test_a_dead_process_that_was_not_collected_yet_is_no_member(left):
    run = left()
    run.leader.kill()
    os.waitid(os.P_PID, run.leader.pid, os.WEXITED | os.WNOWAIT)
    assert members(run.leader.pid) == [run.member]


def test_a_process_with_a_hostile_name_is_read_right(tmp_path):
    program = tmp_path / "a) R 1 1 1 (b"
    program.symlink_to(sys.executable)
    process = subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        now = start_time(os.getpid())
        assert (start_time(process.pid) or 0) >= (now or 0)
        assert process.pid in members(os.getsid(0))
    finally:
        process.communicate(b"\n")


def test_where_the_boot_is_not_known_it_has_no_name(tmp_path):
    assert boot_id(tmp_path / "nothing") == ""
    assert len(boot_id()) == 36


def memory(folder: Path, boot: str, session: Session) -> None:
    folder.mkdir()
    rows = f"[[sessions]]\npid = {session.pid}\nstarted = {session.started}\n"
    (folder / "memory.toml").write_text(f'boot = "{boot}"\n{rows}')


@pytest.mark.parametrize("same", [True, False])
async def test_a_fleet_ends_what_a_killed_one_left_on_this_boot_only(left, tmp_path, same):
    run = left().kill_leader()
    memory(tmp_path / "state", boot_id() if same else "another boot", run.session)
    with hold(tmp_path / "state", tmp_path / "run" / "pannier") as store:
        async with Fleet(Workplace(store=store, ports=Ports(), env={})):
            assert alive(run.member) is not same
