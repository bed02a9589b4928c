"""What a person sees in Open WebUI while a model loads: with the plugin, and without it."""

import pytest

from tests.webui.browser import percents
from tests.webui.servers import wait_for

pytestmark = pytest.mark.timeout(2000)  # the first test may install Open WebUI


def test_the_bar_rises_in_a_new_chat_and_the_answer_follows(page, webui, pannier):
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
    assert answer.strip()
    assert answer.strip()[:20] in page.page.inner_text("#messages-container")
