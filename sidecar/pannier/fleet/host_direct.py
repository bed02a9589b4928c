"""The embedded host: Pannier starts the launchers of a group itself.

One `pip install` and a llama-server are enough. Requests go straight to llama-server, one hop less
than through llama-swap.

Must not: know what ready means; the launcher's reports say it.
"""

import asyncio

from pannier.errors import HostError
from pannier.fleet.host import STOP_GRACE_S, Hooks, Upstream, Workplace
from pannier.fleet.ports import is_free
from pannier.fleet.process import Child, spawn
from pannier.render.flags import HOST_ADDRESS
from pannier.render.llama_swap import GroupLaunch, command


class DirectHost:
    """Runs the launchers of one group. Owned by the group's task."""

    def __init__(self, group: GroupLaunch, workplace: Workplace, hooks: Hooks) -> None:
        self._group = group
        self._place = workplace
        self._hooks = hooks
        self._ports: dict[str, int] = {}
        self._children: dict[str, Child] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Takes a port for every member."""
        for launch in self._group.launches:
            self._ports[launch.instance] = self._place.ports.take()

    async def load(self, instance: str) -> None:
        """Starts the launcher of an instance."""
        await self._let_go(instance)
        launch = self._group.launch(instance)
        if not is_free(self._ports[instance]):  # another program took it meanwhile
            self._place.ports.give_back(self._ports[instance])
            self._ports[instance] = self._place.ports.take()
        child = await spawn(
            command(launch, self._ports[instance]),
            env={**self._place.env, **launch.env},
            say=lambda line: self._hooks.say(f"{instance}: {line}"),
        )
        self._children[instance] = child
        self._place.store.remember_session(child.session)
        self._watchers[instance] = asyncio.create_task(
            self._watch(instance, child), name=f"launcher of {instance}"
        )

    async def _watch(self, instance: str, child: Child) -> None:
        code = await child.wait()
        last = child.tail()[-1:] or (f"the launcher ended with code {code}",)
        self._hooks.gone(instance, last[0])

    async def _let_go(self, instance: str) -> None:
        """Frees what a child left, whether it runs or ended by itself."""
        watcher = self._watchers.pop(instance, None)
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        child = self._children.get(instance)
        if child is not None:
            await child.stop(STOP_GRACE_S)
            self._place.store.forget_session(child.pid)
            del self._children[instance]

    async def unload(self, instance: str) -> None:
        """Stops the launcher, and with it the engine."""
        await self._let_go(instance)

    async def stop(self) -> None:
        """Stops all launchers at once."""
        await asyncio.gather(*(self._let_go(instance) for instance in list(self._children)))
        self._place.ports.give_back(*self._ports.values())
        self._ports.clear()

    def upstream(self, instance: str) -> Upstream:
        """llama-server itself."""
        if instance not in self._ports:
            raise HostError(f"{instance} has no port: its group is not running")
        return Upstream(url=f"http://{HOST_ADDRESS}:{self._ports[instance]}")

    def port(self, instance: str) -> int | None:
        """The port of an instance's llama-server."""
        return self._ports.get(instance)
