"""Properties of the edit of config.toml: it means what was asked, and the rest keeps its bytes.

The files are put together from parts that are a placement and parts that are not, so that what has
to stay is known without asking the code that is tested. A file has hundreds of small choices: they
come from a seed, as drawing each of them would take longer than the edits.
"""

import json
import random
import tomllib

import tomli_w
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from tests.property.test_config import DOCUMENTS

from pannier.config.edit import edit_placement
from pannier.config.load import parse
from pannier.config.schema import Placement
from pannier.config.spans import members, tables

# A busy machine is no finding.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 2**32)

MODELS = ("qwen/3:8b", "placement", "é")
KEYS = ("chat", "embed", "rerank", *MODELS)

# --- files ----------------------------------------------------------------------------------------

OTHERS = [
    "[server] # here\n\n  listen = '127.0.0.1:1'\n# [placement.chat]\n",
    '[engine]\nargs = [ # ]\n  "[placement.chat]",\n\n"""\\\n   [placement.embed]\\\n""",\n]\n',
    "[peers.far]\nurl='http://h:1'\n# end\n\n",
    "[ memory ]\nreserve = { 'CUDA0' = '1GiB', \"}#\" = '1B' }#c\n",
    "# ---- where ----\n\n\n# placement.chat.devices = [0]\n[models.c]\npath = ''' = { '''\n",
    '[models.d]\npath = """"a"""" # """\nenv.A = "\\"]\\\\"\n\n\n',
    "\t[models.placement.env] \nplacement = 'b'\n   \n",
]
ALWAYS = "".join(f"[models.{json.dumps(key, ensure_ascii=False)}]\npath = 'a'\n" for key in MODELS)


DEVICES = (0, 1, 2, 3, 1023, "CUDA0", "RPC1", 'a"b\\c', "]#", "é")


def placements(writer):
    """Up to four entries, each with up to four devices."""
    found = {}
    for key in writer.some(KEYS, 4):
        devices = writer.some(DEVICES, 4) or [0]
        weights = tuple(writer.one(1, 3, 10**6) for _ in devices)
        found[key] = Placement(
            devices=tuple(devices),
            tensor_split=writer.one(None, weights),
            replicas=writer.one(1, 1, 2, 64),
            force=writer.one(True, False),
        )
    return found


class Writer:
    """Spells placements in ways that people do, with other comments and spaces for each seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, *options):
        return self.random.choice(options)

    def some(self, options, most):
        return self.random.sample(list(options), self.random.randint(0, most))

    def shuffled(self, options):
        return self.random.sample(options, len(options))

    def fields(self, placement):
        found = {"devices": self.list(placement.devices)}
        if placement.tensor_split is not None:
            found["tensor_split"] = self.list(placement.tensor_split)
        if placement.replicas != 1 or self.one(True, False):
            found["replicas"] = str(placement.replicas)
        if placement.force or self.one(True, False):
            found["force"] = json.dumps(placement.force)
        return self.shuffled(list(found.items()))

    def list(self, values):
        comma = self.one(", ", ",", " , ", ",\n  ", ", # ]\n", "\n,\n\n")
        opening, closing = self.one(("[", "]"), ("[ ", " ]"), ("[\n\n ", "\n]"), ("[ # [\n", ",]"))
        return opening + comma.join(json.dumps(v, ensure_ascii=False) for v in values) + closing

    def key(self, *parts):
        dot = self.one(".", ".", " . ")
        return dot.join(
            part if part.isascii() and part.isalnum() and self.one(True, False)
            else json.dumps(part, ensure_ascii=False)
            for part in parts
        )  # fmt: skip

    def equals(self):
        return self.one(" = ", "=", "  =\t")

    def end(self):
        return self.one("\n", "\n", "  \n", " # why\n", "# [placement.x]\n")

    def between(self):
        return self.one("", "", "\n", "# note\n", "  # devices = [9]\n\n")

    def lines(self, prefix, placement):
        """The fields as lines; comments between them are within the entry."""
        text = []
        for name, value in self.fields(placement):
            text.append(self.one("", "  ", "\t") + self.key(*prefix, name) + self.equals())
            text[-1] += value + self.end()
        return text

    def inline(self, placement):
        fields = [self.key(name) + self.equals() + value for name, value in self.fields(placement)]
        return self.one("{", "{ ") + self.one(",", ", ", " ,").join(fields) + self.one("}", " }")


def header_part(writer, key, placement):
    lines = writer.lines((), placement)
    inside = "".join(line + writer.between() for line in lines[:-1]) + lines[-1]
    name = writer.key("placement", key)
    return f"{writer.one('', '  ')}[{name}]{writer.end()}{writer.between()}{inside}"


def own_lines(writer, prefix, key, placement):
    """An entry in a table around it, as lines that are all of them a placement."""
    if writer.one(True, False):
        name = writer.key(*prefix, key)
        return [name + writer.equals() + writer.inline(placement) + writer.end()]
    return writer.lines((*prefix, key), placement)


def whole_part(writer, entries):
    fields = []
    for key, placement in entries.items():
        if writer.one(True, False):
            fields.append(writer.key(key) + writer.equals() + writer.inline(placement))
        else:
            fields += [
                writer.key(key, name) + writer.equals() + value
                for name, value in writer.fields(placement)
            ]
    return "placement" + writer.equals() + "{" + ", ".join(fields) + "}" + writer.end()


def file_of(writer):
    """A file: its byte order mark, its parts and its entries.

    A part is a text and the key of its entry; "" stands for several, None for all the rest.
    """
    entries = placements(writer)
    style = {key: writer.one("header", "header", "root", "table") for key in entries}
    first = [(None, writer.one("", "", "#:schema ./x.json\n", "# [placement.chat]\n\n"))]
    if writer.one(True, False, False, False):
        style = {}
        first += [("", whole_part(writer, entries)), (None, writer.one("", "\n", "# b\n"))]
    in_root = [key for key in entries if style.get(key) == "root"]
    for key in in_root:
        for line in own_lines(writer, ("placement",), key, entries[key]):
            first += [(key, line), (None, writer.one("", "", "\n", "# c\n"))]
    in_table = [key for key in entries if style.get(key) == "table"]
    rest = [[(None, text)] for text in writer.some(OTHERS, len(OTHERS))]
    rest.append([(None, ALWAYS)])
    for key, how in style.items():
        if how == "header" or (how == "table" and in_root):
            rest.append([(key, header_part(writer, key, entries[key]))])
    if in_table and not in_root:
        lines = [("", f"[placement]{writer.end()}")]
        for key in in_table:
            lines += [(key, line) for line in own_lines(writer, (), key, entries[key])]
        rest.append(lines)
    parts = list(first)
    for each in writer.shuffled(rest):
        parts += [*each, (None, writer.one("", "", "\n", "\n\n", "# d\n", "\n# e\n\n"))]
    parts = [part for part in parts if part[1]]
    if writer.one(True, False, False):
        key, text = parts.pop()
        parts.append((key, text.rstrip("\n") or "#"))
    if writer.one(True, False, False):
        parts = [(key, text.replace("\n", "\r\n")) for key, text in parts]
    mark = writer.one("", "", "\ufeff")
    return mark, parts, entries


BLANK = " \t\r\ufeff"


def plain(text):
    """The text without blank lines and without what ends a line."""
    return [line.strip("\r\n\ufeff") for line in text.split("\n") if line.strip(BLANK)]


# --- properties -----------------------------------------------------------------------------------


@calm
@given(SEEDS)
def test_an_edit_means_what_was_asked_and_keeps_every_other_byte(seed):
    writer = Writer(seed)
    mark, parts, entries = file_of(writer)
    text = mark + "".join(part for _, part in parts)
    note(text)
    assert parse(text.encode()).placement == entries
    assert edit_placement(text, entries) == text or not entries
    wanted = {key: entries[key] for key in entries if writer.one(True, False)} | placements(writer)
    note(wanted)

    result = edit_placement(text, wanted)
    assert parse(result.encode()).placement == wanted
    assert result.startswith("\ufeff") == bool(mark)
    assert ("\r\n" in text) or ("\r" not in result)
    assert "\n" not in result.replace("\r\n", "") or "\r\n" not in text
    at = 0
    for key, part in parts:
        stays = key is None or (key and wanted.get(key) == entries[key])
        if stays and (inner := part.strip("\r\n")):
            at = result.index(inner, at) + len(inner)
    assert edit_placement(result, wanted) == result


@calm
@given(SEEDS)
def test_taking_the_tables_out_leaves_the_lines_of_all_the_rest(seed):
    writer = Writer(seed)
    mark, parts, _ = file_of(writer)
    changes = placements(writer)
    rest = mark + "".join(part for key, part in parts if key is None)
    text = mark + "".join(part for _, part in parts)
    note(text)
    bare = edit_placement(text, None)
    assert plain(bare) == plain(rest)
    gone = rest.count("\n") - bare.count("\n")
    ended = text.endswith("\n")
    assert 0 <= gone <= sum(key is not None for key, _ in parts) + (not ended)

    # A comment behind the last key of an entry is below the table, and stays when the table goes.
    changed = edit_placement(edit_placement(text, changes), {})
    assert [line for line in plain(changed) if line.strip()[0] != "#"] == [
        line for line in plain(rest) if line.strip()[0] != "#"
    ]
    assert edit_placement(edit_placement(bare, changes), None) == bare


@calm
@given(DOCUMENTS, st.booleans())
def test_a_span_of_a_value_holds_that_value_and_nothing_else(document, windows):
    try:
        text = tomli_w.dumps(document)
        tree = tomllib.loads(text)
    except ValueError:
        assume(False)  # the writer's own gaps
    if windows:
        text = text.replace("\n", "\r\n")
        tree = tomllib.loads(text)
    found = {}
    for table in tables(text):
        assert tomllib.loads(text[table.start : table.end]) is not None
        for each in table.assignments:
            check_span(text, each)
            found[each.path] = each
    for path, each in found.items():
        value = tree
        for key in path:
            value = value[key] if isinstance(value, dict) else None
        if value is not None:
            assert repr(tomllib.loads(f"k = {text[each.value : each.end]}")["k"]) == repr(value)


def check_span(text, each):
    value = tomllib.loads(f"k = {text[each.value : each.end]}")["k"]
    key = text[each.start : each.value].rstrip(" =")
    assert tomllib.loads(f"{key} = 1")
    if isinstance(value, dict):
        inner = members(text, each)
        assert [item.path[len(each.path)] for item in inner] == list(value)
        for item in inner:
            check_span(text, item)
