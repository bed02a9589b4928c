"""What an edit restarts: a group's identity changes with what runs, and with nothing else."""

import msgspec
import pytest
from tests.fakes.values import LAUNCHER, config_of, files_of, groups_of, machine

from pannier.config.schema import Engine, Model
from pannier.plan.placement import make_plan
from pannier.render.argv import EngineFlavour
from pannier.render.groups import render_plan

BASE = """
[models.a]
path = "/m/a.gguf"
context = 4096
[models.other]
path = "/m/other.gguf"
"""


def identity(text, name="a", inventory=None, **options):
    config = config_of(text)
    return groups_of(config, inventory or machine(48, 48), files_of(config), **options)[
        name
    ].identity


def with_keys(*lines):
    return BASE.replace("context = 4096\n", "context = 4096\n" + "".join(f"{x}\n" for x in lines))


CHANGES = {
    "role": BASE.replace("context", 'role = "rerank"\ncontext'),
    "path": BASE.replace("/m/a.gguf", "/m/b.gguf"),
    "context": BASE.replace("4096", "8192"),
    "slots": with_keys("slots = 2"),
    "kv_type": with_keys('kv_type = "q8_0"'),
    "flash_attention": with_keys('flash_attention = "on"'),
    "gpu_layers": with_keys("gpu_layers = 10"),
    "cpu_moe": with_keys("cpu_moe = 3"),
    "batch": with_keys("batch = 1024"),
    "ubatch": with_keys("ubatch = 256"),
    "preload": with_keys("preload = false"),
    "ttl": with_keys('ttl = "250ms"'),
    "args": with_keys('args = ["--temp", "0"]'),
    "env": with_keys('env = { A = "1" }'),
}
"""Keys of a model that are part of what runs."""

NO_CHANGES = {
    "aliases": with_keys('aliases = ["x"]'),
    "min_context": with_keys("min_context = 2048"),
    "keep": with_keys("keep = true"),
}
"""Keys that only we act on, and that a running engine need not learn of."""

BY_FILES = {"mmproj", "draft"}
"""Keys that reach the command line through the files that are found; see below."""


def test_the_tables_below_speak_of_every_key_of_a_model():
    assert {*CHANGES, *NO_CHANGES, *BY_FILES} == set(Model.__struct_fields__)


@pytest.mark.parametrize("key", CHANGES)
def test_a_key_that_matters_changes_the_identity_of_its_group_alone(key):
    assert identity(CHANGES[key]) != identity(BASE)
    assert identity(CHANGES[key], "other") == identity(BASE, "other")


@pytest.mark.parametrize("key", NO_CHANGES)
def test_a_key_that_no_engine_sees_changes_nothing(key):
    assert identity(NO_CHANGES[key]) == identity(BASE)


@pytest.mark.parametrize("part", ["projector", "draft"])
def test_another_projector_or_draft_changes_the_identity(part):
    config = config_of(BASE)
    files = files_of(config)
    other = {**files, "a": msgspec.structs.replace(files["a"], **{part: "/m/new.gguf"})}
    before = groups_of(config, machine(48), files)["a"].identity
    assert groups_of(config, machine(48), other)["a"].identity != before


@pytest.mark.parametrize(
    ("table", "same"),
    [
        ('[engine]\nargs = ["-t", "8"]\n', False),
        ('[engine.env]\nA = "1"\n', False),
        # Nobody here uses a device of another machine.
        ('[engine]\nrpc = ["a:1"]\n', True),
        ("[server]\nallow_http_placement = true\n", True),
        ('[engine]\nllama_swap = "/opt/llama-swap"\n', True),
        ("[memory]\nlearn = false\n", True),
    ],
)
def test_the_engine_table_concerns_every_group_and_the_server_table_none(table, same):
    assert (identity(BASE + table) == identity(BASE)) is same


def test_every_key_of_the_engine_table_is_thought_of():
    # host and llama_server arrive as the host and the path that were chosen.
    assert set(Engine.__struct_fields__) == {
        "args",
        "env",
        "rpc",
        "llama_swap",
        "host",
        "llama_server",
    }


def test_another_host_or_another_engine_changes_the_identity():
    assert identity(BASE, host="direct") != identity(BASE)
    assert identity(BASE, engine="/opt/other") != identity(BASE)


def test_another_device_or_split_changes_the_identity():
    first = identity(BASE + "[placement.a]\ndevices = [0]\n")
    second = identity(BASE + "[placement.a]\ndevices = [1]\n")
    both = identity(BASE + "[placement.a]\ndevices = [0, 1]\n")
    uneven = identity(BASE + "[placement.a]\ndevices = [0, 1]\ntensor_split = [3, 1]\n")
    assert len({first, second, both, uneven}) == 4


def test_the_order_of_models_and_of_variables_does_not_matter():
    reordered = BASE.split("[models.other]")
    reordered = f"[models.other]{reordered[1]}{reordered[0]}"
    assert identity(reordered) == identity(BASE)
    one = with_keys('env = { A = "1", B = "2" }')
    two = with_keys('env = { B = "2", A = "1" }')
    assert identity(one) == identity(two)


def test_a_model_that_comes_or_goes_leaves_the_others_alone():
    more = BASE + '[models.third]\npath = "/m/third.gguf"\n'
    assert identity(more) == identity(BASE)


def test_a_swap_set_that_gains_a_member_is_another_one():
    text = "".join(f'[models.{name}]\npath = "/m/{name}.gguf"\n' for name in "abc")
    two = text.partition("[models.c]")[0]
    small = machine(6)
    assert (
        groups_of(config_of(text), small)["swap-CUDA0"].identity
        != groups_of(config_of(two), small)["swap-CUDA0"].identity
    )


def test_a_group_that_cannot_be_rendered_is_a_problem_with_its_model_s_name():
    config = config_of(BASE)
    files = files_of(config)
    files["a"] = msgspec.structs.replace(files["a"], path="/m/two\nlines.gguf")
    plan = make_plan(config, machine(48), files)
    engine = EngineFlavour(path="/opt/llama-server")
    groups, problems = render_plan(plan, config, files, engine, host="direct", launcher=LAUNCHER)
    assert [(problem.code, problem.where) for problem in problems] == [("unrenderable", "models.a")]
    assert list(groups) == ["other"]
    assert "U+000A" in problems[0].message
