"""What cannot stand in a llama-swap config, and how the rest is quoted (SC-7)."""

import shlex

import pytest

from pannier.render.quoting import command_line, unrenderable


@pytest.mark.parametrize(
    "argument",
    [
        "${x}",
        "a${PORT}b",
        "two\nlines",
        "tab\there",
        "\x00",
        "\x7f",
        "\x85",
        "a\u2028b",
        "a\u2029b",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("windows", [False, True])
def test_sc_7_what_llama_swap_would_change_is_refused_with_its_reason(argument, windows):
    with pytest.raises(ValueError, match=r"the argument .* contains"):
        command_line(["llama-server", argument], windows=windows)


@pytest.mark.parametrize("char", ["\x80", "\x9f", "\ufffe", "\uffff", "\udcff"], ids=ascii)
def test_sc_7_what_no_yaml_document_can_hold_is_refused(char):
    assert unrenderable(f"a{char}b") is not None


def test_sc_7_a_command_that_would_be_a_comment_is_refused():
    with pytest.raises(ValueError, match="comment"):
        command_line(["#llama-server", "-m", "x"])


@pytest.mark.parametrize("argument", ["$HOME", "$", "{x}", "#", "a b", "é😀", "\\", "'", '"', ""])
def test_sc_7_everything_else_is_no_problem(argument):
    assert unrenderable(argument) is None
    assert shlex.split(command_line(["x", argument])) == ["x", argument]


def test_sc_7_on_windows_a_path_that_ends_in_a_backslash_keeps_its_quote_closed():
    assert command_line(["C:\\a b\\", "x"], windows=True) == '"C:\\a b\\\\" "x"'


def test_an_argument_is_never_repaired():
    argv = ["a", " b ", "c  d"]
    assert shlex.split(command_line(argv)) == argv
