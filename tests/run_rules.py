"""Rules of a whole run, which pytest's controller keeps: it may have workers (pytest-xdist).

Engines are got before the first test, on the controller's terminal: building one takes minutes, and
a test has seconds. And the half of tests/engine that needs llama-swap must not vanish unseen: where
the program lies beside the checkout, a whole run in which no test ran with it is a failed run.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.engine.programs import LENT_SWAP, ROOT, get_programs

from pannier.engine.report import Printer
from pannier.errors import PannierError

ENGINE = ROOT / "tests" / "engine"
_WITH_SWAP = re.compile(r"\[(.*-)?llama-swap(-.*)?\]$")


class RunRules:
    """Registered on the controller alone."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ran = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if not self._covers_engine() or self._config.option.collectonly:
            return
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            try:
                get_programs(Printer())
            except PannierError as error:
                pytest.exit(f"the engines for tests/engine cannot be had: {error}", returncode=1)

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

    def _covers_engine(self) -> bool:
        """Whether tests/engine, something in it or a folder above it is to be run."""
        return any(
            path == ENGINE or path in ENGINE.parents or ENGINE in path.parents
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
