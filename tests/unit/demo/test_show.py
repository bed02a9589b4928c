"""Bars of loads: one line each that grows, or plain lines where there is no terminal."""

import io

import msgspec

from pannier.demo.show import Bars, line
from pannier.errors import Failure
from pannier.serve.shapes import Row

LOADING = Row(
    id="a", role="chat", aliases=(), state="loading", stage="weights", fraction=0.5,
    bytes_done=50_000_000, bytes_total=100_000_000, eta_s=9.4,
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_load_is_one_line_with_its_bar():
    text = line(LOADING)
    assert text.startswith("a ")
    assert text.count("▰") == text.count("▱") > 5
    assert "50 %" in text
    assert "50 of 100 MB" in text
    assert "9 s left" in text


def test_a_failed_load_says_why():
    failed = msgspec.structs.replace(
        LOADING, state="failed", stage=None, error=Failure(code="x", message="no memory")
    )
    assert "no memory" in line(failed)
    assert "left" not in line(failed)


def test_a_terminal_is_drawn_over():
    out = Terminal()
    bars = Bars(out)
    bars.draw([LOADING])
    bars.draw([msgspec.structs.replace(LOADING, fraction=0.6)])
    assert "\x1b[1A" in out.getvalue()
    assert out.getvalue().count("\n") == 2


def test_a_file_gets_a_line_for_each_step_and_no_control_characters():
    out = io.StringIO()
    bars = Bars(out)
    for percent in range(101):
        bars.draw([msgspec.structs.replace(LOADING, fraction=percent / 100)])
    lines = out.getvalue().splitlines()
    assert 10 <= len(lines) <= 12
    assert "\x1b" not in out.getvalue()
