"""The real Open WebUI, a real Pannier on both hosts with a slow device, and a real browser.

One Open WebUI and one browser serve all tests of the module, one Pannier all tests of its host.
Where there is no chromium the tests in the browser skip, before anything is made for them.
"""

import asyncio
import concurrent.futures
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.engine.programs import LENT_SWAP, ROOT, Programs, get_programs
from tests.engine.serving import Serve
from tests.engine.slow import Slow
from tests.webui.browser import Page
from tests.webui.environments import CHROMIUM, environment
from tests.webui.servers import HEADER, KEY, OpenWebUi

from pannier.engine.locate import beside
from pannier.engine.report import Printer

README = ROOT / "plugin" / "README.md"
PICTURES = ROOT / "artifacts" / "webui"
RATE = 14e6
"""Bytes per second to the slow device: the model of 92 MB takes seven seconds."""

SHORT = "root ::= [A-Z] [a-z] [A-Za-z ,.!]{3,40}"
"""What every answer is held to, titles too: so small a model may go on for minutes."""

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def run(what: Coroutine[Any, Any, Any]) -> Any:
    """A coroutine, to its end. In a thread: playwright's loop runs in this one all the time."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, what).result()


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Tells a person at the terminal what takes so long."""
    terminal = request.config.pluginmanager.getplugin("capturemanager")

    def tell(text: str) -> None:
        with terminal.global_and_fixture_disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    return tell


@pytest.fixture(scope="module")
def chromium() -> str:
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH: apt-get install chromium fonts-dejavu-core")
    return CHROMIUM


@pytest.fixture(scope="module")
def webui(
    chromium: str, say: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenWebUi]:
    """Open WebUI, signed in, with the plugin installed."""
    made = OpenWebUi(environment("server", say), tmp_path_factory.mktemp("webui"))
    try:
        made.up()
        for _ in ("anew", "over the installed one"):
            made.install(README)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def programs() -> Programs:
    """The real engines, which were got before the first test."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(get_programs, Printer()).result()


@pytest.fixture(scope="module")
def slow_device(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    """A device whose weights arrive slowly."""
    rpc = beside(programs.server, "ggml-rpc-server")
    if rpc is None:
        pytest.skip("no ggml-rpc-server beside llama-server")
    made = Slow(rpc, RATE, tmp_path_factory.mktemp("slow") / "rpc.log")
    yield made
    made.close()


@pytest.fixture(scope="module", params=["direct", "llama-swap"])
def pannier(
    request: pytest.FixtureRequest,
    programs: Programs,
    slow_device: Slow,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Serve]:
    """A Pannier whose models load slowly, with a key."""
    host = str(request.param)
    if host == "llama-swap" and programs.swap is None:
        pytest.skip(f"no llama-swap: neither {LENT_SWAP} nor one that Pannier finds is there")
    folder = tmp_path_factory.mktemp(host)
    broken = folder / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(4096))
    key = folder / "key"
    key.write_text(f"{KEY}\n")
    key.chmod(0o600)
    common = {"context": 1024, "preload": False, "args": ["--grammar", SHORT]}
    models = {"smollm2": programs.model, "broken": broken}
    serve = Serve(folder, host=host, programs=programs.environ, engine=slow_device.engine)
    serve.write(
        {name: {"path": str(path), **common} for name, path in models.items()},
        placement={"chat": {"devices": ["RPC0"]}},
        server={"event_header": HEADER, "api_key_file": str(key)},
    )
    try:
        run(serve.start())
        yield serve
        run(serve.stop())
    finally:
        left = serve.close()
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="module")
def chrome(chromium: str) -> Iterator[Any]:
    """One headless browser."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: .[test] has it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
        yield browser
        browser.close()


@pytest.fixture
def page(
    chrome: Any, webui: OpenWebUi, pannier: Serve, request: pytest.FixtureRequest
) -> Iterator[Page]:
    """A fresh page before a cold model, with the plugin as it is by itself."""
    webui.connect(pannier.url)
    webui.switch(on=True)
    webui.valves()
    PICTURES.mkdir(parents=True, exist_ok=True)
    made = Page(chrome, webui, PICTURES / f"{pannier.host}-{request.node.originalname}")
    made.unload("smollm2")
    yield made
    with contextlib.suppress(Exception):  # a page that is gone needs no picture
        made.picture("end")
    made.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's Result
    if report.failed:
        for name, each in getattr(item, "funcargs", {}).items():
            if isinstance(each, Serve | OpenWebUi):
                report.sections.append((name, each.log()))
