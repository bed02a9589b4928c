"""What a person's arguments and variables say against the config or the plan: named, never cut."""

from collections.abc import Mapping

import msgspec
import pytest
from tests.fakes.values import GIB, config_of, files_of, machine

from pannier.check import check
from pannier.config.schema import Config
from pannier.gguf.footprint.values import DeviceShare
from pannier.gguf.model_files import ModelFiles
from pannier.plan.placement import make_plan
from pannier.render.argv import EngineFlavour, render_launch
from pannier.render.conflicts import config_problems, launch_problems, uncounted
from pannier.render.groups import render_plan
from pannier.render.settings import SETTINGS

MODEL = '[models.a]\npath = "/m/a.gguf"\ncontext = 4096\nslots = 2\n'
TWO_CARDS = MODEL + "[placement.a]\ndevices = [0, 1]\n"
ENGINE = EngineFlavour(path="/opt/llama-server")


def config_with(text=MODEL, args=(), env=None, engine_args=(), engine_env=None) -> Config:
    """The config with these words, those too that its reader refuses at once."""
    config = config_of(text)
    model = msgspec.structs.replace(config.models["a"], args=tuple(args), env=env or {})
    engine = msgspec.structs.replace(config.engine, args=tuple(engine_args), env=engine_env or {})
    return msgspec.structs.replace(config, models={**config.models, "a": model}, engine=engine)


def problems(
    *args: str, text: str = MODEL, files: Mapping[str, ModelFiles] | None = None, **given: object
):
    """What is found when this is planned on two cards and rendered."""
    config = config_with(text, args, **given)
    files = {**files_of(config), **(files or {})}
    inventory = machine(24, 24)
    plan = make_plan(config, inventory, files)
    return render_plan(plan, config, files, ENGINE, host="direct", launcher=())[1]


def only(found):
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("args", "planned", "hint"),
    [
        (["-c", "16384"], "-c 8192", "`context = 8192` under [models.a]"),
        (["--ctx-size", "16384"], "-c 8192", "`context = 8192` under [models.a]"),
        (["--ctx-size=16384"], "-c 8192", "`context = 8192` under [models.a]"),
        (["--ctx_size", "16384"], "-c 8192", "`context = 8192` under [models.a]"),
        (["-c", "x"], "-c 8192", "`context = …` under [models.a]"),
        (["-c"], "-c 8192", "`context = …` under [models.a]"),
        (["-np", "4"], "-np 2", "`slots = 4` under [models.a]"),
        (["--parallel", "1"], "-np 2", "`slots = 1`"),
        (["-b", "512"], "-b 2048", "`batch = 512`"),
        (["-ub", "1024"], "-ub 512", "`ubatch = 1024`"),
        (["-ctk", "q8_0"], "-ctk f16", '`kv_type = { k = "q8_0", v = "f16" }`'),
        (["-ctv", "q8_0"], "-ctv f16", '`kv_type = { k = "f16", v = "q8_0" }`'),
        (["-fa", "off"], "-fa auto", '`flash_attention = "off"`'),
        (["-fa", "-t", "4"], "-fa auto", '`flash_attention = "on"`'),
        (["-fa"], "-fa auto", '`flash_attention = "on"`'),
        (["--cache-ram", "8192"], "--cache-ram 0", "leave it out"),
        (["--swa-checkpoints", "32"], "--ctx-checkpoints 4", "leave it out"),
        (["-fit", "on"], "-fit off", "leave it out"),
        (["-ngl", "20"], "-ngl all", "`gpu_layers = 20`"),
        (["-cmoe"], None, '`cpu_moe = "all"`'),
        (["-ncmoe", "4"], None, "`cpu_moe = 4`"),
        (["-dev", "CUDA1"], "-dev CUDA0", '`devices = ["CUDA1"]` under [placement.a]'),
        (["-dev", "none"], "-dev CUDA0", "`gpu_layers = 0` under [models.a]"),
        (["-ts", "3,1"], None, "`tensor_split = [3, 1]` under [placement.a]"),
        (["-sm", "row"], None, "leave it out"),
        (["-mg", "1"], None, "`devices = [1]` under [placement.a]"),
        (["--mmproj", "/m/p.gguf"], None, '`mmproj = "/m/p.gguf"`'),
        (["-mmdev", "CUDA1"], None, '`devices = ["CUDA1"]` under [placement.a]'),
        (["-mmdev", "none"], None, "leave it out"),
        (["-md", "/m/d.gguf"], None, '`draft = "/m/d.gguf"`'),
        (["--embeddings"], None, '`role = "embed"`'),
        (["--reranking"], None, '`role = "rerank"`'),
        (["--rpc", "b:1,c:2"], None, '`rpc = ["b:1", "c:2"]` under [engine]'),
        (["-m", "/m/b.gguf"], "-m /m/a.gguf", '`path = "/m/b.gguf"`'),
        (["-hf", "o/r:q"], "-m /m/a.gguf", '`path = "o/r:q"`'),
        (["--alias", "b"], "--alias a", "aliases"),
        (["--host", "0.0.0.0"], "--host 127.0.0.1", "server.listen"),
        (["--port", "80"], None, "Pannier picks the port"),
    ],
    ids=str,
)
def test_a_flag_against_the_plan_is_named_with_the_key_to_use_instead(args, planned, hint):
    problem = only(problems("-t", "4", *args))
    assert (problem.code, problem.where) == ("conflict", "models.a.args[2]")
    said = args[:2] if args[1:2] != ["-t"] else args[:1]
    assert f'"{" ".join(said)}" contradicts the plan' in problem.message
    assert (f'"{planned}"' if planned else "which decides that") in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    "args",
    [
        ["-c", "8192"], ["--ctx-size=8192"], ["-np", "2"], ["-np", "02"], ["-b", "2048"],
        ["-ub", "512"], ["-ctk", "f16", "-ctv", "f16"], ["-fa", "auto"], ["-fa", "-1"],
        ["--cache-ram", "0"], ["-ctxcp", "4"], ["-fit", "off"], ["--fit", "0"], ["-ngl", "all"],
        ["-ngl", "auto"], ["-ngl", "-1"], ["-ngl", "-2"], ["-dev", "CUDA0"], ["-sm", "layer"],
        ["-mg", "0"], ["-ncmoe", "0"],
        ["--no-mmproj"], ["-m", "/m/a.gguf"], ["--alias", "a"], ["--host", "127.0.0.1"],
    ],
    ids=str,
)  # fmt: skip
def test_a_flag_that_says_what_is_planned_is_no_problem(args):
    assert problems(*args) == ()


def test_what_is_to_be_written_instead_is_said_of_the_flags_together():
    first, second = problems("-c", "32768", "--parallel=4")
    assert "`context = 8192` under" in first.hint
    assert "`slots = 4` under" in second.hint
    for problem in problems("-ctk", "q8_0", "-ctv", "q4_0"):
        assert '`kv_type = { k = "q8_0", v = "q4_0" }`' in problem.hint
    for problem in problems("-ctk", "q8_0", "-ctv", "q8_0"):
        assert '`kv_type = "q8_0"`' in problem.hint
    assert "`context = 32768`" in problems("-c", "32768", "-np", "4", "-kvu")[0].hint
    for parallel in ("0", "x", "-1"):
        assert "`context = 16384`" in problems("-c", "32768", "-np", parallel)[0].hint


def test_a_split_is_the_same_however_it_is_written():
    text = TWO_CARDS + "tensor_split = [3, 1]\n"
    assert problems("-ts", "3,1", text=text) == problems("-ts", "3.0/1", text=text) == ()
    assert "[placement.a]" in only(problems("-ts", "1,3", text=text)).hint
    assert "[placement.a]" in only(problems("-ts", "a,b", text=text)).hint


def test_a_number_of_layers_that_is_the_whole_model_or_more_says_all():
    config = config_with(args=["-ngl", "99"])
    files = files_of(config)
    plan = make_plan(config, machine(24), files)
    shares = (DeviceShare(weights=1, layers=33),)

    def found(layers):
        instance = msgspec.structs.replace(
            plan.instances[0], gpu_layers=layers, device_bytes=shares
        )
        return launch_problems(
            render_launch(instance, config, files["a"], ENGINE, plan), config, "a"
        )

    assert found("all") == ()
    assert "`gpu_layers = 99`" in only(found(12)).hint
    assert "`gpu_layers = 99`" in only(found("auto")).hint, "nobody knows how many it has"
    shares = (DeviceShare(weights=1, layers=120),)
    assert "`gpu_layers = 99`" in only(found("all")).hint


def test_a_device_that_has_another_name_in_the_engine_is_not_named_by_either():
    text = MODEL + "[placement.a]\ndevices = [1]\n"
    # "CUDA0" is what the engine will call it, "CUDA1" what everybody else does.
    for label in ("CUDA0", "CUDA1"):
        assert "[placement.a]" in only(problems("-dev", label, text=text)).hint


def test_layers_are_left_to_the_engine_where_it_is_to_shrink_the_model():
    config = config_with("[models.a]\npath = '/m/a.gguf'\n", ["-ngl", "20"])
    files = files_of(config, 4.0)
    plan = make_plan(config, machine(2), files)
    _, found = render_plan(plan, config, files, ENGINE, host="direct", launcher=())
    assert "`gpu_layers = 20`" in only(found).hint


@pytest.mark.parametrize(
    ("key", "args"),
    [
        ('kv_type = "q8_0"\n', ["-ctk", "q8_0", "-ctv", "q8_0"]),
        ("gpu_layers = 7\n", ["-ngl", "7"]),
        ('cpu_moe = "all"\n', ["--cpu-moe"]),
        ("cpu_moe = 3\n", ["-ncmoe", "3"]),
        ('role = "embed"\n', ["--embedding"]),
        ('role = "rerank"\n', ["--rerank"]),
        ("", ["-kvu", "-c", "4096"]),
    ],
)
def test_a_flag_may_repeat_its_key(key, args):
    assert problems(*args, text=MODEL + key) == ()


@pytest.mark.parametrize(
    "args",
    [
        [], ["-t", "8"], ["--temp", "0"], ["--threads", "-1"], ["-kvu", "-c", "4096"],
        ["--swa-full"], ["-nkvo"], ["-ot", "exps=CPU"], ["--no-warmup", "--jinja"],
        ["--cache-reuse", "256"], ["--models-dir", "/c"], ["-ctkd", "q8_0"], ["", "-", "--"],
    ],
    ids=str,
)  # fmt: skip
def test_what_the_plan_does_not_decide_is_a_persons_to_say(args):
    assert problems(*args) == ()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"LLAMA_ARG_CTX_SIZE": "512"}, "LLAMA_ARG_CTX_SIZE=512"),
        ({"LLAMA_ARG_CPU_MOE": "1"}, "LLAMA_ARG_CPU_MOE=1"),
        ({"LLAMA_ARG_MAIN_GPU": "1"}, "LLAMA_ARG_MAIN_GPU=1"),
        ({"MTMD_BACKEND_DEVICE": "CUDA1"}, "MTMD_BACKEND_DEVICE=CUDA1"),
    ],
)
def test_a_variable_against_the_plan_is_named_too(env, words):
    (name,) = env
    problem = only(problems(env=env))
    assert (problem.code, problem.where) == ("conflict", f"models.a.env.{name}")
    assert f'"{words}" contradicts the plan' in problem.message
    assert only(problems(engine_env=env)).where == f"engine.env.{name}"


@pytest.mark.parametrize(
    "env",
    [
        {"LLAMA_ARG_CTX_SIZE": "8192"}, {"LLAMA_ARG_CPU_MOE": "0"}, {"LLAMA_ARG_NO_MMPROJ": "0"},
        {"LLAMA_ARG_THREADS": "8"}, {"GGML_CUDA_ENABLE_UNIFIED_MEMORY": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_a_variable_that_changes_nothing_of_the_plan_is_no_problem(env):
    assert problems(env=env) == ()


@pytest.mark.parametrize(
    "env",
    [
        {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": ""}, {"HIP_VISIBLE_DEVICES": "0"},
        {"ROCR_VISIBLE_DEVICES": "0"}, {"GPU_DEVICE_ORDINAL": "0"}, {"GGML_CUDA_DEVICES": "0,0"},
        {"GGML_VK_VISIBLE_DEVICES": "0"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
    ],
    ids=str,
)  # fmt: skip
def test_a_mask_of_a_model_against_the_planned_one_is_named_with_it(env):
    ((name, value),) = env.items()
    problem = only(problems(env=env))
    assert (problem.code, problem.where) == ("conflict", f"models.a.env.{name}")
    assert f'"{name}={value}"' in problem.message
    planned = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}.get(name)
    assert (f'"{name}={planned}"' if planned else f"no {name}") in problem.message
    assert "[placement.a]" in problem.hint
    assert "[engine.env]" in problem.hint


def test_a_mask_of_a_model_that_is_the_planned_one_is_no_problem():
    assert problems(env={"CUDA_VISIBLE_DEVICES": "0"}) == ()


def test_a_mask_of_the_engine_is_no_problem_as_the_devices_were_asked_for_under_it():
    assert problems(engine_env={"CUDA_VISIBLE_DEVICES": "3,1"}) == ()


def test_an_argument_of_the_engine_is_one_problem_though_it_concerns_every_model():
    text = MODEL + '[models.b]\npath = "/m/b.gguf"\n'
    problem = only(problems(text=text, engine_args=["-fa", "on"]))
    assert problem.where == "engine.args[0]"
    assert "[models.a]" in problem.hint


def test_a_group_whose_model_contradicts_the_plan_is_not_rendered_and_the_others_are():
    config = config_with(MODEL + '[models.b]\npath = "/m/b.gguf"\n', ["-ngl", "3"])
    files = files_of(config)
    plan = make_plan(config, machine(24, 24), files)
    groups, found = render_plan(plan, config, files, ENGINE, host="direct", launcher=())
    assert list(groups) == ["b"]
    assert only(found).where == "models.a.args[0]"


def test_what_a_person_gave_is_passed_on_word_for_word():
    args = ["-c", "8192", "--temp", "0", "--x=y z", "-ot", "exps=CPU", ""]
    config = config_with(args=args)
    files = files_of(config)
    plan = make_plan(config, machine(24), files)
    argv = render_launch(plan.instances[0], config, files["a"], ENGINE, plan).launch.argv
    assert list(argv[-2 - len(args) : -2]) == args


OPEN = '[models.a]\npath = "/m/a.gguf"\n'


@pytest.mark.parametrize(
    ("text", "args", "found"),
    [
        (OPEN, ["-c", "4096"], True),  # the context is open: only a key can say it
        (MODEL, ["-c", "8192"], False),
        (MODEL, ["-np", "3"], True),
        (OPEN, ["-ngl", "9"], False),  # it depends on the plan
        (OPEN + "gpu_layers = 8\n", ["-ngl", "9"], True),
        (OPEN, ["-dev", "CUDA7"], False),
        (OPEN, ["-md", "/m/d.gguf"], True),
        (OPEN + 'draft = "d.gguf"\n', ["-md", "/m/d.gguf"], False),
        (OPEN + 'role = "embed"\n', ["-b", "512"], False),
        (OPEN, ["-b", "512"], True),
    ],
)
def test_what_the_keys_alone_contradict_is_found_without_a_machine(text, args, found):
    config = config_with(text, args)
    assert [each.where for each in config_problems(config)] == ["models.a.args[0]"] * found


def test_check_finds_them_with_their_lines(tmp_path):
    (tmp_path / "config.toml").write_text(
        '[models.a]\npath = "a.gguf"\nargs = [\n  "--temp", "0",\n  "-np", "4",\n]\n'
    )
    report = check(tmp_path / "config.toml")
    problem = only(report.problems)
    assert (problem.where, problem.line) == ("models.a.args[2]", 5)
    assert "`slots = 4` under [models.a]" in problem.hint


def test_what_serve_refuses_on_every_machine_check_has_refused_before():
    config = config_with(args=["-np", "9", "-ngl", "5"])
    before = config_problems(config)
    assert [each.where for each in before] == ["models.a.args[0]"]
    assert set(before) < set(problems("-np", "9", "-ngl", "5"))


def test_what_no_footprint_counts_is_noted():
    config = config_with(args=["-kvu", "-ot", "exps=CPU"], engine_args=["--lora", "x"])
    first, second = uncounted(config)
    assert first.startswith('engine.args[0]: "--lora" changes')
    assert second.startswith('models.a.args[1]: "-ot" changes')


def test_no_spelling_belongs_to_two_settings():
    names = [
        name
        for each in SETTINGS
        for name in (*each.flags, *each.switches, *each.variables, *each.switch_variables)
    ]
    assert len(names) == len(set(names))


def test_a_draft_and_a_projector_that_were_found_may_be_named_again():
    files = ModelFiles(path="/m/a.gguf", weights=GIB, projector="/m/p.gguf", draft="/m/d.gguf")
    text = MODEL + 'draft = "d.gguf"\n'
    args = ["--mmproj", "/m/p.gguf", "-md", "/m/d.gguf", "-mmdev", "CUDA0"]
    assert problems(*args, text=text, files={"a": files}) == ()
    assert '`mmproj = "none"`' in only(problems("--no-mmproj", text=text, files={"a": files})).hint
