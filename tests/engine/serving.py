"""A real `pannier serve` in a process of its own, and what a test asks of it."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
import openai
import psutil
import tomli_w

from pannier.fleet.store import runtime_folder

PATIENCE_S = 40.0
"""For what takes a second or two on a quiet machine."""

Json = dict[str, Any]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Failed(AssertionError):
    """Something did not come in time."""


class Serve:
    """One `pannier serve`: its config, its folders, its process."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str,
        programs: Mapping[str, str],
        drain_s: float = 20.0,
        engine: Json | None = None,
    ) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.state_folder = folder / "state"
        self.log_file = folder / "serve.log"
        self.host = host
        self.port = free_port()
        # One thread: with more, they wait for each other where the cores are shared.
        self.engine = {"host": host, "args": ["--threads", "1"], **(engine or {})}
        self.drain_s = drain_s
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "xdg-config"),
            "XDG_DATA_HOME": str(folder / "xdg-data"),
            "XDG_STATE_HOME": str(folder / "xdg-state"),
            **{name: os.environ[name] for name in ("XDG_RUNTIME_DIR",) if name in os.environ},
            **programs,
        }
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # The config.

    def text(self, models: Mapping[str, Json], **tables: Json) -> str:
        """A config as text: these models, the server's address, the host of this test."""
        document: Json = {
            "server": {"listen": f"127.0.0.1:{self.port}", **tables.pop("server", {})},
            "engine": {**self.engine, **tables.pop("engine", {})},
            "models": dict(models),
            **tables,
        }
        return tomli_w.dumps(document)

    def write(self, models: Mapping[str, Json] | str, **tables: Json) -> None:
        """Saves a config as most programs do: a temporary file and a rename."""
        text = models if isinstance(models, str) else self.text(models, **tables)
        temporary = self.folder / ".config.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.config)

    # The process.

    def spawn(self) -> None:
        argv = [sys.executable, "-m", "pannier", "serve", "--config", str(self.config)]
        argv += ["--state", str(self.state_folder), "--drain", str(self.drain_s), "--verbose"]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.env, cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    async def start(self) -> "Serve":
        """Starts and waits until it answers."""
        self.spawn()
        end = time.monotonic() + PATIENCE_S
        async with aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{self.url}/livez") as answer:
                        if answer.status == 200:
                            return self
                if self.running.poll() is not None:
                    raise Failed(f"serve ended with {self.running.returncode}")
                if time.monotonic() > end:
                    raise Failed("serve does not answer")
                await asyncio.sleep(0.05)

    @property
    def running(self) -> "subprocess.Popen[bytes]":
        assert self.process is not None
        return self.process

    def signal(self, number: int) -> None:
        self.running.send_signal(number)

    async def ended(self, within: float = PATIENCE_S) -> int:
        """Its exit code."""
        try:
            return await asyncio.to_thread(self.running.wait, within)
        except subprocess.TimeoutExpired:
            raise Failed("serve does not end") from None

    async def stop(self) -> None:
        """Ends it as a service manager does: exit code 0 and nothing left."""
        self.signal(signal.SIGTERM)
        assert await self.ended(60) == 0
        assert self.processes() == []
        self.assert_clean()

    def assert_clean(self) -> None:
        """No socket and no rendered config is left behind."""
        runtime = runtime_folder(self.env, self.state_folder)
        assert not runtime.exists() or list(runtime.iterdir()) == []
        assert list((self.state_folder / "groups").iterdir()) == []

    def close(self) -> list[str]:
        """Ends whatever is left; at the end of a test that failed there may be much."""
        left = []
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                left.append("pannier serve did not end at SIGTERM")
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                left.append(" ".join(process.cmdline())[:200])
                process.kill()
        return left

    def processes(self) -> list[psutil.Process]:
        """Everything that came from this serve, the orphans too; without serve itself."""
        mark = str(self.folder / "xdg-data")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("XDG_DATA_HOME") == mark and not self._is_serve(process):
                    found.append(process)
        return found

    def _is_serve(self, process: psutil.Process) -> bool:
        return self.process is not None and process.pid == self.process.pid

    def engines(self) -> list[psutil.Process]:
        """The llama-servers that serve; one that is only asked for its devices does not."""
        found = [each for each in self.processes() if _program(each) == "llama-server"]
        return [each for each in found if "--list-devices" not in _words(each)]

    def swaps(self) -> list[psutil.Process]:
        return [each for each in self.processes() if _program(each) == "llama-swap"]

    async def nothing_left(self, within: float = PATIENCE_S) -> None:
        end = time.monotonic() + within
        while left := self.processes():
            if time.monotonic() > end:
                raise Failed(f"still there: {[each.cmdline() for each in left]}")
            await asyncio.to_thread(psutil.wait_procs, left, 0.2)

    def log(self) -> str:
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return text[-12_000:]

    # HTTP.

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        options = {"max_retries": 0, "timeout": 60.0, **options}
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="-", **options)

    async def get(self, path: str, *, base: str | None = None) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{base or self.url}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def post(self, path: str, body: Json) -> tuple[int, Json, Mapping[str, str]]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}{path}", json=body) as answer,
        ):
            return answer.status, await answer.json(), dict(answer.headers)

    async def readiness(self) -> Json:
        status, text = await self.get("/v1/readiness")
        assert status == 200, text
        found: Json = json.loads(text)
        return found

    async def row(self, model: str) -> Json:
        return row_of(await self.readiness(), model)

    async def pid(self, model: str) -> int:
        found = (await self.row(model))["instances"][0]["pid"]
        assert isinstance(found, int)
        return found

    async def events(self) -> AsyncIterator[tuple[str, Json]]:
        """The events of `/v1/readiness/events`, with names, for as long as they are read."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
        async with (
            aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 22) as session,
            session.get(f"{self.url}/v1/readiness/events") as answer,
        ):
            assert answer.content_type == "text/event-stream"
            name = ""
            async for raw in answer.content:
                line = raw.decode().rstrip("\r\n")
                if line.startswith("event:"):
                    name = line.partition(":")[2].strip()
                elif line.startswith("data:"):
                    yield name, json.loads(line.partition(":")[2])

    async def wait_for(
        self, holds: Callable[[Json], object], within: float = PATIENCE_S, what: str = ""
    ) -> Json:
        """The first readiness for which `holds` is true; looked at after every event."""
        seen: Json = {}
        try:
            async with asyncio.timeout(within), contextlib.aclosing(self.events()) as events:
                async for _ in events:
                    seen = await self.readiness()
                    if holds(seen):
                        return seen
        except TimeoutError:
            pass
        last = json.dumps(seen, indent=1)
        raise Failed(f"did not come: {what or holds}\n{last}")

    async def ready(self, *models: str, within: float = PATIENCE_S) -> Json:
        """Waits until these models, or all, are ready."""

        def holds(seen: Json) -> bool:
            rows = seen["data"]
            wanted = models or tuple(each["id"] for each in rows)
            states = {each["id"]: each["state"] for each in rows}
            return all(states.get(name) == "ready" for name in wanted)

        return await self.wait_for(holds, within, f"ready: {models or 'all'}")

    async def state(self, model: str, *states: str, within: float = PATIENCE_S) -> Json:
        """Waits until a model is in one of these states; its row."""
        seen = await self.wait_for(
            lambda seen: row_of(seen, model)["state"] in states, within, f"{model}: {states}"
        )
        return row_of(seen, model)


def row_of(seen: Json, model: str) -> Json:
    for row in seen["data"]:
        if row["id"] == model:
            found: Json = row
            return found
    return {"id": model, "state": None, "instances": [], "error": None}


def codes(seen: Json) -> list[str]:
    return [problem["code"] for problem in seen["config"]["problems"]]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it ended in this moment
        return []


def _program(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error, IndexError):
        return Path(process.cmdline()[0]).name
    return ""


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """An engine that does nothing for a while: what it streams stays open for exactly as long."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class Watch:
    """Writes down every row that the events tell, for as long as the block runs."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.rows: list[Json] = []
        self._task: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read(), name="a watch")
        await asyncio.wait_for(self._connected.wait(), PATIENCE_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        async with contextlib.aclosing(self._serve.events()) as events:
            async for name, value in events:
                self.rows += value["data"] if name in ("snapshot", "config") else [value]
                self._connected.set()

    def states(self, model: str) -> list[str]:
        """The states of a model, each as long as it lasted."""
        found: list[str] = []
        for row in self.rows:
            if row["id"] == model and found[-1:] != [row["state"]]:
                found.append(row["state"])
        return found


class Stream:
    """A chat answer that is being streamed, read in the background to its end."""

    def __init__(self, serve: Serve, model: str, *, tokens: int = 80) -> None:
        self._serve = serve
        self._body = {
            "model": model,
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        self.lines: list[str] = []
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.begun = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Returns when the first token is there."""
        self.task = asyncio.create_task(self._read(), name="a streamed answer")
        first = asyncio.create_task(self.begun.wait(), name="the first token")
        try:
            await asyncio.wait({self.task, first}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        assert self.begun.is_set(), f"no token came: {self.status} {self.lines}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _read(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        url = f"{self._serve.url}/v1/chat/completions"
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, json=self._body) as answer,
        ):
            self.status, self.headers = answer.status, dict(answer.headers)
            async for raw in answer.content:
                if line := raw.decode().strip():
                    self.lines.append(line)
                    if line.startswith("data: {"):
                        self.begun.set()

    @property
    def done(self) -> bool:
        """Whether the answer came to its proper end."""
        return bool(self.lines) and self.lines[-1] == "data: [DONE]"

    async def end(self, within: float = 60.0) -> "Stream":
        assert self.task is not None
        await asyncio.wait_for(asyncio.shield(self.task), within)
        return self
