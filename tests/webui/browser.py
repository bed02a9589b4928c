"""A chat in a page of Open WebUI, as a person uses it."""

import re
import time
from pathlib import Path
from typing import Any

from tests.webui.servers import OpenWebUi, wait_for

STATUS = ".status-description"


class Page:
    """One page, and what a test looks at in it."""

    def __init__(self, browser: Any, webui: OpenWebUi, pictures: Path) -> None:
        self._webui = webui
        self._pictures = pictures
        self._context = browser.new_context(viewport={"width": 1100, "height": 700})
        self.page = self._context.new_page()
        self.page.set_default_timeout(40_000)

    def close(self) -> None:
        self._context.close()

    def state(self, model: str) -> str:
        """The state of a model, as Open WebUI was told it."""
        row = next(each for each in self._webui.models() if each["id"] == model)
        return str(row["pannier"]["state"])

    def unload(self, model: str) -> None:
        """Makes a model cold and waits until it is."""

        def cold() -> bool:
            return self.state(model) in ("cold", "failed")

        if not cold():
            self._webui.post("/api/models/unload", {"model": model})
            wait_for(cold, what=f"{model} is cold")

    def option(self, model: str) -> Any:
        """The row of a model in the list to choose from."""
        option = self.page.locator(f"#model-selector-list [data-value={model}]")
        if not option.count():
            self.page.click("#model-selector-model-button")
            option.wait_for()
        return option

    def open(self, model: str) -> None:
        """A new chat with this model."""
        self.page.goto(f"{self._webui.url}/?models={model}")
        self.page.wait_for_selector("#chat-input")

    def send(self, text: str = "Say hello.") -> None:
        self.page.click("#chat-input")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def picture(self, name: str) -> None:
        self.page.screenshot(path=f"{self._pictures}-{name}.png")

    @property
    def chat(self) -> str:
        """The id of the chat, once it has one."""
        self.page.wait_for_url(re.compile(r"/c/[0-9a-f-]+"))
        return str(self.page.url.rsplit("/", 1)[1])

    def line(self) -> str:
        """The status line as it stands now; empty when there is none."""
        shown = self.page.locator(STATUS)
        return str(shown.last.inner_text()) if shown.count() else ""

    def watch(self, until: str, within: float = 60.0) -> list[str]:
        """Every line that the page shows, until one holds these words."""
        seen: list[str] = []
        end = time.monotonic() + within
        while not (seen and until in seen[-1]):
            assert time.monotonic() < end, f"{until!r} did not come: {seen}"
            text = " ".join(self.line().split())
            if text and (not seen or seen[-1] != text):
                seen.append(text)
            self.page.wait_for_timeout(50)
        return seen

    def answer(self) -> str:
        """The text of the last answer, when it is whole."""

        def whole() -> str:
            last = self._webui.saved(self.chat)[-1]
            return str(last["content"]) if last.get("done") else ""

        return str(wait_for(whole, 60, "an answer"))


def percents(lines: list[str]) -> list[int]:
    """The numbers of the bars in these lines."""
    return [int(found[1]) for line in lines if (found := re.search(r"(\d+) ?%", line))]
