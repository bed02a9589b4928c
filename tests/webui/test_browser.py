"""What a person sees in Open WebUI while a model loads: with the plugin, and without it."""

import re

import pytest
from tests.webui.browser import percents
from tests.webui.servers import wait_for

pytestmark = pytest.mark.timeout(2000)  # the first test may have to install Open WebUI


def loads(pannier):
    """How often the small model was loaded so far, by Pannier's log."""
    return len(re.findall(r"smollm2: loading$", pannier.log_file.read_text(), re.MULTILINE))


def test_the_bar_rises_in_a_new_chat_and_the_answer_follows(page, webui, pannier):
    before = loads(pannier)
    page.open("smollm2")
    page.send()
    lines = page.watch("%")
    page.picture("early")
    lines += page.watch(" left")
    page.page.wait_for_timeout(2500)
    page.picture("middle")
    lines += page.watch("smollm2 is ready after")
    answer = page.answer()
    page.picture("answer")

    shown = percents(lines)
    assert len(set(shown)) >= 3, lines
    assert shown == sorted(shown)
    # It is saved before it is painted.
    page.page.locator("#messages-container").get_by_text(answer.split()[0]).last.wait_for()
    history = webui.saved(page.chat)[-1]["statusHistory"]
    assert [each["done"] for each in history] == [False] * (len(history) - 1) + [True]
    assert len(history) <= 12, "each line is saved with the chat"
    # A new chat asks the cold model for a title first: both are one load.
    wait_for(lambda: webui.get(f"/api/v1/chats/{page.chat}")["title"] != "New Chat", what="title")
    assert loads(pannier) == before + 1

    page.send("And now?")
    page.page.wait_for_function("document.querySelectorAll('.chat-assistant').length == 2")
    page.answer()
    assert "statusHistory" not in webui.saved(page.chat)[-1], "a warm model shows nothing"


def test_stop_ends_the_wait_and_the_next_message_is_answered(page, webui):
    page.open("smollm2")
    page.send()
    page.watch("%")
    page.page.get_by_label("Stop").click()
    page.watch("Stopped waiting for smollm2", within=5)
    page.picture("stopped")

    saved = webui.saved(page.chat)[-1]
    assert saved["content"] == ""
    page.send("Are you there?")
    page.page.wait_for_function("document.querySelectorAll('.chat-assistant').length == 2")
    assert page.answer()


def test_a_model_that_cannot_be_loaded_says_why_in_the_chat(page, webui):
    page.open("broken")
    page.send()
    text = "ended with code 1 while it was loading"
    page.page.locator("#messages-container").get_by_text(text).first.wait_for()
    page.picture("failed")

    error = webui.saved(page.chat)[-1]["error"]["content"]
    assert text in error
    assert not set(error) & set("<>[]")


def test_a_workspace_model_behind_a_prefix_survives_a_reload_of_the_page(page, webui, pannier):
    before = loads(pannier)
    webui.connect(pannier.url, prefix_id="box")
    webui.make_workspace_model("helper", "box.smollm2")
    page.open("helper")
    page.send()
    first = percents(page.watch("%"))
    assert page.chat
    page.page.reload()
    page.page.wait_for_timeout(2000)
    page.picture("reloaded")
    lines = page.watch("smollm2 is ready after")

    assert max(percents(lines)) > max(first), lines
    assert page.answer()
    assert loads(pannier) == before + 1


def test_a_card_moves_and_is_gone_with_the_answer(page, webui):
    webui.valves(style="card")
    page.open("smollm2")
    page.send()
    frame = page.page.frame_locator("iframe").get_by_text("Loading smollm2")
    frame.wait_for()
    page.page.wait_for_timeout(4000)
    page.picture("middle")
    page.watch("smollm2 is ready after")
    assert page.answer()
    page.page.wait_for_function("document.querySelectorAll('iframe').length == 0")
    page.picture("answer")


def test_the_dot_says_what_is_loaded_and_eject_unloads_it(page, webui, pannier):
    page.open("smollm2")
    option = page.option("smollm2")
    assert option.locator(".bg-green-500").count() == 0

    webui.post("/openai/models/0/load", {"model": "smollm2"})
    page.open("smollm2")
    assert page.option("smollm2").locator(".bg-green-500").count() == 0, "it is still loading"
    wait_for(lambda: page.state("smollm2") == "ready", what="ready")

    page.open("smollm2")
    option = page.option("smollm2")
    assert option.locator(".bg-green-500").count() == 1
    assert page.option("broken").locator(".bg-green-500").count() == 0
    page.picture("loaded")
    option.hover()
    option.get_by_label("Eject model").click()
    wait_for(lambda: page.state("smollm2") == "cold", what="cold")
    page.open("smollm2")
    assert page.option("smollm2").locator(".bg-green-500").count() == 0


def test_without_the_plugin_the_connection_s_header_shows_the_load(page, webui, pannier):
    webui.switch(on=False)
    before = loads(pannier)
    page.open("smollm2")
    page.send()
    lines = page.watch("%")
    page.page.wait_for_timeout(3000)
    page.picture("middle")
    lines += page.watch("ready")
    assert page.answer()
    page.picture("answer")

    shown = percents(lines)
    assert len(set(shown)) >= 3, lines
    assert shown == sorted(shown)
    assert webui.saved(page.chat)[-1]["statusHistory"][-1]["done"] is True
    assert loads(pannier) == before + 1
