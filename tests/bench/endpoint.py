"""What Pannier costs in front of a llama-server, side by side in one run; prints Markdown.

    python -m tests.bench.endpoint

The same small request goes in turns to llama-server itself and through Pannier, on both hosts, so
that a machine that changes its speed changes it for both. And how long `/v1/models` takes while a
model loads over a slow device: Open WebUI asks for it at every page.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from tests import gguf_writer
from tests.engine.programs import Programs, get_programs
from tests.engine.serving import Serve
from tests.engine.slow import Slow

from pannier.engine.locate import beside
from pannier.engine.report import Printer

ROUNDS = 400
SLOW = 8e6


async def timed(call: Callable[[], Awaitable[None]]) -> float:
    """Milliseconds of one call."""
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


def row(name: str, values: list[float]) -> str:
    p99 = statistics.quantiles(values, n=100)[98]
    return f"| {name} | {statistics.median(values):.2f} | {p99:.2f} |"


async def overhead(folder: Path, programs: Programs, host: str) -> None:
    """A tokenize request, straight and through Pannier."""
    serve = Serve(folder / host, host=host, programs=programs.environ)
    serve.write({"a": {"path": str(gguf_writer.micro_chat(folder / "a.gguf")), "context": 256}})
    await serve.start()
    try:
        seen = await serve.ready("a")
        engine = f"http://127.0.0.1:{seen['data'][0]['instances'][0]['port']}"
        async with aiohttp.ClientSession() as session:

            async def ask(base: str) -> None:
                body = {"model": "a", "content": "Hello, world"}
                async with session.post(f"{base}/tokenize", json=body) as answer:
                    await answer.read()
                    assert answer.status == 200

            straight, through = [], []
            for _ in range(ROUNDS):
                straight.append(await timed(lambda: ask(engine)))
                through.append(await timed(lambda: ask(serve.url)))
        print(row(f"llama-server itself ({host})", straight))
        print(row(f"through Pannier ({host})", through))
        ratio = statistics.median(through) / statistics.median(straight)
        print(f"| ratio of the medians ({host}) | {ratio:.2f} | |")
        await serve.stop()
    finally:
        serve.close()


async def model_list(folder: Path, programs: Programs) -> None:
    """`/v1/models` while a load goes on."""
    rpc = beside(programs.server, "ggml-rpc-server")
    assert rpc is not None
    slow = Slow(rpc, SLOW, folder / "rpc.log")
    serve = Serve(folder / "list", host="direct", programs=programs.environ, engine=slow.engine)
    serve.write(
        {"m": {"path": str(programs.model), "context": 512}},
        placement={"chat": {"devices": ["RPC0"]}},
    )
    await serve.start()
    try:
        await serve.state("m", "loading")
        values = []
        async with aiohttp.ClientSession() as session:

            async def ask() -> None:
                async with session.get(f"{serve.url}/v1/models") as answer:
                    await answer.read()

            while len(values) < ROUNDS and (await serve.row("m"))["state"] == "loading":
                values += [await timed(ask) for _ in range(20)]
        print(row("GET /v1/models while a model loads", values))
        await serve.stop()
    finally:
        serve.close()
        slow.close()


async def main(programs: Programs) -> None:
    print("| request | median ms | p99 ms |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        for host in ("direct", *(("llama-swap",) if programs.swap else ())):
            await overhead(Path(name), programs, host)
        await model_list(Path(name), programs)


if __name__ == "__main__":
    asyncio.run(main(get_programs(Printer())))
