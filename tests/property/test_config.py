"""Properties of the config reader: it never fails in another way, and reads what was written."""

import datetime
import tomllib

import msgspec
import tomli_w
import tomlkit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pannier.config.load import parse
from pannier.config.locate import key_lines, key_path
from pannier.config.schema import Config, Duration, KvPair, Model, Placement, Size, schema_json
from pannier.config.shape import quote
from pannier.config.units import encode_unit
from pannier.errors import ConfigError

# A busy machine is no finding.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# --- units ----------------------------------------------------------------------------------------


@calm
@given(st.integers(0, 2**63 - 1))
def test_a_size_that_was_written_is_read_as_the_same_size(count):
    assert Size.parse(str(Size(count))) == count


@calm
@given(st.integers(0, 10**12))
def test_a_duration_that_was_written_is_read_as_the_same_duration(milliseconds):
    seconds = milliseconds / 1000
    assert Duration.parse(str(Duration(seconds))) == seconds


@calm
@given(st.one_of(st.text(max_size=12), st.from_regex(r"[0-9.]{1,5} ?[kmgtKMGTiB]{0,3}")))
def test_a_size_is_read_or_refused_with_a_message(text):
    try:
        outcome = str(Size.parse(text))
    except ValueError as error:
        outcome = str(error)
    assert outcome.startswith("expected a size") or Size.parse(outcome) == Size.parse(text)


# --- lines ----------------------------------------------------------------------------------------

KEYS = st.one_of(
    st.sampled_from(["a", "b", "c-d", "a.b", "", "é", 'q"', "'", "#", "=", "[x]", "two words"]),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6),
)
SCALARS = st.one_of(
    st.integers(-(2**60), 2**60),
    st.booleans(),
    st.floats(allow_nan=False),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(["a\nb", "x = 1\n[t]\n", '"""', "'''", "#", "\\", "]", "}", ","]),
    st.datetimes().map(lambda moment: moment.replace(microsecond=0)),
    st.dates(min_value=datetime.date(1000, 1, 1)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=5)


def paths(value, path=()):
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items if isinstance(value, dict | list) else ():
        yield from (
            paths(inner, (*path, key)) if isinstance(inner, dict | list) else [(*path, key)]
        )


def check_lines(text):
    """Every key has a line, no other has one, and a key of scalars stands on its line."""
    tree = tomllib.loads(text)
    lines = key_lines(text)
    assert set(lines) == set(paths(tree))
    rows = text.replace("\r\n", "\n").split("\n")
    assert all(1 <= line <= len(rows) for line in lines.values())
    for path, line in lines.items():
        key = path[-1]
        if isinstance(key, str) and key.isascii() and key.isalnum():
            assert key in rows[line - 1]


@calm
@given(DOCUMENTS, st.booleans())
def test_every_key_of_a_document_has_a_line(document, multiline):
    try:
        text = tomli_w.dumps(document, multiline_strings=multiline)
        tomllib.loads(text)
    except ValueError:
        assume(False)  # the writer's own gaps, such as a lone carriage return in a long string
    check_lines(text)


@calm
@given(DOCUMENTS)
def test_windows_line_ends_change_no_line(document):
    text = tomli_w.dumps(document)
    assert key_lines(text.replace("\n", "\r\n")) == key_lines(text)


MARKED = st.recursive(
    st.just(0),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b.c", "d e"]), inner, max_size=3),
    max_leaves=10,
)


@calm
@given(st.dictionaries(st.sampled_from("xyz"), MARKED, max_size=3), st.data())
def test_a_key_is_found_on_the_very_line_where_it_was_put(document, data):
    """Every value is made the number of its own line, so that the parser itself is the judge."""
    text = tomli_w.dumps(document)
    if data.draw(st.booleans()):
        noise = st.sampled_from(["# z = 1", "", "   ", "#[z]", "# '''"])
        text = "\n".join(
            f"{data.draw(noise)}\n{row}  # x = 9" if row else row for row in text.split("\n")
        )
    rows = [
        row.replace("= 0", f"= {number}") for number, row in enumerate(text.split("\n"), start=1)
    ]
    marked = "\n".join(rows)

    def values(value, path=()):
        for key, inner in value.items():
            if isinstance(inner, dict):
                yield from values(inner, (*path, key))
            else:
                yield (*path, key), inner

    lines = key_lines(marked)
    for path, number in values(tomllib.loads(marked)):
        assert lines[path] == number


@calm
@given(
    st.lists(st.text(alphabet="ab#]'\"\\\n,", max_size=5), max_size=5),
    st.booleans(),
    st.integers(0, 3),
)
def test_entries_of_a_list_written_by_tomlkit_have_lines(entries, multiline, blank):
    document = tomlkit.document()
    for _ in range(blank):
        document.add(tomlkit.comment("k = ["))
    array = tomlkit.array()
    for entry in entries:
        array.append(tomlkit.string(entry))
    document["k"] = array.multiline(multiline)
    text = tomlkit.dumps(document)
    lines = key_lines(text)
    assert lines[("k",)] == blank + 1
    for number in range(len(entries)):
        assert lines[("k", number)] == blank + 1 + (number + 1 if multiline else 0)


@calm
@given(st.lists(KEYS, min_size=1, max_size=4))
def test_a_key_path_is_one_printable_line_that_keeps_keys_apart(keys):
    assert key_path(tuple(keys)).isprintable()
    assert quote("".join(keys)).isprintable()


@calm
@given(st.lists(st.text(alphabet='ab."\\\t', max_size=4), min_size=1, max_size=3))
def test_a_key_path_is_read_by_toml_as_the_same_path(keys):
    tree = tomllib.loads(f"{key_path(tuple(keys))} = 1")
    for key in keys:
        tree = tree[key]
    assert tree == 1


# --- the whole reader -----------------------------------------------------------------------------

WORDS = [
    "[server]\n", "[models.a]\n", "[[models]]\n", "[placement.chat]\n", "[memory]\n", "[peers.p]\n",
    "path", "listen", "reserve", "devices", "slots", "kv_type", "aliases", "env", "url", "ttl",
    " = ", "\n", "1", "-1", "1.5", "true", '"auto"', '"a"', '"1MiB"', '"0s"', "[", "]", "{", "}",
    ",", "'", '"', '"""', "#", ".", "\\u0000", "\x00", "\r", "\r\n", "\ufeff", "${",
    "nan", "1979-05-27",
]  # fmt: skip


def read(data):
    """The config and its problems; any other exception is the defect that is looked for."""
    try:
        return parse(data), ()
    except ConfigError as error:
        return None, error.problems


def check_outcome(data):
    config, problems = read(data)
    assert bool(problems) == (config is None)
    for problem in problems:
        assert problem.code
        assert problem.message
        assert problem.text().isprintable()


@calm
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_as_a_config_error(data):
    check_outcome(data)


@calm
@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
def test_any_mixture_of_toml_is_read_or_refused_as_a_config_error(text):
    check_outcome(text.encode())


SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "server": st.dictionaries(
            st.sampled_from(["listen", "api_key_file", "allowed_hosts", "x"]), VALUES, max_size=3
        ),
        "memory": st.dictionaries(st.sampled_from(["reserve", "learn"]), VALUES, max_size=2),
        "models": st.dictionaries(
            st.sampled_from(["a", "b#1", "chat", ""]),
            st.dictionaries(
                st.sampled_from([field.name for field in msgspec.structs.fields(Model)]),
                VALUES,
                max_size=4,
            ),
            max_size=3,
        ),
        "placement": st.dictionaries(
            st.sampled_from(["a", "chat", "x"]),
            st.dictionaries(
                st.sampled_from([field.name for field in msgspec.structs.fields(Placement)]),
                VALUES,
                max_size=4,
            ),
            max_size=2,
        ),
        "peers": VALUES,
        "modles": VALUES,
    },
)


@calm
@given(SECTIONS)
def test_any_values_under_known_keys_are_read_or_refused_with_lines(document):
    assume(document)
    config, problems = read(tomli_w.dumps(document).encode())
    assert bool(problems) == (config is None)
    assert all(problem.line and problem.where for problem in problems)


PLAIN = st.text(
    alphabet=st.characters(
        exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="$,\\#/"
    ),
    min_size=1,
    max_size=12,
)
NAMES = PLAIN.filter(lambda name: name == name.strip())
ARGS = st.lists(PLAIN.map(lambda text: f"+{text}"), max_size=3).map(tuple)
ENVS = st.dictionaries(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), PLAIN, max_size=2
)
KV_TYPES = st.sampled_from(["f16", "bf16", "q8_0", "q4_0"])
LAYERS = st.sampled_from(["auto", "all"]) | st.integers(0, 10_000)


@st.composite
def models(draw):
    context = draw(st.none() | st.integers(1, 10**6))
    batch = draw(st.integers(1, 4096))
    return Model(
        role=draw(st.sampled_from(["chat", "vision"])),
        path=draw(PLAIN),
        mmproj=draw(st.sampled_from(["auto", "none"]) | PLAIN),
        context=context,
        min_context=draw(st.integers(1, context or 10**6)),
        slots=draw(st.integers(1, 256)),
        kv_type=draw(KV_TYPES | st.builds(KvPair, k=KV_TYPES, v=KV_TYPES)),
        gpu_layers=draw(LAYERS),
        cpu_moe=draw(LAYERS),
        batch=batch,
        ubatch=draw(st.integers(1, batch)),
        draft=draw(st.none() | PLAIN),
        preload=draw(st.booleans()),
        keep=draw(st.booleans()),
        ttl=Duration(draw(st.integers(0, 10**9)) / 1000),
        args=draw(ARGS),
        env=draw(ENVS),
    )


@st.composite
def placements(draw):
    devices = draw(
        st.lists(st.integers(0, 15) | st.sampled_from(["CUDA0", "RPC1"]), min_size=1, unique=True)
    )
    shares = st.lists(st.integers(1, 9), min_size=len(devices), max_size=len(devices)).map(tuple)
    return Placement(
        devices=tuple(devices),
        tensor_split=draw(st.none() | shares),
        replicas=draw(st.integers(1, 4)),
        force=draw(st.booleans()),
    )


@st.composite
def configs(draw):
    named = draw(st.dictionaries(NAMES, models(), max_size=3))
    targets = st.sampled_from([*named, "chat", "embed"])
    return Config(models=named, placement=draw(st.dictionaries(targets, placements(), max_size=2)))


def toml(config):
    """The config as a file: TOML has no null, so what is absent is left out."""
    plain = msgspec.to_builtins(config, enc_hook=encode_unit)

    def without_null(value):
        if isinstance(value, dict):
            return {key: without_null(inner) for key, inner in value.items() if inner is not None}
        return list(value) if isinstance(value, tuple) else value

    return tomli_w.dumps(without_null(plain))


@calm
@given(configs())
def test_a_config_that_was_written_is_read_as_the_same_config(config):
    assert parse(toml(config).encode()) == config


def test_the_words_of_the_fuzz_are_those_of_the_schema():
    schema = schema_json().decode()
    for word in ("path", "listen", "reserve", "devices", "kv_type", "aliases", "url", "ttl"):
        assert f'"{word}"' in schema
