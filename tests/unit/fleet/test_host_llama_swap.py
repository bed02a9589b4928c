"""What only the llama-swap host has: its program, its config and its key."""

import asyncio
import stat
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest
from tests.fakes.hosted import LLAMA_SWAP, Hosted, hosted
from tests.launching import alive

from pannier.errors import HostError
from pannier.fleet import host_llama_swap
from pannier.fleet.host_llama_swap import _reason

real = pytest.mark.skipif(not LLAMA_SWAP.exists(), reason=f"no llama-swap at {LLAMA_SWAP}")


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Hosted]:
    async with hosted(tmp_path) as place:
        yield place


@pytest.fixture
def program(tmp_path: Path):
    """Writes a small program that stands in for a llama-swap that misbehaves."""

    def write(text: str) -> str:
        path = tmp_path / "llama-swap"
        path.write_text(f"#!{sys.executable}\nimport sys, time\n{textwrap.dedent(text)}")
        path.chmod(0o755)
        return str(path)

    return write


async def refusal(place: Hosted, program: str) -> HostError:
    """The error of a start, after which a stop must leave nothing."""
    host = place.make("llama-swap", place.group("a"), program)
    with pytest.raises(HostError) as caught:
        await host.start()
    async with asyncio.timeout(20):
        await host.stop()
    place.nothing_is_left()
    return caught.value


async def test_a_program_that_is_not_there_is_told(place):
    assert "No such file" in (await refusal(place, "/no/such/llama-swap")).message


async def test_a_program_that_ends_at_once_is_told_with_its_last_words(place, program):
    error = await refusal(place, program("sys.exit('ERROR bad config')"))
    assert error.message == "llama-swap did not start: ERROR bad config"


async def test_a_program_that_never_listens_is_given_up(place, program, monkeypatch):
    monkeypatch.setattr(host_llama_swap, "START_SECONDS", 1.0)
    error = await refusal(place, program("time.sleep(600)"))
    assert "did not answer within 1 s" in error.message


DEAF = """
import socket
server = socket.create_server(("127.0.0.1", int(sys.argv[-1].rpartition(":")[2])))
kept = []
while True:
    kept.append(server.accept())
"""

FOREIGN = """
import http.server
class Routes(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({status})
        self.end_headers()
        self.wfile.write({body})
    def log_message(self, *given): pass
where = ("127.0.0.1", int(sys.argv[-1].rpartition(":")[2]))
http.server.HTTPServer(where, Routes).serve_forever()
"""


async def test_a_program_that_listens_and_never_answers_is_given_up(place, program, monkeypatch):
    monkeypatch.setattr(host_llama_swap, "START_SECONDS", 1.0)
    async with asyncio.timeout(30):
        await refusal(place, program(DEAF))


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"hello"), (200, b"\xff\xfe"), (401, b"running"), (302, b"")]
)
async def test_a_program_that_does_not_answer_as_llama_swap_is_given_up(
    place, program, monkeypatch, status, body
):
    monkeypatch.setattr(host_llama_swap, "START_SECONDS", 1.0)
    await refusal(place, program(FOREIGN.format(status=status, body=body)))


@real
async def test_the_config_is_private_while_it_runs_and_gone_afterwards(place):
    host = place.make("llama-swap", place.group("a", "b"))
    await host.start()
    (config,) = place.store.groups.iterdir()
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    await host.stop()
    assert not config.exists()


@real
async def test_a_stop_survives_a_config_that_was_taken_away(place):
    host = place.make("llama-swap", place.group("a"))
    await host.start()
    (config,) = place.store.groups.iterdir()
    config.unlink()
    config.mkdir()
    await host.stop()
    config.rmdir()


@real
async def test_nobody_gets_in_without_the_key_and_the_key_is_new_each_time(place):
    keys = []
    for _ in range(2):
        host = place.make("llama-swap", place.group("a"))
        await host.start()
        upstream = host.upstream("a")
        keys.append(upstream.headers["Authorization"])
        base = upstream.url.partition("/upstream")[0]
        async with aiohttp.ClientSession() as session:
            for path in ("/running", "/unload", "/upstream/a/health"):
                async with session.get(base + path) as answer:
                    assert answer.status == 401
        await host.stop()
    assert keys[0] != keys[1]


@real
async def test_a_llama_swap_that_is_killed_is_told_and_what_it_ran_is_ended(place):
    host = place.make("llama-swap", place.group("a"))
    await host.start()
    await host.load("a")
    ready = await place.phase("a", "ready")
    psutil.Process(psutil.Process(ready.launcher).ppid()).kill()
    await place.until(lambda: place.down)
    assert place.down[0].code == "llama-swap-ended"
    assert "SIGKILL" in place.down[0].message
    await host.stop()
    place.nothing_is_left()


@real
async def test_a_second_host_of_the_same_group_does_not_disturb_the_first(place):
    """Two groups are two processes: what one does never reaches the other."""
    one, other = (place.make("llama-swap", place.group(name)) for name in ("a", "b"))
    await one.start()
    await one.load("a")
    ready = await place.phase("a", "ready")
    await other.start()
    await other.load("b")
    await place.phase("b", "ready")
    await other.stop()
    assert alive(ready.pid or 0)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"src":"llama-swap","error":{"message":"upstream ended"}}', "llama-swap: upstream ended"),
        ('{"src":"llama-swap","error":"upstream ended"}', "llama-swap: upstream ended"),
        ("upstream ended\n", "llama-swap: upstream ended"),
        ("", "llama-swap: it could not start the model"),
        ("[1]", "llama-swap: [1]"),
        ("failed to start command 'x --api-key s'", "llama-swap: it could not start the model"),
    ],
)
def test_the_reason_of_llama_swap_is_told_in_either_shape_and_without_the_command(body, told):
    assert _reason(body) == told


def test_a_long_reason_is_cut():
    assert len(_reason("x" * 10_000)) < 400
