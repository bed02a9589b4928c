"""Lines of keys, in every way that TOML can write one."""

import tomllib

import pytest

from pannier.config.locate import key_lines, key_path, line_of

DOCUMENT = '''\
# a = 1
top = 1   # top = 2
[a]
x."y z".'w' = """
x = 1
[fake]
"quoted \\""" = 3"""
list = [
  1, # one, two ]
  [2, "]"],
  { k = 1, "m.n" = '#' },
  \'\'\'
still ] one \'\'\'\',
]
[a.b.c]
dated = 1979-05-27 07:32:00
inline = { p.q = { r = [1,
  2] }, s = 1 }
[[shelf.book]]
name = "first"
[shelf.book.cover]
colour = "red"
[[shelf.book]]
name = "second"
  [[shelf.book.page]]
  n = 1
  [[shelf.book.page]]
  n = 2
["\\u0041" . 'd.e']
end = true'''


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("a",), 3),
        (("a", "x", "y z", "w"), 4),
        (("a", "list"), 8),
        (("a", "list", 0), 9),
        (("a", "list", 1), 10),
        (("a", "list", 1, 1), 10),
        (("a", "list", 2), 11),
        (("a", "list", 2, "m.n"), 11),
        (("a", "list", 3), 12),
        (("a", "b"), 15),
        (("a", "b", "c", "dated"), 16),
        (("a", "b", "c", "inline", "p", "q", "r", 0), 17),
        (("a", "b", "c", "inline", "p", "q", "r", 1), 18),
        (("a", "b", "c", "inline", "s"), 18),
        (("shelf", "book"), 19),
        (("shelf", "book", 0, "name"), 20),
        (("shelf", "book", 0, "cover", "colour"), 22),
        (("shelf", "book", 1), 23),
        (("shelf", "book", 1, "name"), 24),
        (("shelf", "book", 1, "page", 0, "n"), 26),
        (("shelf", "book", 1, "page", 1, "n"), 28),
        (("A", "d.e", "end"), 30),
    ],
)
def test_the_line_of_a_key_is_found(path, line, newline):
    text = DOCUMENT.replace("\n", newline)
    tomllib.loads(text)
    assert key_lines(text)[path] == line


def test_what_stands_in_strings_and_comments_is_no_key():
    paths = key_lines(DOCUMENT)
    assert not [path for path in paths if "fake" in path or 'quoted "' in path]
    assert ("a", "x", "x") not in paths


def test_a_missing_key_has_the_line_of_the_nearest_table_around_it():
    lines = key_lines("[models.a]\nrole = 'chat'\n[models.b]\n")
    assert line_of(lines, ("models", "b", "path")) == 3
    assert line_of(lines, ("models", "c")) == 1
    assert line_of(lines, ("peers", "x")) is None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("models", "qwen3-8b", "slots"), "models.qwen3-8b.slots"),
        (("models", "a.b", "args", 2), 'models."a.b".args[2]'),
        (("models", "", "x"), 'models."".x'),
        (("models", 'q"\\', "x"), 'models."q\\"\\\\".x'),
        (("models", "a\nb\u2028", "x"), 'models."a\\u000Ab\\u2028".x'),
        (("models", "é", 0), 'models."é"[0]'),
    ],
)
def test_a_path_is_written_as_in_toml(path, text):
    assert key_path(path) == text
