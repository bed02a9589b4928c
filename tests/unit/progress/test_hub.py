"""The latest value, for readers that wait: latest wins, and nobody waits for nothing."""

import asyncio

import pytest

from pannier.progress.hub import Latest

PATIENCE = 5.0


async def test_a_reader_that_knows_the_version_waits_for_the_next():
    hub = Latest("a")
    waiting = asyncio.create_task(hub.newer(hub.version))
    await asyncio.sleep(0)
    assert not waiting.done()
    hub.publish("b")
    assert await asyncio.wait_for(waiting, PATIENCE) == "b"


async def test_a_reader_that_is_behind_gets_the_latest_at_once():
    hub = Latest("a")
    for value in "bcd":
        hub.publish(value)
    assert await asyncio.wait_for(hub.newer(0), PATIENCE) == "d"
    assert hub.version == 3


async def test_what_was_published_between_two_looks_is_not_lost():
    hub = Latest(0)
    version, value = hub.version, hub.value
    hub.publish(1)
    assert value == 0
    assert await asyncio.wait_for(hub.newer(version), PATIENCE) == 1


async def test_a_reader_that_is_cancelled_does_not_cancel_the_others():
    hub = Latest(0)
    readers = [asyncio.create_task(hub.newer(0)) for _ in range(3)]
    await asyncio.sleep(0)
    readers[1].cancel()
    await asyncio.gather(readers[1], return_exceptions=True)
    hub.publish(1)
    assert await asyncio.wait_for(asyncio.gather(readers[0], readers[2]), PATIENCE) == [1, 1]
    with pytest.raises(asyncio.CancelledError):
        readers[1].result()


async def test_a_reader_that_ran_out_of_time_can_come_back():
    hub = Latest(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await hub.newer(0)
    hub.publish(1)
    assert await asyncio.wait_for(hub.newer(0), PATIENCE) == 1


async def test_values_that_nobody_takes_do_not_pile_up():
    hub = Latest(bytearray(1))
    before = {name: type(value) for name, value in vars(hub).items()}
    waiting = asyncio.create_task(hub.newer(hub.version + 5000))
    for number in range(10_000):
        hub.publish(bytearray(number % 7))
    await asyncio.wait_for(waiting, PATIENCE)
    assert {name: type(value) for name, value in vars(hub).items()} == before
    assert not any(isinstance(value, list | dict | set) for value in vars(hub).values())


async def test_an_equal_value_is_news_too():
    hub = Latest("same")
    waiting = asyncio.create_task(hub.newer(0))
    await asyncio.sleep(0)
    hub.publish("same")
    assert await asyncio.wait_for(waiting, PATIENCE) == "same"
