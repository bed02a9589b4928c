"""
title: Pannier load progress
author: the Pannier project
version: 0.1.0
license: MIT
required_open_webui_version: 0.12.0
description: Shows how far the load of a cold model is, in the chat that waits for it.

A filter. Before a message goes to a model that Pannier serves and that is not ready, it asks for
the load, follows it and shows it in the chat; then the message goes on, unchanged. Whatever goes
wrong with Pannier, the message goes on too; only a load that failed ends the chat, with the reason.
"""

import asyncio
import contextlib
import html
import json
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Literal
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel, Field

log = logging.getLogger("pannier_progress")

ANSWER_S = 2.0  # for one short answer of Pannier: a chat must not hang on a sidecar that does
TICK_S = 1.0  # between two looks while nothing is heard
SILENT_S = 30.0  # Pannier sends a keep-alive every 10 s: a stream this silent is dead
GONE_S = 10.0  # without any answer, and the message goes on
AGAIN_S = 5.0  # before a model that is cold again is asked for again
OLD_S = 3.0  # in which a failure may still be that of an earlier load
LEAST_PACE_S, MOST_PACE_S = 2.0, 10.0  # each line is saved with the chat: a long wait slows down
MOST_BYTES = 1 << 20  # of one event

WORDS = {
    "queued": "{model} waits for its turn",
    "making_room": "Making room for {model}: {other} leaves",
    "draining": "Waiting until {model} has stopped",
    "starting": "Starting {model}",
    "projector": "Loading the projector of {model}",
    "draft": "Loading the draft model of {model}",
    "warming_up": "Warming up {model}",
}
# What a page could take for a tag, a link or a placeholder becomes a lookalike.
PLAIN = str.maketrans({"<": "‹", ">": "›", "[": "(", "]": ")", "{": "(", "}": ")", "`": "'"})
CARD = """<style>body{margin:0;padding:4px;font:14px system-ui,sans-serif;color:#888}
div{height:8px;border-radius:4px;background:#8884;overflow:hidden;margin-top:6px}
i{display:block;height:100%;background:#3b82f6;animation:MOVE wander 2s linear LEFTs infinite}
@keyframes fill{from{width:FROM}to{width:95%}}
@keyframes wander{from{width:30%;margin-left:-30%}to{width:30%;margin-left:100%}}</style>
TEXT<div><i></i></div><script>parent.postMessage({type:"iframe:height",
height:Math.ceil(document.body.getBoundingClientRect().height)},"*")</script>"""

Emit = Callable[[dict[str, Any]], Awaitable[None]]
Row = dict[str, Any]  # what Pannier says of a model: a row of its /v1/readiness


class LoadFailedError(Exception):
    """The model cannot be loaded; the text is Pannier's reason."""


class Filter:
    """What Open WebUI makes once, and calls for every message of every chat."""

    class Valves(BaseModel):
        """What an admin can set."""

        priority: int = Field(default=0, description="Lower comes first.")
        base_url: str = Field(default="", description="Empty: that of the model's connection.")
        api_key: str = Field(default="", json_schema_extra={"input": {"type": "password"}})
        style: Literal["line", "card"] = Field(default="line", description="Text, or a moving bar.")
        min_seconds: float = Field(default=0.7, ge=0, description="Shorter loads show nothing.")
        max_wait: float = Field(default=600, gt=0, description="Seconds; then it is sent anyway.")
        keep_final_line: bool = Field(default=True, description="Keep the last line.")

    valves = Valves()

    async def inlet(
        self,
        body: dict[str, Any],
        __event_emitter__: Emit | None = None,
        __metadata__: dict[str, Any] | None = None,
        __model__: dict[str, Any] | None = None,
        __request__: Any = None,
    ) -> dict[str, Any]:
        """Waits for the model and returns the body as it came."""
        valves = self.valves  # another chat may replace it while this one waits
        chat = __metadata__ or {}
        seen = chat.get("chat_id") and chat.get("session_id") and not chat.get("direct")
        if __event_emitter__ is None or not seen:
            return body
        try:
            sidecar = await find_sidecar(valves, __model__ or {}, __request__)
            if sidecar is not None:
                display = Display(__event_emitter__, valves, sidecar.model)
                await wait_until_ready(sidecar, display, valves.max_wait)
        except LoadFailedError:
            raise
        except Exception as error:
            log.warning("no progress, the message goes on: %s: %s", type(error).__name__, error)
        return body


async def find_sidecar(valves: Filter.Valves, model: Any, request: Any) -> "Sidecar | None":
    """The Pannier that serves a model of Open WebUI; None for the models of others."""
    if "pannier" not in model and request is not None:
        # A workspace model has nothing of the connection but the id of the model below it.
        base = (model.get("info") or {}).get("base_model_id")
        model = (request.app.state.OPENAI_MODELS.get(base) if base else None) or {}
    if "pannier" not in model:
        return None
    url, key, headers = valves.base_url, valves.api_key, {}
    if not url:
        from open_webui.models.config import Config  # type: ignore[import-not-found]  # its own

        index = int(model["urlIdx"])
        url = (await Config.get("openai.api_base_urls"))[index]
        config = (await Config.get("openai.api_configs") or {}).get(str(index)) or {}
        extra = (config.get("headers") or {}).items()
        # Open WebUI fills templates in for its own requests alone.
        headers = {name: str(text) for name, text in extra if "{{" not in str(text)}
        keys = await Config.get("openai.api_keys") or []
        if not key and index < len(keys) and config.get("auth_type") in (None, "", "bearer"):
            key = keys[index]
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return Sidecar(url.strip().rstrip("/").removesuffix("/v1"), headers, model["pannier"]["model"])


async def wait_until_ready(sidecar: "Sidecar", display: "Display", max_wait: float) -> None:
    """Asks for the load and shows it; raises LoadFailedError, or what made that impossible."""
    last = "Lost sight of {model}; sending the message anyway"
    began = asked = time.monotonic()
    try:
        async with sidecar.session, contextlib.aclosing(sidecar.rows()) as rows:
            first = await anext(rows)
            if first["state"] == "ready":
                return
            # Nobody else asks: the message that would start the load is what waits here.
            await sidecar.ask()
            async for row in rows:
                now = time.monotonic()
                if row["state"] == "ready":
                    last = f"{{model}} is ready after {in_words(now - began)}"
                    return
                error = row.get("error") or {}  # also of one that has no place or file any more
                if (error or row["state"] == "failed") and (row != first or now - began > OLD_S):
                    parts = [error[x] for x in ("message", "detail", "hint") if error.get(x)]
                    raise LoadFailedError(plain("; ".join(parts) or "the load failed", 600))
                if now - began > max_wait:
                    last = "{model} still loads; sending the message anyway"
                    return
                if row["state"] == "cold" and now - asked > AGAIN_S:
                    asked = now
                    await sidecar.ask()
                await display.show(row, now - began)
    except asyncio.CancelledError:
        last = "Stopped waiting for {model}"
        raise
    except LoadFailedError:
        last = "{model} could not be loaded"
        raise
    finally:
        await display.end(last)


class Sidecar:
    """Pannier, as the chats of one model see it. Its session is the caller's to close."""

    def __init__(self, root: str, headers: dict[str, str], model: str) -> None:
        self.root, self.model = root, model
        # Through the same proxy as Open WebUI itself, if there is one; each call has its own limit.
        forever = aiohttp.ClientTimeout()
        self.session = aiohttp.ClientSession(headers=headers, trust_env=True, timeout=forever)

    async def ask(self) -> None:
        """Asks for the load, which goes on after the answer."""
        await self._call("POST", "/models/load", json={"model": self.model})

    async def rows(self) -> AsyncGenerator[Row, None]:
        """The row now, after each change and every second: by events, by asking where they end."""
        path, url = f"/v1/readiness/{quote(self.model)}", f"{self.root}/v1/readiness/events"
        yield (row := await self._call("GET", path))
        heard, rest = time.monotonic(), b""
        with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
            async with asyncio.timeout(ANSWER_S):
                stream = await self.session.get(url, raise_for_status=True, allow_redirects=False)
            async with stream:
                news = stream.content
                while time.monotonic() - heard < SILENT_S and not news.at_eof():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(TICK_S):
                            rest += await news.readany()
                        heard = time.monotonic()
                    *lines, rest = rest[-MOST_BYTES:].split(b"\n")
                    for found in (json.loads(x[5:]) for x in lines if x.startswith(b"data:")):
                        every = found.get("data", [found])  # the whole list, or one row
                        row = next((each for each in every if each["id"] == self.model), row)
                    yield row
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):  # Pannier may be restarting
                row, heard = await self._call("GET", path), time.monotonic()
            if time.monotonic() - heard > GONE_S:
                raise TimeoutError("Pannier is gone")
            yield row
            await asyncio.sleep(TICK_S)

    async def _call(self, method: str, path: str, **more: Any) -> Any:
        more |= {"timeout": aiohttp.ClientTimeout(total=ANSWER_S), "allow_redirects": False}
        async with self.session.request(method, self.root + path, **more) as reply:
            found = json.loads(await reply.read())
        if reply.status == 503 and method == "POST":
            raise LoadFailedError(plain(found["error"]["message"], 600))
        if reply.status != 200:
            raise ValueError(f"{self.root}{path} was answered with {reply.status}")
        return found


class Display:
    """One load in one chat: a line now and then or a card for each stage, and one last line."""

    def __init__(self, emit: Emit, valves: Filter.Valves, model: str) -> None:
        self._emit, self._valves, self._model = emit, valves, plain(model, 40)
        self._card = valves.style == "card"
        self._stage, self._text, self._at = "", "", -math.inf

    async def show(self, row: Row, waited: float) -> None:
        """Shows the row, unless it is too early, too soon after the last, or nothing new."""
        fraction, left = number(row, "fraction"), number(row, "eta_s") if self._card else None
        stage = f"{row['state']} {row.get('stage')} {row.get('making_room')} {left is None}"
        pace = max(LEAST_PACE_S, min(MOST_PACE_S, waited / 10))
        soon = stage == self._stage and (self._card or time.monotonic() - self._at < pace)
        text = line(row, self._model, waited)
        if waited < self._valves.min_seconds or soon or text == self._text:
            return
        self._stage, self._text, self._at = stage, text, time.monotonic()
        if not self._card:
            await self._send("status", description=text, done=False, action="model_load")
            return
        words = html.escape(text.partition(" ▰")[0].partition(" ▱")[0].partition(" · ")[0])
        page = CARD.replace("MOVE", "" if left is None else f"fill {left:.1f}s linear,")
        page = page.replace("LEFT", f"{left or 0:.1f}").replace("FROM", f"{fraction or 0:.0%}")
        await self._send("embeds", embeds=[page.replace("TEXT", words)], replace=True)

    async def end(self, last: str) -> None:
        """Ends what is shown, if anything is: a line without an end would shimmer for ever."""
        keep = self._valves.keep_final_line
        if self._stage and self._card:
            await self._send("embeds", embeds=[], replace=True)
        if self._stage and (keep or not self._card):
            status = {"done": True, "action": "model_load", "hidden": not keep}
            await self._send("status", description=last.format(model=self._model), **status)

    async def _send(self, kind: str, **event: Any) -> None:
        try:
            await self._emit({"type": kind, "data": event})
        except Exception as error:  # what cannot be shown must not keep the message
            log.warning("a line was not shown: %s", error)


def line(row: Row, model: str, waited: float) -> str:
    """A row as one line of text."""
    words = WORDS.get(row.get("stage") or row["state"], "Loading {model}")
    words = words.format(model=model, other=plain(row.get("making_room") or "another model", 40))
    fraction, left = number(row, "fraction"), number(row, "eta_s")
    if fraction is None:
        return f"{words} · {in_words(waited)}"
    full = min(99, int(fraction * 100))
    about = "about " if row.get("source") == "history" else ""
    parts = [f"{words} {'▰' * (full // 10)}{'▱' * (10 - full // 10)} {about}{full}%"]
    done, total = number(row, "bytes_done"), number(row, "bytes_total")
    if done is not None and total and row.get("stage") != "warming_up":
        size, unit, digits = (1e9, "GB", 1) if total >= 1e9 else (1e6, "MB", 0)
        parts.append(f"{done / size:.{digits}f}/{total / size:.{digits}f} {unit}")
    if row.get("stalled") or left is not None:
        parts.append("nothing moves" if row.get("stalled") else f"{in_words(left or 0)} left")
    return " · ".join(parts)


def number(row: Row, name: str) -> float | None:
    """A number of a row, if it is one that can be shown."""
    found: Any = row.get(name)
    return float(found) if type(found) in (int, float) and 0 <= found < math.inf else None


def plain(text: object, longest: int) -> str:
    """Foreign text as one short line that no page takes for more than text."""
    words = " ".join(str(text).translate(PLAIN).replace("://", ": //").split())
    shown = "".join(letter for letter in words if letter.isprintable())
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def in_words(seconds: float) -> str:
    """Seconds as a person says them."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
