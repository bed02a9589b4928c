"""From bytes to a Config, or to all problems of the file: syntax, types, ranges, unknown keys."""

import time

import pytest

from pannier.config.load import MAX_BYTES, parse
from pannier.config.schema import Config, Duration, KvPair, Memory, Model, Peer, Placement, Size
from pannier.errors import ConfigError

MODEL = '[models.a]\npath = "a.gguf"\n'
PLACED = "[placement.chat]\ndevices = [0]\n"


def problems(text):
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ConfigError) as caught:
        parse(data)
    return caught.value.problems


def only(text):
    found = problems(text)
    assert len(found) == 1, [problem.text() for problem in found]
    return found[0]


def test_every_key_is_read():
    config = parse(b"""
[server]
listen = "0.0.0.0:1"
api_key_file = "k"
allowed_hosts = ["gpu.lan"]
[engine]
host = "direct"
env = { A = "" }
rpc = ["10.0.0.7:50052"]
[memory]
reserve = { CUDA0 = "1GiB" }
learn = false
[models."org/Name.v2"]
role = "embed"
path = "x"
context = 8192
slots = 4
kv_type = { k = "q8_0", v = "f16" }
gpu_layers = 12
cpu_moe = "all"
aliases = ["n"]
ttl = "1h30m"
args = ["--temp", ""]
[placement."org/Name.v2"]
devices = [1, "CUDA0"]
tensor_split = [3, 1]
replicas = 2
force = true
[peers.attic]
url = "http://10.0.0.9:8484"
""")
    assert config.server.listen == "0.0.0.0:1"
    assert config.server.allowed_hosts == ("gpu.lan",)
    assert config.engine.env == {"A": ""}
    assert config.engine.rpc == ("10.0.0.7:50052",)
    assert config.memory == Memory(reserve={"CUDA0": Size(2**30)}, learn=False)
    assert config.models == {
        "org/Name.v2": Model(
            role="embed",
            path="x",
            context=8192,
            slots=4,
            kv_type=KvPair(k="q8_0", v="f16"),
            gpu_layers=12,
            cpu_moe="all",
            aliases=("n",),
            ttl=Duration(5400),
            args=("--temp", ""),
        )
    }
    assert config.placement == {
        "org/Name.v2": Placement(devices=(1, "CUDA0"), tensor_split=(3, 1), replicas=2, force=True)
    }
    assert config.peers == {"attic": Peer(url="http://10.0.0.9:8484")}


def test_values_have_their_types_and_not_those_of_toml():
    config = parse(
        b'[memory]\nreserve = "1MiB"\n' + MODEL.encode() + b'ttl = "5s"\naliases=["b"]\n'
    )
    assert type(config.memory.reserve) is Size
    assert type(config.models["a"].ttl) is Duration
    assert type(config.models["a"].aliases) is tuple


def test_one_empty_table_is_a_fleet_without_models():
    assert parse(b"[server]\n") == Config()


@pytest.mark.parametrize("text", ["", " ", "\n\n", "# only a comment\n", "\ufeff", "\r\n# x\r\n"])
def test_a_file_without_any_key_is_refused_with_the_way_to_mean_it(text):
    problem = only(text)
    assert problem.code == "empty"
    assert "[server]" in problem.hint


def test_a_byte_order_mark_and_windows_line_ends_are_accepted():
    text = MODEL + "slots = 2\n"
    assert parse(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()) == parse(text.encode())


def test_a_small_context_lowers_the_default_floor_and_not_one_that_is_written():
    assert parse((MODEL + "context = 2048\n").encode()).models["a"].min_context == 2048
    assert parse((MODEL + "context = 8192\n").encode()).models["a"].min_context == 4096
    assert parse(MODEL.encode()).models["a"].min_context == 4096
    problem = only(MODEL + "context = 2048\nmin_context = 4096\n")
    assert (problem.code, problem.where, problem.line) == ("conflict", "models.a.context", 3)
    assert "2048" in problem.message
    assert "4096" in problem.message


@pytest.mark.parametrize(
    ("text", "code", "line", "words"),
    [
        (b"[server]\nx = \xff\n", "encoding", 2, ["UTF-8", "0xFF"]),
        ("[server]".encode("utf-16"), "encoding", 1, ["UTF-8"]),
        ("[server]\nlisten = localhost\n", "syntax", 2, ["quotes", "column 10"]),
        ("[server\n", "syntax", 1, ["column 8"]),
        ('[server]\nlisten = "a\n', "syntax", 2, ["column"]),
        ('[server]\n\nlisten = """a\n\n', "syntax", 3, ["end of the file"]),
        ("[server]\n[server]\n", "syntax", 2, ["twice"]),
        (MODEL + 'path = "b"\n', "syntax", 3, ["set twice"]),
        ("a = " + "[" * 100_000, "syntax", None, ["nested too deep"]),
        ("[a1]\na = " + "9" * 5000, "syntax", 2, ["too many digits"]),
        ("a." * 300_000 + "b = 1", "syntax", 1, ["dots"]),
        ("#" + "x" * MAX_BYTES, "too-large", None, ["1 MiB"]),
    ],
)
def test_what_is_not_toml_is_one_problem_with_its_place(text, code, line, words):
    problem = only(text)
    assert (problem.code, problem.where, problem.line) == (code, "", line)
    for word in words:
        assert word in problem.message


def test_a_file_of_exactly_one_mebibyte_is_read():
    assert parse(b"[server]\n".ljust(MAX_BYTES, b"#")) == Config()


WHOLE = "expected a whole number from 1 to 256"
WRONG = [
    (MODEL + 'slots = "2"', "models.a.slots", 3, [WHOLE, 'found text "2"'], "without quotes"),
    (MODEL + "slots = true", "models.a.slots", 3, [WHOLE, "found true"], None),
    (MODEL + "slots = 1.0", "models.a.slots", 3, [WHOLE, "found the number 1.0"], None),
    (MODEL + "slots = inf", "models.a.slots", 3, [WHOLE, "number inf"], None),
    (MODEL + "slots = []", "models.a.slots", 3, [WHOLE, "found an empty list"], None),
    (MODEL + "slots = { n = 1 }", "models.a.slots", 3, [WHOLE, "found a table"], None),
    (MODEL + "slots = 1979-05-27", "models.a.slots", 3, [WHOLE, "found a date or time"], None),
    (MODEL + "preload = 1", "models.a.preload", 3, ["true or false", "number 1"], None),
    (MODEL + 'keep = "true"', "models.a.keep", 3, ["true or false", '"true"'], "without quotes"),
    ("[models.a]\npath = 3", "models.a.path", 2, ["text in quotes", "number 3"], "put it in"),
    (MODEL + "role = 1", "models.a.role", 3, ['"embed" or "rerank"', "number 1"], None),
    (MODEL + 'args = "-x"', "models.a.args", 3, ["a list of text in quotes"], 'write ["-x"]'),
    (MODEL + 'args = [\n"-x",\n1]', "models.a.args[1]", 5, ["in quotes", "number 1"], "quotes"),
    (MODEL + "env = { A = 1 }", "models.a.env.A", 3, ["text in quotes"], "put it in quotes"),
    (MODEL + "env = []", "models.a.env", 3, ["a table of text in quotes", "an empty list"], None),
    (MODEL + "ttl = 90", "models.a.ttl", 3, ["duration with its unit", "number 90"], "h, m, s, ms"),
    (MODEL + "kv_type = 8", "models.a.kv_type", 3, ['"q5_1" or a table with k, v'], None),
    (MODEL + "gpu_layers = true", "models.a.gpu_layers", 3,
     ['expected "auto", "all" or a whole number from 0 to 10000', "found true"], None),
    ("[memory]\nreserve = 512", "memory.reserve", 2, ["size with its unit", "number 512"], "MiB"),
    ("[memory.reserve]\nCUDA0 = 1", "memory.reserve.CUDA0", 2, ["size with its unit"], "units: B"),
    ("models = 3", "models", 1, ["a table of a table", "number 3"], None),
    ("[models]\na = 3", "models.a", 2, ["expected a table", "number 3"], None),
    ("[[models.a]]\npath = 'x'", "models.a", 1, ["expected a table", "found a list"], None),
    ('[server]\napi_key_file = false', "server.api_key_file", 2, ["text in quotes"], "quotes"),
    ('[placement.chat]\ndevices = 0', "placement.chat.devices", 2, ["at least one entry"], None),
    ('[placement.chat]\ndevices = [0,\n1.0]', "placement.chat.devices[1]", 3,
     ["a whole number from 0 to 1023 or text in quotes", "the number 1.0"], None),
    (PLACED + "tensor_split = [true]", "placement.chat.tensor_split[0]", 3, ["found true"], None),
    (PLACED + 'replicas = "2"', "placement.chat.replicas", 3, ["whole number"], "without quotes"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "where", "line", "words", "hint"), WRONG)
def test_a_value_of_the_wrong_type_is_refused_in_plain_words(text, where, line, words, hint):
    problem = only(text)
    assert (problem.code, problem.where, problem.line) == ("wrong-type", where, line)
    for word in words:
        assert word in problem.message
    assert (problem.hint is None) if hint is None else (hint in problem.hint)


REFUSED = [
    (MODEL + "slots = 0", "out-of-range", "models.a.slots", 3, "from 1 to 256, found the number 0"),
    (MODEL + "slots = 257", "out-of-range", "models.a.slots", 3, "the number 257"),
    (MODEL + "context = 0", "out-of-range", "models.a.context", 3, "from 1 to 16777216"),
    (MODEL + "min_context = -1", "out-of-range", "models.a.min_context", 3, "the number -1"),
    (MODEL + "gpu_layers = -1", "out-of-range", "models.a.gpu_layers", 3, "from 0 to 10000"),
    (MODEL + f"batch = {10**40}", "out-of-range", "models.a.batch", 3, "too many digits"),
    (PLACED + "replicas = 0", "out-of-range", "placement.chat.replicas", 3, "from 1 to 64"),
    (PLACED + "tensor_split = [0]", "out-of-range", "placement.chat.tensor_split[0]", 3, "from 1"),
    ("[placement.chat]\ndevices = [-1]", "out-of-range", "placement.chat.devices[0]", 2, "from 0"),
    ("[placement.chat]\ndevices = []", "empty-list", "placement.chat.devices", 2, "at least one"),
    ("[models.a]\npath = ''", "empty-text", "models.a.path", 2, "not empty"),
    ("[server]\napi_key_file = ''", "empty-text", "server.api_key_file", 2, "not empty"),
    ("[models.'']\npath = 'x'", "empty-text", 'models.""', 1, "must not be empty"),
    (MODEL + 'ttl = "5 min"', "bad-unit", "models.a.ttl", 3, 'h, m, s, ms, in this order, found'),
    ('[memory]\nreserve = "1 gig"', "bad-unit", "memory.reserve", 2, 'TiB, found text "1 gig"'),
    (MODEL + 'kv_type = { k = "f16" }', "missing-key", "models.a.kv_type.v", 3, 'required: "f32"'),
    ("[models.a]\nslots = 1", "missing-key", "models.a.path", 1, "required: text"),
    ("[placement.chat]\nreplicas = 1", "missing-key", "placement.chat.devices", 1, "at least one"),
    ("[peers.x]", "missing-key", "peers.x.url", 1, "required"),
    (MODEL + 'args = ["a\\nb"]', "bad-text", "models.a.args[0]", 3, "a line break"),
    (MODEL + 'args = ["a\\u0085b"]', "bad-text", "models.a.args[0]", 3, "U+0085"),
    (MODEL + 'args = ["a\\u2028b"]', "bad-text", "models.a.args[0]", 3, "U+2028"),
    (MODEL + 'env = { A = "\\u2029" }', "bad-text", "models.a.env.A", 3, "U+2029"),
    (MODEL + 'draft = "a\\u0000"', "bad-text", "models.a.draft", 3, "U+0000"),
    ('[models."a\\tb"]\npath = "x"', "bad-text", 'models."a\\u0009b"', 1, "U+0009"),
    (MODEL + 'args = ["${PORT}"]', "bad-text", "models.a.args[0]", 3, 'must not hold "${"'),
    ("[models.'${x}']\npath = 'x'", "bad-text", 'models."${x}"', 1, 'must not hold "${"'),
    (MODEL + 'aliases = ["a\\u007f"]', "bad-text", "models.a.aliases[0]", 3, "U+007F"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "where", "line", "words"), REFUSED)
def test_a_value_out_of_bounds_is_refused_with_what_is_allowed(text, code, where, line, words):
    problem = only(text)
    assert (problem.code, problem.where, problem.line) == (code, where, line)
    assert words in problem.message


@pytest.mark.parametrize(
    ("text", "where", "line", "hint"),
    [
        ("[modles.a]\npath = 'x'", "modles", 1, 'did you mean "models"?'),
        (MODEL + "contxt = 1", "models.a.contxt", 3, 'did you mean "context"?'),
        ("[engine]\nllama-server = 'x'", "engine.llama-server", 2, 'did you mean "llama_server"?'),
        ("[server]\nListen = 'x'", "server.Listen", 2, 'did you mean "listen"?'),
        (PLACED + "device = [0]", "placement.chat.device", 3, 'did you mean "devices"?'),
        (
            MODEL + 'kv_type = {k="f16", v="f16", vv=1}',
            "models.a.kv_type.vv",
            3,
            'did you mean "v"',
        ),
    ],
)
def test_an_unknown_key_has_the_nearest_known_one_as_a_hint(text, where, line, hint):
    problem = only(text)
    assert (problem.code, problem.where, problem.line) == ("unknown-key", where, line)
    assert problem.message == "unknown key"
    assert hint in problem.hint


def test_an_unknown_key_near_nothing_is_told_with_all_that_is_allowed():
    problem = only(PLACED + "main_gpu = 0")
    assert problem.hint is None
    assert problem.message == ("unknown key; allowed here: devices, tensor_split, replicas, force")


@pytest.mark.parametrize(
    ("text", "where", "allowed", "hint"),
    [
        (MODEL + "role = 'chatt'", "models.a.role", '"chat", "vision"', 'did you mean "chat"?'),
        (MODEL + "kv_type = 'q8'", "models.a.kv_type", '"iq4_nl"', 'did you mean "q8_0"?'),
        (MODEL + "gpu_layers = '12'", "models.a.gpu_layers", '"all" or a whole', "without quotes"),
        ("[engine]\nhost = 'docker'", "engine.host", '"auto", "llama-swap" or "direct"', None),
    ],
)
def test_a_word_that_is_not_a_choice_is_refused_with_the_choices(text, where, allowed, hint):
    problem = only(text)
    assert (problem.code, problem.where) == ("not-allowed", where)
    assert allowed in problem.message
    assert (problem.hint is None) if hint is None else (hint in problem.hint)


def test_all_problems_are_told_at_once_in_the_order_of_the_file():
    found = problems("""\
[server]
listen = "0.0.0.0:99999"
[models.a]
slots = "2"
role = "chatt"
[models.b]
path = "b"
aliases = ["a"]
context = 100
min_context = 200
[placement.nobody]
devices = []
extra = 1
""")
    assert [(p.line, p.code, p.where) for p in found] == [
        (2, "bad-address", "server.listen"),
        (3, "missing-key", "models.a.path"),
        (4, "wrong-type", "models.a.slots"),
        (5, "not-allowed", "models.a.role"),
        (8, "duplicate", "models.b.aliases[0]"),
        (9, "conflict", "models.b.context"),
        (11, "unknown-target", "placement.nobody"),
        (12, "empty-list", "placement.nobody.devices"),
        (13, "unknown-key", "placement.nobody.extra"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '[server]\nlisten = "0.0.0.0:1"\napi_key_file = 1',
        MODEL + "context = 100\nmin_context = '200'",
        MODEL + "batch = '8192'\nubatch = 4096",
        MODEL + "ubatch = 1.0",
        MODEL + "kv_type = 'q8_0'\nflash_attention = false",
        "[placement.chat]\ndevices = 3\ntensor_split = [1, 2]",
        "[placement.chat]\ndevices = [0, true]\ntensor_split = [1, 2]",
        "[placement.chat]\ndevices = [true, 0]",
        "[models]\na = 3\n" + "[placement.a]\ndevices = [0]",
        "models = 3\n" + "[placement.a]\ndevices = [0]",
        "[models.a]\npath = 'x'\nrole = 'embd'\ndraft = 'y'",
        "[models.a]\npath = 'x'\naliases = [1, 1.5]\n[peers.x]\nurl = 'http://x'",
    ],
)
def test_a_value_that_cannot_be_read_causes_no_second_finding(text):
    assert {problem.code for problem in problems(text)} <= {"wrong-type", "not-allowed"}


def test_a_name_that_cannot_be_read_is_no_owner_of_a_name():
    found = problems(MODEL + "aliases = [1, '']")
    assert [problem.code for problem in found] == ["wrong-type", "bad-name"]


def test_guessing_ends_where_a_file_has_more_slips_than_anyone_makes():
    found = problems("[server]\n" + "".join(f"listen{n} = 1\n" for n in range(1000)))
    assert len(found) == 1000
    assert sum(problem.hint is not None for problem in found) == 200


def test_what_is_printed_has_no_control_characters_and_is_short():
    text = only('[models.a]\npath = "' + "\\u001b[31m" + "x" * 5000 + '"').text()
    assert text.isprintable()
    assert len(text) < 200


def test_the_worst_files_are_refused_in_seconds():
    started = time.monotonic()
    unknown = "".join(f"key{n} = 1\n" for n in range(20_000))
    assert len(problems(unknown)) == 20_000
    problems("[models]\n" + "".join(f"a{n} = 1\n" for n in range(20_000)))
    problems("[placement]\n" + "".join(f"a{n}.devices = [0]\n" for n in range(10_000)))
    problems("a" * (MAX_BYTES - 5) + " = 1")
    problems("x = [" + "1," * 100_000 + "]")
    problems("".join(f"[[a.b{n}]]\n" for n in range(20_000)))
    problems('x = """' + '"a' * 400_000 + '"""')
    assert time.monotonic() - started < 20
