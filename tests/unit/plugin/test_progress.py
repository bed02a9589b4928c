"""What a chat sees of a load, from the first line to the last."""

import asyncio
import itertools

import pytest
from tests.unit.plugin.stand_in import NAME, Chat, a_row, until

GB = 10**9


async def test_a_ready_model_shows_nothing_and_is_not_asked_for(chat, sidecar):
    sidecar.now("ready")

    body = await chat.send()

    assert body is chat.body
    assert chat.events == []
    assert sidecar.paths == ["GET /v1/readiness/qwen3"]


async def test_a_cold_model_is_asked_for_and_followed_until_it_is_ready(chat, sidecar):
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting qwen3")
    sidecar.now(
        "loading", stage="weights", fraction=0.42, bytes_done=9.3 * GB, bytes_total=22.1 * GB,
        eta_s=14.2, source="engine",
    )  # fmt: skip
    line = await chat.shows("42%")
    sidecar.now("loading", stage="warming_up", fraction=0.95, bytes_done=2, bytes_total=2, eta_s=1)
    warm = await chat.shows("Warming up")
    sidecar.now("ready")
    body = await chat.end()

    assert line == "Loading qwen3 ▰▰▰▰▱▱▱▱▱▱ 42% · 9.3/22.1 GB · 14 s left"
    assert warm == "Warming up qwen3 ▰▰▰▰▰▰▰▰▰▱ 95% · 1 s left"
    assert body is chat.body
    assert sidecar.asked == [NAME]
    assert chat.last == {
        "description": "qwen3 is ready after 0 s", "done": True, "action": "model_load",
        "hidden": False,
    }  # fmt: skip
    assert [each["data"]["done"] for each in chat.events[:-1]] == [False] * (len(chat.events) - 1)
    assert {each["type"] for each in chat.events} == {"status"}


async def test_the_line_is_short_enough_for_the_page(chat, sidecar):
    chat.start()
    await sidecar.streaming()
    sidecar.now(
        "loading", stage="weights", fraction=1.0, bytes_done=999 * GB, bytes_total=999 * GB,
        eta_s=3000, source="engine",
    )  # fmt: skip
    line = await chat.shows("%")
    sidecar.now("ready")
    await chat.end()

    assert line == "Loading qwen3 ▰▰▰▰▰▰▰▰▰▱ 99% · 999.0/999.0 GB · 50 min left"
    assert len(line) < 70


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"state": "queued", "stage": "queued"}, "qwen3 waits for its turn · 0 s"),
        (
            {"state": "queued", "stage": "making_room", "making_room": "llama-70b"},
            "Making room for qwen3: llama-70b leaves · 0 s",
        ),
        ({"state": "queued", "stage": "making_room"}, "for qwen3: another model leaves"),
        ({"state": "draining"}, "Waiting until qwen3 has stopped · 0 s"),
        ({"state": "loading", "stage": "starting"}, "Starting qwen3 · 0 s"),
        ({"state": "loading", "stage": "weights"}, "Loading qwen3 · 0 s"),
        ({"state": "loading", "stage": "projector"}, "Loading the projector of qwen3 · 0 s"),
        ({"state": "loading", "stage": "draft"}, "Loading the draft model of qwen3 · 0 s"),
        ({"state": "loading", "stage": "a stage of tomorrow"}, "Loading qwen3 · 0 s"),
        ({"state": "loading", "stage": None}, "Loading qwen3 · 0 s"),
        (
            {"state": "loading", "stage": "weights", "fraction": 0.5, "source": "history"},
            "Loading qwen3 ▰▰▰▰▰▱▱▱▱▱ about 50%",
        ),
        (
            {"state": "loading", "stage": "weights", "fraction": 0.4, "stalled": True, "eta_s": 9},
            "Loading qwen3 ▰▰▰▰▱▱▱▱▱▱ 40% · nothing moves",
        ),
        (
            {
                "state": "loading", "stage": "weights", "fraction": 0.0,
                "bytes_done": 0, "bytes_total": 92e6,
            },
            "Loading qwen3 ▱▱▱▱▱▱▱▱▱▱ 0% · 0/92 MB",
        ),
    ],
)  # fmt: skip
async def test_each_stage_has_its_words(chat, sidecar, row, words):
    chat.start()
    await sidecar.streaming()
    sidecar.now(**row)
    await chat.shows(words)
    sidecar.now("ready")
    await chat.end()


@pytest.mark.parametrize("bad", [-1, True, "0.5", float("nan"), float("inf"), [], {}])
async def test_a_fraction_that_is_no_number_is_no_fraction(chat, sidecar, bad):
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="weights", fraction=bad)
    await chat.shows("Loading qwen3 · 0 s")
    sidecar.now("ready")
    await chat.end()


async def test_a_load_shorter_than_min_seconds_shows_nothing(chat, sidecar, plugin):
    chat.function.valves = plugin.Filter.Valves(min_seconds=5)
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    sidecar.now("loading", stage="weights", fraction=0.5)
    await asyncio.sleep(0.1)
    sidecar.now("ready")
    await chat.end()

    assert chat.events == []


async def test_a_load_that_says_nothing_is_shown_when_min_seconds_are_over(chat, sidecar, plugin):
    chat.function.valves = plugin.Filter.Valves(min_seconds=0.15)
    chat.start()
    began = asyncio.get_running_loop().time()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting")
    sidecar.now("ready")
    await chat.end()

    assert chat.times[0] - began >= 0.15


async def test_lines_keep_their_pace_while_the_stage_stays(chat, sidecar, plugin, monkeypatch):
    monkeypatch.setattr(plugin, "LEAST_PACE_S", 0.2)
    chat.start()
    await sidecar.streaming()
    for step in range(60):
        sidecar.now("loading", stage="weights", fraction=step / 100)
        await asyncio.sleep(0.01)
    sidecar.now("ready")
    await chat.end()

    weights = [
        time for time, line in zip(chat.times, chat.lines, strict=True) if "%" in line
    ]  # fmt: skip
    assert len(weights) >= 2
    assert all(b - a >= 0.19 for a, b in itertools.pairwise(weights))


async def test_a_new_stage_is_shown_at_once(chat, sidecar, plugin, monkeypatch):
    monkeypatch.setattr(plugin, "LEAST_PACE_S", 60.0)
    chat.start()
    await sidecar.streaming()
    sidecar.now("queued", stage="making_room", making_room="a")
    await chat.shows("a leaves")
    sidecar.now("queued", stage="making_room", making_room="b")
    await chat.shows("b leaves")
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting")
    sidecar.now("ready")
    await chat.end()


async def test_the_same_line_is_not_sent_twice(chat, sidecar):
    chat.start()
    await sidecar.streaming()
    for _ in range(5):
        sidecar.now("loading", stage="weights", fraction=0.3)
    await chat.shows("30%")
    await asyncio.sleep(0.1)
    sidecar.now("ready")
    await chat.end()

    assert len([line for line in chat.lines if "30%" in line]) == 1


async def test_without_keep_final_line_the_last_line_hides_all(chat, sidecar, plugin):
    chat.function.valves = plugin.Filter.Valves(min_seconds=0, keep_final_line=False)
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting")
    sidecar.now("ready")
    await chat.end()

    assert chat.last["hidden"] is True
    assert chat.last["done"] is True


async def test_a_model_that_went_cold_again_is_asked_for_again(chat, sidecar):
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting")
    sidecar.now("cold")
    await until(lambda: len(sidecar.asked) == 2)
    sidecar.now("ready")
    await chat.end()

    assert sidecar.asked == [NAME, NAME]


async def test_two_chats_keep_their_own_valves_while_an_admin_changes_them(
    function, plugin, sidecar, chat
):
    slow = Chat(function, {**chat.model, "pannier": {"model": "other"}})
    sidecar.rows["other"] = a_row("other")
    function.valves = plugin.Filter.Valves(min_seconds=0, style="card")
    slow.start()
    await sidecar.streaming(1)
    function.valves = plugin.Filter.Valves(min_seconds=0, style="line", keep_final_line=False)
    chat.start()
    await sidecar.streaming(2)
    function.valves = plugin.Filter.Valves(base_url="http://127.0.0.1:9", api_key="wrong")
    sidecar.now("loading", "other", stage="starting")
    sidecar.now("loading", stage="weights", fraction=0.2)
    await chat.shows("Loading qwen3 ▰▰▱▱▱▱▱▱▱▱ 20%")
    sidecar.now("ready")
    await chat.end()
    sidecar.now("ready", "other")
    await slow.end()

    assert chat.last["hidden"] is True
    assert chat.cards == []
    assert [bool(card) for card in slow.cards][-2:] == [True, False]
    assert slow.lines == ["other is ready after 0 s"]
    assert not any("other" in line for line in chat.lines)


@pytest.mark.parametrize(("waited", "pace"), [(1, 2), (15, 2), (50, 5), (90, 9), (500, 10)])
async def test_a_long_wait_slows_the_lines_down_but_not_for_ever(plugin, monkeypatch, waited, pace):
    monkeypatch.setattr(plugin, "LEAST_PACE_S", 2.0)
    monkeypatch.setattr(plugin, "MOST_PACE_S", 10.0)
    clock = [1000.0]
    monkeypatch.setattr(plugin.time, "monotonic", lambda: clock[0])
    sent = []

    async def emit(event):
        sent.append(event)

    display = plugin.Display(emit, plugin.Filter.Valves(min_seconds=0), NAME)
    for fraction, later in ((0.1, 0), (0.2, pace - 0.1), (0.3, pace + 0.1)):
        clock[0] = 1000.0 + later
        await display.show(a_row(state="loading", stage="weights", fraction=fraction), waited)

    assert [each["data"]["description"][-3:] for each in sent] == ["10%", "30%"]
