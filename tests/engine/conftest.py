"""The real programs, the real small model, micro models, and a real `pannier serve` on both hosts.

What is missing is installed at the start, with the progress on the terminal: building llama-server
takes minutes. llama-swap is the one that lies beside the checkout where there is one, so that the
half of these tests that needs it cannot be skipped there without anybody noticing.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pannier.demo.files import fetch_model
from pannier.engine.install import install
from pannier.engine.locate import beside, find_llama_server, find_llama_swap
from pannier.engine.report import Printer
from pannier.errors import PannierError

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests import gguf_writer  # noqa: E402
from tests.engine.serving import Serve, free_port  # noqa: E402

HERE = Path(__file__).parent
LENT_SWAP = ROOT.parent / "shared" / "bin" / "llama-swap"
HOSTS = ("direct", "llama-swap")

# The half that needs llama-swap must not vanish unseen.

_SEEN = pytest.StashKey[dict[str, Any]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SEEN] = {"collected": set(), "deselected": False, "ran": 0}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen = config.stash.setdefault(_SEEN, {"collected": set(), "deselected": False, "ran": 0})
    seen["collected"] |= {item.path for item in items if HERE in item.path.parents}


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.config.stash[_SEEN]["deselected"] = True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's Result
    params = getattr(getattr(item, "callspec", None), "params", {})
    if report.when == "call" and not report.skipped and params.get("host") == "llama-swap":
        item.config.stash[_SEEN]["ran"] += 1
    if report.failed:
        given = getattr(item, "funcargs", {})
        serves = [each for each in given.values() if isinstance(each, Serve)]
        report.sections += [("pannier serve", each.log()) for each in serves]


def _vanished(config: pytest.Config) -> bool:
    """All tests here were to run, llama-swap is there, and no test ran with it."""
    seen = config.stash.get(_SEEN, None)
    if seen is None or not LENT_SWAP.exists() or config.option.collectonly:
        return False
    whole = seen["collected"] >= set(HERE.glob("test_*.py")) and not seen["deselected"]
    named = any("::" in arg for arg in config.args)
    return whole and not named and not seen["ran"]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and _vanished(
        session.config
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if _vanished(config):
        terminalreporter.section("llama-swap", red=True, bold=True)
        terminalreporter.line(f"{LENT_SWAP} is there, and no test ran with it: that is a failure")


# The programs and the models.


class Programs:
    """Where the real programs are; `swap` is None where there is no llama-swap."""

    def __init__(self, server: str, swap: str | None, model: Path) -> None:
        self.server = server
        self.swap = swap
        self.model = model

    @property
    def environ(self) -> dict[str, str]:
        found = {"PANNIER_LLAMA_SERVER": self.server}
        return {**found, "PANNIER_LLAMA_SWAP": self.swap} if self.swap else found


_PROGRAMS = pytest.StashKey[Programs]()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Gets the engines before the first test: building one takes minutes, a test has seconds."""
    here = any(HERE in item.path.parents for item in session.items)
    if not here or session.config.option.collectonly or _PROGRAMS in session.config.stash:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            session.config.stash[_PROGRAMS] = _get_programs(Printer())
        except PannierError as error:
            pytest.exit(f"the engines for tests/engine cannot be had: {error}", returncode=1)


def _get_programs(printer: Printer) -> Programs:
    """Found, or installed while the terminal shows how far that is."""
    found = find_llama_server()
    swap = str(LENT_SWAP) if LENT_SWAP.exists() else None
    if found is None:
        printer.say("\nthe tests need llama-server; it is installed now, once")
        want = ("llama-server",) if swap else ("llama-server", "llama-swap")
        made = asyncio.run(install(want=want, say=printer.say, show=printer.show))
        found = made.llama_server
    assert found is not None
    if swap is None and (other := find_llama_swap()) is not None:
        swap = other.path
    model = asyncio.run(fetch_model(printer.say))
    return Programs(found.path, swap, model)


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Programs:
    """The real programs, which were got before the first test."""
    return request.config.stash[_PROGRAMS]


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


class Slow:
    """A device whose weights arrive slowly: an RPC server behind a relay."""

    def __init__(self, port: int, relay: "subprocess.Popen[bytes]") -> None:
        self.port = port
        self._relay = relay

    @property
    def engine(self) -> dict[str, Any]:
        return {"rpc": [f"127.0.0.1:{self.port}"]}

    def lift(self) -> None:
        """From now on at full speed."""
        self._relay.send_signal(signal.SIGUSR1)


@pytest.fixture
def slow_device(programs: Programs, tmp_path: Path) -> Iterator[Callable[[float], Slow]]:
    """Makes a slow device; `rate` in bytes per second."""
    rpc = beside(programs.server, "ggml-rpc-server")
    if rpc is None:
        pytest.skip("no ggml-rpc-server beside llama-server")
    running: list[subprocess.Popen[bytes]] = []

    def make(rate: float) -> Slow:
        target, port = free_port(), free_port()
        with (tmp_path / "rpc.log").open("ab") as log:
            running.append(
                subprocess.Popen(
                    [rpc, "-H", "127.0.0.1", "-p", str(target)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip
            relay = subprocess.Popen(
                [sys.executable, str(HERE / "throttle.py"), str(port), str(target), str(rate)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        running.append(relay)
        assert relay.stdout is not None
        assert relay.stdout.readline() == b"listening\n"
        return Slow(port, relay)

    yield make
    for process in running:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
