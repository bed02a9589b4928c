"""A row of readiness in words, for the chat that has no plugin."""

import ast

import pytest
from tests.unit.plugin.stand_in import PLUGIN

from pannier.errors import Failure
from pannier.serve.shapes import Row
from pannier.serve.words import _CHAT, chat_line


def row(state: str, stage: str | None = None, **fields: object) -> Row:
    given = {"id": "qwen", "role": "chat", "aliases": (), "state": state, "stage": stage}
    return Row(**{**given, **fields})  # type: ignore[arg-type]


WEIGHTS = {"fraction": 0.42, "bytes_done": 9_300_000_000, "bytes_total": 22_100_000_000}


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (row("queued", "queued"), "qwen waits for its turn"),
        (row("queued", "making_room", making_room="gemma"), "Making room for qwen: gemma leaves"),
        (row("queued", "making_room"), "Making room for qwen: another model leaves"),
        (row("loading", "starting"), "Starting qwen"),
        (
            row("loading", "weights", **WEIGHTS, eta_s=14.2),
            "Loading qwen ▰▰▰▰▱▱▱▱▱▱ 42% · 9.3/22.1 GB · 14 s left",
        ),
        (row("loading", "weights", fraction=0.0), "Loading qwen ▱▱▱▱▱▱▱▱▱▱ 0%"),
        (
            row("loading", "warming_up", **WEIGHTS | {"fraction": 0.95}, eta_s=1.0),
            "Warming up qwen ▰▰▰▰▰▰▰▰▰▱ 95%",
        ),
        (row("draining"), "Waiting until qwen has stopped"),
        (row("ready", fraction=1.0, elapsed_s=41.3), "qwen is ready after 41 s"),
        (row("failed", error=Failure(code="x", message="why")), "qwen could not be loaded"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_row_is_one_line_in_the_words_of_the_plugin(shown: Row, line: str) -> None:
    assert chat_line(shown) == line


def test_the_words_are_those_of_the_plugin_which_is_one_file_and_imports_none_of_ours() -> None:
    (words,) = (
        ast.literal_eval(each.value)
        for each in ast.parse(PLUGIN.read_text()).body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "WORDS"
    )
    assert words == _CHAT
