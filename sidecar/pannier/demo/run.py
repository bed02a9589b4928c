"""The demo from start to end: engines, model, config, serve, the load, and what to try.

Every step says what it does and how long it took. `once` is the same without a person: it asks the
model one question and makes one embedding, prints both, and stops everything.

Must not: use anything that a user's own config could not; it is `serve` with a config written for
it.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from pannier.demo.files import fetch_model, write_folder
from pannier.demo.show import Bars
from pannier.engine.install import install
from pannier.engine.locate import Configured
from pannier.engine.report import Printer
from pannier.errors import PannierError
from pannier.serve.rows import rows
from pannier.service import Options, Service, running

_FIRST_PORT = 8484
_QUESTION = "Why is the sky blue? Answer in one sentence."

_TRY = """
Try it, in another terminal:

  curl http://{address}/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{{"model": "smollm2", "messages": [{{"role": "user", "content": "Hello!"}}]}}'

  {python} -c 'import openai; print(openai.OpenAI(base_url="http://{address}/v1", api_key="-").\
chat.completions.create(model="smollm2", messages=[{{"role": "user", "content": "Hello!"}}])\
.choices[0].message.content)'

Edit {config} while this runs, and watch: only what you change restarts.
How far everything is: http://{address}/v1/readiness        Ctrl-C stops everything.
"""


async def demo(folder: Path, *, host: str, once: bool) -> int:
    """Runs the demo in `folder`; returns the exit code."""
    printer = Printer()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()

    def end() -> None:
        # Before the service runs there is nothing to drain: the step in progress is cancelled.
        if not stop.is_set() and this is not None:
            stop.set()
            this.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    seconds: dict[str, float] = {}
    try:
        return await _steps(folder, host, once, printer, seconds)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        printer.say("stopped; nothing is left running")
        return 0 if "load" in seconds else 130


async def _steps(
    folder: Path, host: str, once: bool, printer: Printer, seconds: dict[str, float]
) -> int:
    began = time.monotonic()

    def took(step: str) -> None:
        nonlocal began
        seconds[step] = time.monotonic() - began
        began = time.monotonic()

    want = ("llama-server",) if host == "direct" else ("llama-server", "llama-swap")
    await install(want=want, say=printer.say, show=printer.show, configured=Configured())
    took("engine")
    model = await fetch_model(printer.say)
    config = write_folder(folder, model, host=host, listen=f"127.0.0.1:{_free_port()}")
    took("model")
    options = Options(config=config, state=folder / ".state", drain_s=5.0)
    async with running(options) as service:
        snapshot = service.snapshots.value
        kind = "llama-swap" if snapshot.host == "llama-swap" else "Pannier's own host (direct)"
        printer.say(f"{kind} runs the models of {config}; loading them:")
        took("start")
        with _quiet_log():
            await _loaded(service)
        took("load")
        if once:
            await _ask(service, printer)
            took("answers")
        else:
            print(_TRY.format(address=service.address, config=config, python=sys.executable))
            await asyncio.Event().wait()
    took("stop")
    parts = ", ".join(f"{step} {value:.1f} s" for step, value in seconds.items())
    print(f"seconds: {parts}")
    return 0


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """The bars say the same, and a log line between them would break them."""
    log = logging.getLogger("pannier")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


async def _loaded(service: Service) -> None:
    """Draws the loads until all models are ready. Raises PannierError for one that fails."""
    bars = Bars(sys.stderr)
    loop = asyncio.get_running_loop()
    version = -1
    while True:
        snapshot = await service.snapshots.newer(version)
        version = service.snapshots.version
        shown = rows(snapshot, loop.time())
        bars.draw(shown)
        for row in shown:
            if row.error is not None:
                raise PannierError(f"{row.id}: {row.error.text()}", code=row.error.code)
        if all(row.state == "ready" for row in shown):
            return


async def _ask(service: Service, printer: Printer) -> None:
    """One question and one embedding over HTTP, as any client would."""
    base = f"http://{service.address}"
    async with aiohttp.ClientSession(base) as session:
        question = {"role": "user", "content": _QUESTION}
        chat = {"model": "smollm2", "messages": [question], "max_tokens": 60, "temperature": 0}
        answer = await _post(session, "/v1/chat/completions", chat)
        text = answer["choices"][0]["message"]["content"].strip()
        printer.say(f"question: {_QUESTION}")
        print(f"answer: {text}", flush=True)
        made = await _post(
            session, "/v1/embeddings", {"model": "smollm2-embed", "input": "blue sky"}
        )
        numbers = made["data"][0]["embedding"]
        print(f"embedding: {len(numbers)} numbers, the first is {numbers[0]:.4f}", flush=True)


async def _post(session: aiohttp.ClientSession, path: str, body: object) -> Any:  # noqa: ANN401  JSON
    async with session.post(path, json=body) as answer:
        content = await answer.read()
        if answer.status != 200:
            raise PannierError(
                f"{path} answered {answer.status}: {content.decode(errors='replace')}"
            )
        return msgspec.json.decode(content)


def _free_port() -> int:
    """8484, the port of every example, or a free one when something has it."""
    for port in (_FIRST_PORT, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    return _FIRST_PORT
