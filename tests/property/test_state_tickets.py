"""Requests come, leave and end in any moment: an owner's books are right to the last one."""

import asyncio
import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.host import Machine
from tests.fakes.owned import Owned, owning

from pannier.errors import LoadError

calm = settings(deadline=None, max_examples=120)

CLIENT = st.integers(0, 5)
ACT = st.one_of(
    st.tuples(st.just("ask"), CLIENT),
    st.tuples(st.just("leave"), CLIENT),
    st.tuples(st.just("end"), CLIENT),
    st.tuples(st.just("tick"), st.integers(1, 8)),
    st.tuples(st.sampled_from(["ready", "crash", "unload", "dies"]), st.just(0)),
)


class Clients:
    """Clients that hold an instance until they are told to end, or are cut off."""

    def __init__(self, owned: Owned) -> None:
        self.owned = owned
        self.tasks: dict[int, list[asyncio.Task[None]]] = {}
        self.ends: dict[asyncio.Task[None], asyncio.Event] = {}

    def ask(self, number: int) -> None:
        end = asyncio.Event()
        task = asyncio.create_task(self._serve(end))
        self.tasks.setdefault(number, []).append(task)
        self.ends[task] = end

    async def _serve(self, end: asyncio.Event) -> None:
        with contextlib.suppress(LoadError):
            ticket = await self.owned.owner.acquire("a")
            try:
                await end.wait()
            finally:
                self.owned.owner.release(ticket)

    def leave(self, number: int) -> None:
        for task in self.tasks.get(number, []):
            task.cancel()

    def end(self, number: int) -> None:
        for task in self.tasks.get(number, []):
            self.ends[task].set()

    async def all_leave(self) -> None:
        for number in self.tasks:
            self.leave(number)
        await asyncio.gather(*self.ends, return_exceptions=True)


async def live(acts: list[tuple[str, int]]) -> None:
    machine = Machine()
    machine.start_s = machine.stop_s = machine.unload_s = 0.0
    machine.load_s = None
    async with owning(machine) as start:
        owned = start()
        clients = Clients(owned)
        for act, number in acts:
            await act_out(act, number, owned, clients)
            waiting, inflight = owned.counts()
            assert waiting >= 0
            assert inflight <= len(clients.ends)
        await clients.all_leave()
        await owned.settled()
        assert owned.counts() == (0, 0)
        assert not owned.task.done()


async def act_out(act: str, number: int, owned: Owned, clients: Clients) -> None:
    machine = owned.machine
    running = bool(machine.hosts) and "a" in machine.host.engines
    match act:
        case "ask":
            clients.ask(number)
        case "leave":
            clients.leave(number)
        case "end":
            clients.end(number)
        case "tick":
            for _ in range(number):
                await asyncio.sleep(0)
        case "ready" if running:
            machine.host.ready("a")
        case "crash" if running:
            machine.host.crash("a")
        case "unload":
            owned.owner.unload("a")
        case "dies" if running:
            machine.host.dies()


@calm
@given(st.lists(ACT, max_size=40))
def test_whenever_a_client_leaves_it_is_counted_out_exactly_once(acts):
    asyncio.run(live([("tick", 8), *acts]))


@calm
@given(st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_a_client_that_leaves_around_the_moment_of_the_grant_is_counted_out(before, after, first):
    grant, leave = ("ready", 0), ("leave", 0)
    both = [leave, grant] if first else [grant, leave]
    ask = [("tick", 8), ("ask", 1), ("ask", 0), ("tick", before or 1)]
    asyncio.run(live([*ask, both[0], *([("tick", after)] if after else []), both[1]]))
