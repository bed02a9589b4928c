"""Whatever is quoted is split into the same argv again, by the rules of both systems (SC-7)."""

import shlex

from hypothesis import given, settings
from hypothesis import strategies as st

from pannier.render.quoting import command_line, unrenderable

ARGUMENTS = st.lists(
    st.one_of(
        st.text(alphabet="ab \\\"'$#{}é", max_size=8),
        st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=8),
    ),
    min_size=1,
    max_size=6,
)


def split_as_microsoft_says(line: str) -> list[str]:
    """The rules of "Parsing C++ command-line arguments", written from that page.

    2n backslashes and a quote are n backslashes and the begin or end of a quoted part; 2n+1 are n
    and a quote; backslashes before anything else are themselves. A quote mark right after the end
    of a quoted part is a quote in it.
    """
    found: list[str] = []
    current, quoted, inside = "", False, False
    place = 0
    while place < len(line):
        char = line[place]
        if char in " \t" and not quoted:
            if inside:
                found.append(current)
            current, inside = "", False
            place += 1
            continue
        inside = True
        run = 0
        while place < len(line) and line[place] == "\\":
            run, place = run + 1, place + 1
        if place < len(line) and line[place] == '"':
            current += "\\" * (run // 2)
            if run % 2:
                current += '"'
            elif quoted and line[place + 1 : place + 2] == '"':
                current += '"'
                place += 1
            else:
                quoted = not quoted
            place += 1
        elif run:
            current += "\\" * run
        else:
            current += char
            place += 1
    if inside:
        found.append(current)
    return found


def test_the_reference_splits_the_examples_of_its_page():
    examples = {
        '"abc" d e': ["abc", "d", "e"],
        'a\\\\b d"e f"g h': ["a\\\\b", "de fg", "h"],
        'a\\\\\\"b c d': ['a\\"b', "c", "d"],
        'a\\\\\\\\"b c" d e': ["a\\\\b c", "d", "e"],
        'a"b"" c d': ['ab" c d'],
    }
    assert {line: split_as_microsoft_says(line) for line in examples} == examples


@settings(deadline=None)
@given(ARGUMENTS)
def test_a_quoted_argv_is_split_into_itself_or_refused_with_a_reason(argv):
    bad = any(unrenderable(each) for each in argv) or argv[0].startswith("#")
    try:
        posix, windows = command_line(argv), command_line(argv, windows=True)
    except ValueError:
        assert bad
        return
    assert not bad
    assert shlex.split(posix) == argv
    assert split_as_microsoft_says(windows) == argv
    assert "\n" not in posix + windows


@settings(deadline=None)
@given(st.text(max_size=12))
def test_a_text_is_refused_exactly_when_it_holds_something_that_cannot_be_carried(text):
    def carried(char: str) -> bool:
        code = ord(char)
        return (
            0x20 <= code <= 0x7E
            or 0xA0 <= code <= 0xD7FF
            or 0xE000 <= code <= 0xFFFD
            or code >= 0x10000
        )

    breaks = {"\u2028", "\u2029"}
    fine = all(map(carried, text)) and not breaks.intersection(text) and "${" not in text
    assert (unrenderable(text) is None) == fine
