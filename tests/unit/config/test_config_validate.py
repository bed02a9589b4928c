"""The rules between values: names, arguments, addresses, placement."""

import pytest

from pannier.config.load import parse
from pannier.errors import ConfigError


def model(extra="", name="a"):
    return f'[models."{name}"]\npath = "x.gguf"\n{extra}\n'


def problems(text):
    with pytest.raises(ConfigError) as caught:
        parse(text.encode())
    return caught.value.problems


def only(text):
    found = problems(text)
    assert len(found) == 1, [problem.text() for problem in found]
    return found[0]


@pytest.mark.parametrize(
    ("text", "where", "line", "words"),
    [
        (model() + model("aliases = ['a']", "b"), "models.b.aliases[0]", 6,
         ['"a" is an alias of "b", but already the id of model "a" (line 1)']),
        (model("aliases = ['b']") + model("", "b"), "models.b", 4,
         ['the id of model "b"', 'already an alias of "a" (line 3)']),
        (model("aliases = ['x']") + model("aliases = [\n'y',\n'x']", "b"), "models.b.aliases[1]", 8,
         ['"x" is an alias of "b", but already an alias of "a" (line 3)']),
        (model("aliases = ['a']"), "models.a.aliases[0]", 3, ["already the id"]),
        (model("aliases = ['x', 'x']"), "models.a.aliases[1]", 3, ["already an alias"]),
        (model() + "[peers.a]\nurl = 'http://x'", "peers.a", 4, ["name of peer", "model"]),
        ("[peers.a]\nurl = 'http://x'\n" + model(), "models.a", 3, ["id of model", "peer"]),
        (model("aliases = ['p']") + "[peers.p]\nurl = 'http://x'", "peers.p", 4, ["alias of"]),
    ],
)  # fmt: skip
def test_a_name_with_two_owners_is_refused_at_the_second_one(text, where, line, words):
    problem = only(text)
    assert (problem.code, problem.where, problem.line) == ("duplicate", where, line)
    for word in words:
        assert word in problem.message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a,b", '"," or'),
        ("a#1", "replica"),
        ("a#0", "replica"),
        ("/a", 'begin with "/"'),
        (" a", "space"),
        ("a ", "space"),
        ("x" * 129, "at most 128 characters, found 129"),
        ("a\\\\b", 'must not hold "," or'),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_as_an_id_and_as_an_alias(name, words):
    as_id = only(model(name=name))
    as_alias = only(model(f'aliases = ["{name}"]'))
    assert (as_id.code, as_id.line) == ("bad-name", 1)
    assert (as_alias.code, as_alias.where) == ("bad-name", "models.a.aliases[0]")
    assert words in as_id.message
    assert words in as_alias.message


def test_an_empty_alias_is_refused():
    assert only(model("aliases = ['']")).code == "bad-name"


@pytest.mark.parametrize(
    "name", ["org/Model", "a#b", "a#1b", "qwen3:8b", "é", "x" * 128, "a.b", "#"]
)
def test_names_that_people_use_are_accepted(name):
    assert name in parse(model(name=name).encode()).models


@pytest.mark.parametrize("flag", ["--port", "--host", "-m", "--model", "-a", "--alias"])
@pytest.mark.parametrize("form", ["{}", "{}=x"])
@pytest.mark.parametrize("section", ["models.a", "engine"])
def test_a_flag_that_is_pannier_s_own_is_refused_with_the_reason(flag, form, section):
    args = f'args = ["--temp", "{form.format(flag)}"]'
    problem = only(model(args) if section == "models.a" else f"[engine]\n{args}")
    assert (problem.code, problem.where) == ("own-flag", f"{section}.args[1]")
    assert f'"{flag}" is set by Pannier' in problem.message
    assert problem.hint


def test_flags_that_only_begin_alike_are_accepted():
    args = ["--models-dir", "-ma", "--ported", "--alias-x", "-ngl", "99", "--model-draft", ""]
    assert parse(model(f"args = {args}").encode()).models["a"].args == tuple(args)


def test_an_argument_that_llama_swap_takes_for_a_comment_is_refused():
    problem = only("[engine]\nargs = ['a#b', '#c']")
    assert (problem.code, problem.where, problem.line) == ("bad-arg", "engine.args[1]", 2)
    assert "comment" in problem.hint


@pytest.mark.parametrize("name", ["1A", "A-B", "A B", "Ä", "A="])
@pytest.mark.parametrize("section", ["models.a", "engine"])
def test_a_variable_name_that_no_shell_knows_is_refused(name, section):
    env = f'env = {{ "{name}" = "1" }}'
    problem = only(model(env) if section == "models.a" else f"[engine]\n{env}")
    assert problem.code == "bad-name"
    assert problem.where == f'{section}.env."{name}"' or problem.where == f"{section}.env.{name}"
    assert "letters, digits and _" in problem.message


@pytest.mark.parametrize(
    ("extra", "where", "words", "hint"),
    [
        ("context = 100\nmin_context = 101", "context", "context 100 is below min_context 101",
         "lower min_context"),
        ("batch = 64", "ubatch", "ubatch 512 is above batch 64", "lower ubatch"),
        ("batch = 64\nubatch = 65", "ubatch", "ubatch 65 is above batch 64", "raise batch"),
        ("kv_type = 'q8_0'\nflash_attention = 'off'", "kv_type", '"q8_0" need flash attention',
         'flash_attention to "auto"'),
        ("kv_type = {k='f16', v='iq4_nl'}\nflash_attention = 'off'", "kv_type.v", "iq4_nl", "f16"),
        ("role = 'embed'\ndraft = 'd'", "draft", 'role "embed" writes no text', "leave draft out"),
        ("role = 'rerank'\ndraft = 'd'", "draft", 'role "rerank"', "leave draft out"),
    ],
)  # fmt: skip
def test_values_that_contradict_each_other_are_refused(extra, where, words, hint):
    problem = only(model(extra))
    assert (problem.code, problem.where) == ("conflict", f"models.a.{where}")
    assert words in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    "extra",
    [
        "context = 100\nmin_context = 100",
        "batch = 64\nubatch = 64",
        "kv_type = {k='q8_0', v='bf16'}\nflash_attention = 'off'",
        "kv_type = 'q8_0'",
        "role = 'vision'\ndraft = 'd'\nmmproj = 'none'",
    ],
)
def test_values_that_agree_are_accepted(extra):
    assert parse(model(extra).encode()).models["a"].path == "x.gguf"


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.168.0.2", "gpu.lan"])
def test_listening_to_others_needs_a_key(host):
    problem = only(f'[server]\n\nlisten = "{host}:8484"')
    assert (problem.code, problem.where, problem.line) == ("no-api-key", "server.listen", 3)
    assert "other machines" in problem.message
    assert "api_key_file" in problem.hint
    assert "127.0.0.1" in problem.hint
    keyed = f'[server]\nlisten = "{host}:8484"\napi_key_file = "k"'
    assert parse(keyed.encode()).server.api_key_file == "k"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_listening_on_loopback_needs_no_key(host):
    assert parse(f'[server]\nlisten = "{host}:0"'.encode()).server.api_key_file is None


def test_an_admin_key_alone_does_not_open_the_door():
    text = '[server]\nlisten = "0.0.0.0:1"\nadmin_key_file = "k"'
    assert only(text).code == "no-api-key"


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("[server]\nlisten = '8484'", "server.listen", 'expected "address:port"'),
        ("[server]\nallowed_hosts = ['a', 'b:1']", "server.allowed_hosts[1]", "without a port"),
        ("[server]\nallowed_origins = ['*']", "server.allowed_origins[0]", "port only"),
        ("[engine]\nrpc = ['10.0.0.1']", "engine.rpc[0]", 'expected "address:port"'),
        ("[engine]\nrpc = ['10.0.0.1:0']", "engine.rpc[0]", "from 1 to 65535"),
        ("[peers.x]\nurl = 'ftp://x'", "peers.x.url", "http or https"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused(text, where, words):
    problem = only(text)
    assert (problem.code, problem.where, problem.line) == ("bad-address", where, 2)
    assert words in problem.message
    assert "found" in problem.message


def test_placement_is_for_roles_and_for_ids():
    text = model() + "[placement.rerank]\ndevices = [0]\n[placement.a]\ndevices = [0]\n"
    assert set(parse(text.encode()).placement) == {"rerank", "a"}


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("chatt", 'did you mean "chat"?'),
        ("Chat", 'did you mean "chat"?'),
        ("qwen3-8", 'did you mean "qwen3-8b"?'),
        ("gpt", 'it is an alias; write the id "qwen3-8b"'),
        ("zzz", None),
    ],
)
def test_placement_of_what_is_unknown_is_refused_with_the_nearest_name(target, hint):
    text = model("aliases = ['gpt']", "qwen3-8b") + f"[placement.{target}]\ndevices = [0]"
    problem = only(text)
    assert (problem.code, problem.where, problem.line) == (
        "unknown-target", f"placement.{target}", 4,
    )  # fmt: skip
    assert f'found "{target}"' in problem.message
    assert "chat, vision, embed, rerank" in problem.message
    assert problem.hint == hint


@pytest.mark.parametrize(
    ("body", "code", "where", "words"),
    [
        ("devices = [0, 1, 0]", "duplicate", "devices[2]", "the device 0 is listed twice"),
        ("devices = ['G', 'G']", "duplicate", "devices[1]", 'the device "G" is listed twice'),
        ("devices = ['0']", "bad-device", "devices[0]", "an index without quotes"),
        ("devices = [0, 1]\ntensor_split = [1]", "conflict", "tensor_split", "2 devices, found 1"),
        ("devices = [0]\ntensor_split = []", "conflict", "tensor_split", "1 devices, found 0"),
    ],
)
def test_a_placement_that_cannot_be_meant_is_refused(body, code, where, words):
    problem = only(f"[placement.chat]\n{body}")
    assert (problem.code, problem.where) == (code, f"placement.chat.{where}")
    assert words in problem.message


def test_one_device_with_one_share_is_accepted():
    config = parse(b"[placement.chat]\ndevices = ['CUDA0']\ntensor_split = [7]")
    assert config.placement["chat"].tensor_split == (7,)
