"""One llama-swap process per group, started from the group's rendered config.

llama-swap runs without `-watch-config` and gets no SIGHUP: its own reload stops every model. It
listens on a loopback port that only we know, with a key that is new at every start, so that no web
page can unload a model behind our back.

Must not: let llama-swap decide anything. Loads are asked for one by one, unloads go through its API
before it is stopped, because at SIGTERM it waits up to 30 s for open streams first.
"""

import asyncio
import contextlib
import hashlib
import secrets
import signal
from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec

from pannier.errors import Failure, HostError
from pannier.fleet.host import STOP_GRACE_S, Hooks, Upstream, Workplace, guard_command
from pannier.fleet.ports import is_free
from pannier.fleet.process import Child, spawn
from pannier.fleet.store import atomic_write
from pannier.render.flags import HOST_ADDRESS
from pannier.render.llama_swap import UNLOAD_TIMEOUT_S, GroupLaunch, render

START_SECONDS = 20.0
"""llama-swap looks for GPUs before it listens, for up to 10 s."""

_PROBE_S = 3.0
"""A program that takes our question and never answers must not hold up the start for ever."""

_STOP_SECONDS = 40.0
"""Its own bound is 30 s for open requests and a backstop of 5 s."""


class LlamaSwapHost:
    """Runs the llama-swap of one group. Owned by the group's task."""

    def __init__(
        self, group: GroupLaunch, workplace: Workplace, hooks: Hooks, program: str
    ) -> None:
        self._group = group
        self._program = program
        self._place = workplace
        self._hooks = hooks
        self._key = secrets.token_urlsafe(24)
        self._ports: dict[str, int] = {}
        self._listen: int | None = None
        self._child: Child | None = None
        self._session: aiohttp.ClientSession | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._loads: dict[str, asyncio.Task[None]] = {}

    @property
    def _config(self) -> Path:
        """Named by a hash: a model's id may hold anything."""
        name = hashlib.sha256(self._group.id.encode()).hexdigest()[:16]
        return self._place.store.groups / f"{name}.json"

    async def start(self) -> None:
        """Writes the config, starts llama-swap and waits until it answers."""
        self._ports = {launch.instance: self._place.ports.take() for launch in self._group.launches}
        self._listen = self._place.ports.take()
        try:
            atomic_write(self._config, render(self._group, self._ports, key=self._key))
        except OSError as error:
            raise HostError(f"{self._config} cannot be written: {error.strerror}") from error
        address = f"{HOST_ADDRESS}:{self._listen}"
        self._child = await spawn(
            (*guard_command(), self._program, "-config", str(self._config), "-listen", address),
            env=self._place.env,
            say=lambda line: self._hooks.say(f"{self._group.id}: {line}"),
        )
        self._place.store.remember_session(self._child.session)
        self._session = aiohttp.ClientSession(
            f"http://{address}",
            headers={"Authorization": f"Bearer {self._key}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=0),
        )
        await self._until_it_answers(self._child, self._session)
        self._watcher = asyncio.create_task(
            self._watch(self._child), name=f"llama-swap of {self._group.id}"
        )

    async def _until_it_answers(self, child: Child, session: aiohttp.ClientSession) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + START_SECONDS
        while True:
            if child.returncode is not None:
                last = child.tail()[-1:] or (f"exit code {child.returncode}",)
                raise HostError(f"llama-swap did not start: {last[0]}")
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                # /running needs our key: a foreign server on the port does not know it.
                limit = aiohttp.ClientTimeout(total=max(0.1, min(_PROBE_S, end - loop.time())))
                async with session.get("/running", timeout=limit, allow_redirects=False) as answer:
                    if answer.status == 200 and b'"running"' in await answer.read():
                        return
            if loop.time() > end:
                raise HostError(f"llama-swap did not answer within {START_SECONDS:.0f} s")
            await asyncio.sleep(0.05)

    async def _watch(self, child: Child) -> None:
        code = await child.wait()
        # 128 + n is how the guard tells of signal n.
        number = -code if code < 0 else code - 128
        if number in set(signal.Signals):
            how, last = f"signal {signal.Signals(number).name}", None
        else:
            how, last = f"code {code}", (child.tail()[-1:] or ("it said nothing",))[0]
        failure = Failure(
            code="llama-swap-ended", message=f"llama-swap ended with {how}", detail=last
        )
        self._hooks.down(failure)

    async def load(self, instance: str) -> None:
        """Asks llama-swap for the instance; the request stays open until it is ready.

        An abandoned one would let a `ttl` unload the model one second after it became ready. An
        earlier run of the instance is ended first: its launcher tells of the end of an engine
        before llama-swap sees it, and until then llama-swap would take this request for that run.
        """
        if instance in self._loads:
            await self.unload(instance)
        if not is_free(self._ports[instance]):
            await self._take_other_ports(instance)
        self._loads[instance] = asyncio.create_task(
            self._ask_for(instance), name=f"load of {instance}"
        )

    async def _take_other_ports(self, instance: str) -> None:
        """Another program took the port meanwhile, and llama-swap reads its config only at start.

        Nothing is lost: when a member is loaded, no other one of its group is resident.
        """
        self._hooks.say(f"{self._group.id}: the port of {instance} was taken, it gets another")
        await self.stop()
        try:
            await self.start()
        except HostError as error:
            self._hooks.down(Failure(code="host-failed", message=error.message, hint=error.hint))
            raise

    async def _ask_for(self, instance: str) -> None:
        if self._session is None:
            raise HostError("llama-swap is not running")
        try:
            path = f"/upstream/{quote(instance, safe='')}/health"
            async with self._session.get(path, allow_redirects=False) as answer:
                if answer.status == 200:
                    return
                self._hooks.gone(instance, _reason(await answer.text("utf-8", "replace")))
        except aiohttp.ClientError as error:
            self._hooks.gone(instance, f"llama-swap did not answer: {error}")

    async def _end_load(self, instance: str) -> None:
        task = self._loads.pop(instance, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def unload(self, instance: str) -> None:
        """Unloads through the API; llama-swap answers when the launcher is gone."""
        await self._end_load(instance)
        if self._session is None:
            return
        path = f"/api/models/unload/{quote(instance, safe='')}"
        limit = aiohttp.ClientTimeout(total=UNLOAD_TIMEOUT_S + STOP_GRACE_S)
        try:
            async with self._session.post(path, timeout=limit, allow_redirects=False):
                pass
        except (aiohttp.ClientError, TimeoutError) as error:
            self._hooks.say(f"{self._group.id}: unload of {instance}: {str(error) or 'no answer'}")

    async def stop(self) -> None:
        """Unloads all members, stops llama-swap and sweeps its session."""
        answered = self._watcher is not None
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        child = self._child
        if child is not None:
            if answered and child.returncode is None:
                await asyncio.gather(*(self.unload(each.instance) for each in self._group.launches))
            await child.stop(_STOP_SECONDS)
            self._place.store.forget_session(child.pid)
        self._watcher = self._child = None
        for instance in list(self._loads):
            await self._end_load(instance)
        if self._session is not None:
            await self._session.close()
            self._session = None
        with contextlib.suppress(OSError):
            self._config.unlink(missing_ok=True)
        self._place.ports.give_back(*self._ports.values())
        if self._listen is not None:
            self._place.ports.give_back(self._listen)
        self._ports, self._listen = {}, None

    def upstream(self, instance: str) -> Upstream:
        """The instance behind llama-swap, which keeps its own idea of what runs right."""
        if self._listen is None:
            raise HostError(f"the llama-swap of {instance} is not running")
        return Upstream(
            url=f"http://{HOST_ADDRESS}:{self._listen}/upstream/{quote(instance, safe='')}",
            headers={"Authorization": f"Bearer {self._key}"},
        )

    def port(self, instance: str) -> int | None:
        """The port of an instance's llama-server."""
        return self._ports.get(instance)


def _reason(body: str) -> str:
    """The human part of a llama-swap error, without the command line that some versions show."""
    try:
        found = msgspec.json.decode(body)["error"]
        text = str(found["message"] if isinstance(found, dict) else found)
    except (msgspec.MsgspecError, KeyError, TypeError):
        text = body
    text = text.strip().partition("failed to start command '")[0]
    return f"llama-swap: {text[:300] or 'it could not start the model'}"
