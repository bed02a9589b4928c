"""Nothing that Pannier or a model's name says becomes more than text; and the card."""

import pytest
from tests.unit.plugin.stand_in import a_row, until

EVIL = "<img src=x onerror=alert(1)>[a](http://evil.example) {{count}} `x`\n\x1b[31m\u202e\"&'"


async def test_foreign_text_in_a_line_is_plain_and_short(chat, sidecar):
    chat.start()
    await sidecar.streaming()
    sidecar.now("queued", stage="making_room", making_room=EVIL * 9)
    line = await chat.shows("Making room")
    sidecar.now("ready")
    await chat.end()

    assert not set(line) & set("<>[]{}`\n\x1b\u202e")
    assert "://" not in line
    assert len(line) < 120


async def test_the_reason_of_a_failure_is_plain_and_short(chat, sidecar, plugin):
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading")
    sidecar.now("failed", error={"message": EVIL * 99, "detail": EVIL, "hint": EVIL})

    with pytest.raises(plugin.LoadFailedError) as raised:
        await chat.end()
    text = str(raised.value)
    assert not set(text) & set("<>[]{}`\n\x1b\u202e")
    assert "://" not in text
    assert len(text) <= 600


async def test_a_name_of_a_model_is_plain_everywhere(chat, sidecar, plugin):
    name = "<img src=x onerror=alert(1)>{{x}}[a](b)"
    chat.model["pannier"] = {"model": name}
    sidecar.rows[name] = a_row(name)
    chat.function.valves = plugin.Filter.Valves(min_seconds=0, style="card")
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", name, stage="starting")
    html = await a_card(chat, "Starting")
    sidecar.now("ready", name)
    await chat.end()

    assert not set("".join(chat.lines)) & set("<>[]{}`\n")
    assert "<img" not in html
    assert "Starting ‹img src=x onerror=alert(1)›" in html


async def a_card(chat, words):
    """Waits for a card with these words."""

    def found():
        return [html for card in chat.cards for html in card if words in html]

    return (await until(found))[-1]


@pytest.fixture
def card(chat, plugin):
    chat.function.valves = plugin.Filter.Valves(min_seconds=0, style="card")
    return chat


async def test_a_card_comes_once_for_each_stage_and_is_taken_away(card, sidecar):
    card.start()
    await sidecar.streaming()
    for step in range(5):
        sidecar.now("loading", stage="starting", elapsed_s=step)
    await a_card(card, "Starting")
    before = len(card.cards)
    for step in range(1, 9):
        sidecar.now("loading", stage="weights", fraction=step / 10, eta_s=10 - step)
    await a_card(card, "fill ")
    sidecar.now("ready")
    await card.end()

    stages = [each["data"] for each in card.events if each["type"] == "embeds"]
    assert len(stages) == before + 2
    assert all(each["replace"] is True for each in stages)
    assert stages[-1]["embeds"] == []
    assert card.lines == ["qwen3 is ready after 0 s"]
    assert card.last["done"] is True


async def test_a_card_moves_from_where_the_load_is_for_as_long_as_is_left(card, sidecar):
    sidecar.on_ask = lambda: sidecar.now("loading", stage="weights", fraction=0.25, eta_s=12.5)
    card.start()
    html = await a_card(card, "fill 12.5s")
    sidecar.now("ready")
    await card.end()

    assert "animation:fill 12.5s linear, wander 2s linear 12.5s infinite" in html
    assert "from{width:25%}" in html
    assert "Loading qwen3<div>" in html


async def test_a_card_of_a_stage_without_a_number_wanders(card, sidecar):
    card.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    html = await a_card(card, "Starting")
    sidecar.now("ready")
    await card.end()

    assert "animation: wander 2s linear 0.0s infinite" in html


async def test_a_card_escapes_what_is_left_of_a_name(card, sidecar):
    card.start()
    await sidecar.streaming()
    sidecar.now("queued", stage="making_room", making_room="a & \"b\" <c> 'd'")
    html = await a_card(card, "leaves")
    sidecar.now("ready")
    await card.end()

    assert "a &amp; &quot;b&quot; ‹c› &#x27;d&#x27; leaves" in html


async def test_a_card_without_a_kept_line_leaves_nothing(card, sidecar, plugin):
    card.function.valves = plugin.Filter.Valves(min_seconds=0, style="card", keep_final_line=False)
    card.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await a_card(card, "Starting")
    sidecar.now("ready")
    await card.end()

    assert card.lines == []
    assert card.cards[-1] == []
