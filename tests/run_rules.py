"""Rules of a whole run, which pytest's controller keeps: it may have workers (pytest-xdist).

Engines and environments are got before the first test, on the controller's terminal: building one
takes minutes, and a test has seconds. And the half of tests/engine that needs llama-swap must not
vanish unseen: where the program lies beside the checkout, a whole run in which no test ran with it
is a failed run.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.engine.programs import LENT_SWAP, ROOT, get_programs
from tests.webui.environments import CHROMIUM, environment

from pannier.engine.report import Printer
from pannier.errors import PannierError

ENGINE = ROOT / "tests" / "engine"
WEBUI = ROOT / "tests" / "webui"
_WITH_SWAP = re.compile(r"\[(.*-)?llama-swap(-.*)?\]$")


class RunRules:
    """Registered on the controller alone."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ran = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self._config.option.collectonly:
            return
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            self._get_ready(Printer())

    def _get_ready(self, printer: Printer) -> None:
        webui = self._covers(WEBUI)
        try:
            if self._covers(ENGINE) or webui:
                get_programs(printer)
        except PannierError as error:
            pytest.exit(f"the engines for the tests cannot be had: {error}", returncode=1)
        if webui:
            environment("loader", printer.say)
        if webui and CHROMIUM is not None:
            environment("server", printer.say)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        here = report.nodeid.startswith("tests/engine/")
        if here and report.when == "call" and not report.skipped:
            self._ran += bool(_WITH_SWAP.search(report.nodeid))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        good = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if exitstatus in good and self._vanished():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._vanished():
            terminalreporter.section("llama-swap", red=True, bold=True)
            terminalreporter.line(f"{LENT_SWAP} is there, and no test ran with it: a failure")

    def _paths(self) -> list[Path]:
        """The files and folders that the arguments name."""
        start = self._config.invocation_params.dir
        return [(start / each.partition("::")[0]).resolve() for each in self._config.args]

    def _covers(self, folder: Path) -> bool:
        """Whether the folder, something in it or a folder above it is to be run."""
        return any(
            path == folder or path in folder.parents or folder in path.parents
            for path in self._paths()
        )

    def _vanished(self) -> bool:
        """All of tests/engine was to run, llama-swap is there, and no test ran with it."""
        option = self._config.option
        narrow = ("keyword", "markexpr", "collectonly", "maxfail", "lf", "deselect", "ignore")
        chosen = any(getattr(option, name, None) for name in narrow)
        chosen = chosen or any("::" in each for each in self._config.args)
        whole = any(path == ENGINE or path in ENGINE.parents for path in self._paths())
        return LENT_SWAP.exists() and whole and not chosen and not self._ran
