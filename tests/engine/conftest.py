"""The real programs and models, and a real `pannier serve` on both hosts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import gguf_writer
from tests.engine.programs import LENT_SWAP, Programs, get_programs
from tests.engine.serving import Serve
from tests.engine.slow import Slow

from pannier.engine.locate import beside
from pannier.engine.report import Printer

HERE = Path(__file__).parent
HOSTS = ("direct", "llama-swap")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows what its servers said."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's Result
    if report.failed:
        given = getattr(item, "funcargs", {})
        serves = [each for each in given.values() if isinstance(each, Serve)]
        report.sections += [("pannier serve", each.log()) for each in serves]


@pytest.fixture(scope="session")
def programs() -> Programs:
    """The real programs, which were got before the first test."""
    return get_programs(Printer())


@pytest.fixture(scope="session")
def llama_server(programs: Programs) -> str:
    return programs.server


@pytest.fixture(scope="session")
def _micro_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("micro")


@pytest.fixture(scope="session")
def micro_chat(_micro_folder: Path) -> Path:
    """A chat model that a llama-server loads in a moment."""
    return gguf_writer.micro_chat(_micro_folder / "chat.gguf")


@pytest.fixture(scope="session")
def micro_embed(_micro_folder: Path) -> Path:
    return gguf_writer.micro_embed(_micro_folder / "embed.gguf")


@pytest.fixture(scope="session")
def micro_rerank(_micro_folder: Path) -> Path:
    return gguf_writer.micro_rerank(_micro_folder / "rerank.gguf")


@pytest.fixture(scope="module", params=HOSTS)
def host(request: pytest.FixtureRequest, programs: Programs) -> str:
    """What runs the models: each test that takes this runs on both."""
    kind = str(request.param)
    if kind == "llama-swap" and programs.swap is None:
        pytest.skip(f"no llama-swap: neither {LENT_SWAP} nor one that Pannier finds is there")
    return kind


MakeServe = Callable[..., Serve]


@pytest.fixture
async def make_serve(host: str, programs: Programs, tmp_path: Path) -> AsyncIterator[MakeServe]:
    """Makes a `pannier serve` that is ended after the test; nothing of it may be left then."""
    made: list[Serve] = []

    def make(name: str = "", **options: Any) -> Serve:
        folder = tmp_path / (name or f"s{len(made)}")
        options = {"host": host, "programs": programs.environ, **options}
        made.append(Serve(folder, **options))
        return made[-1]

    yield make
    await asyncio.to_thread(_close, made)


@pytest.fixture
def serve(make_serve: MakeServe) -> Serve:
    """One `pannier serve`, not started."""
    return make_serve()


@pytest.fixture(scope="module")
def serve_shared(
    host: str, programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[dict[str, Any]], Serve]]:
    """Starts a `pannier serve` that the tests of a module share, with all its models ready."""
    made: list[Serve] = []

    def start(models: dict[str, Any]) -> Serve:
        one = Serve(tmp_path_factory.mktemp("shared"), host=host, programs=programs.environ)
        made.append(one)
        one.write(models)

        there = [name for name, each in models.items() if Path(each["path"]).exists()]

        async def up() -> None:
            await one.start()
            await one.ready(*there)

        asyncio.run(up())
        return one

    yield start
    _close(made)


def _close(serves: list[Serve]) -> None:
    left = [text for each in serves for text in each.close()]
    assert not left, f"left behind: {left}\n" + "\n".join(each.log() for each in serves)


@pytest.fixture
def slow_device(programs: Programs, tmp_path: Path) -> Iterator[Callable[[float], Slow]]:
    """Makes a slow device; `rate` in bytes per second."""
    rpc = beside(programs.server, "ggml-rpc-server")
    if rpc is None:
        pytest.skip("no ggml-rpc-server beside llama-server")
    made: list[Slow] = []

    def make(rate: float) -> Slow:
        made.append(Slow(rpc, rate, tmp_path / "rpc.log"))
        return made[-1]

    yield make
    for each in made:
        each.close()
