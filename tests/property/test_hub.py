"""In whatever order readers come and values are published: no wake-up is lost, none goes back."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from pannier.progress.hub import Latest

ACTIONS = st.lists(
    st.sampled_from(["publish", "publish", "read", "cancel", "turn", "turn"]), max_size=40
)


async def follow(hub: Latest[int], last: int, seen: list[int]) -> None:
    """A reader as the event streams are: it takes the latest until it has seen the last."""
    version = -1
    while not seen or seen[-1] != last:
        value = await hub.newer(version)
        version = hub.version
        seen.append(value)


async def play(actions: list[str]) -> None:
    last = actions.count("publish")
    hub = Latest(0)
    readers: list[tuple[asyncio.Task[None], list[int]]] = []
    cancelled = []
    for action in actions:
        if action == "publish":
            hub.publish(hub.value + 1)
        elif action == "read":
            seen: list[int] = []
            readers.append((asyncio.create_task(follow(hub, last, seen)), seen))
        elif action == "cancel" and readers:
            cancelled.append(readers.pop(0)[0])
            cancelled[-1].cancel()
        else:
            await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await asyncio.gather(*(task for task, _ in readers))
        await asyncio.gather(*cancelled, return_exceptions=True)
    for _, seen in readers:
        assert seen[-1] == last
        assert seen == sorted(set(seen)), "a reader saw a value twice, or an older one later"


@settings(deadline=None)
@given(ACTIONS)
async def test_every_reader_sees_the_last_value_and_never_an_older_one_after_it(actions):
    await play(actions)
