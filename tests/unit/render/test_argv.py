"""The command line of an instance: all that decides memory is in it, and nothing is added."""

import pytest
from tests.fakes.values import GIB, config_of, files_of, machine

from pannier.gguf.model_files import ModelFiles
from pannier.plan.placement import make_plan
from pannier.render.argv import EngineFlavour, make_launch


def launch_of(text, *free_gib, gib=4.0, files=None, load_mode=True):
    config = config_of(text)
    found = {**files_of(config, gib), **(files or {})}
    plan = make_plan(config, machine(*free_gib), found)
    instance = plan.instances[0]
    engine = EngineFlavour(path="/opt/llama-server", load_mode=load_mode)
    return make_launch(instance, config, found[instance.model], engine, plan)


def value(argv, flag):
    assert argv.count(flag) == 1, f"{flag} is there {argv.count(flag)} times"
    return argv[argv.index(flag) + 1]


MODEL = '[models.a]\npath = "/m/a.gguf"\n'


def test_sc_6_a_launch_has_no_port():
    assert "--port" not in launch_of(MODEL, 24).argv


def test_sc_5_the_server_binds_the_address_that_the_proxy_calls():
    argv = launch_of(MODEL, 24).argv
    assert argv[-2:] == ("--host", "127.0.0.1")


def test_the_context_is_the_sum_over_the_slots():
    argv = launch_of(MODEL + "context = 4096\nslots = 3\n", 24).argv
    assert (value(argv, "-c"), value(argv, "-np")) == ("12288", "3")


@pytest.mark.parametrize("flag", ["--cache-ram", "--ctx-checkpoints", "-np", "-b", "-ub", "-fit"])
def test_nothing_that_decides_memory_is_left_to_a_default(flag):
    assert value(launch_of(MODEL, 24).argv, flag)


def test_the_cache_has_a_type_for_each_half():
    argv = launch_of(MODEL + 'kv_type = { k = "q8_0", v = "q4_0" }\n', 24).argv
    assert (value(argv, "-ctk"), value(argv, "-ctv")) == ("q8_0", "q4_0")


@pytest.mark.parametrize(("role", "flag"), [("embed", "--embeddings"), ("rerank", "--reranking")])
def test_one_input_of_a_pooled_model_fits_one_batch(role, flag):
    argv = launch_of(MODEL + f'role = "{role}"\ncontext = 1024\n', 24).argv
    assert flag in argv
    assert value(argv, "-b") == value(argv, "-ub") == "1024"


def test_the_devices_and_the_split_are_those_of_the_plan():
    text = MODEL + "[placement.a]\ndevices = [1, 0]\ntensor_split = [3, 1]\n"
    argv = launch_of(text, 24, 24).argv
    assert (value(argv, "-dev"), value(argv, "-ts")) == ("CUDA1,CUDA0", "3,1")
    assert value(argv, "-ngl") == "all"


def test_one_device_has_no_split():
    argv = launch_of(MODEL, 24).argv
    assert value(argv, "-dev") == "CUDA0"
    assert "-ts" not in argv


def test_without_devices_no_device_is_named():
    argv = launch_of(MODEL).argv
    assert "-dev" not in argv
    assert value(argv, "-fit") == "off"


def test_a_model_that_does_not_fit_is_left_to_the_engine_to_shrink():
    argv = launch_of(MODEL, 2, gib=4.0).argv
    assert value(argv, "-fit") == "on"
    assert "-ngl" not in argv


def test_layers_that_a_person_names_are_taken_even_where_it_is_tight():
    argv = launch_of(MODEL + "gpu_layers = 12\n", 2, gib=4.0).argv
    assert value(argv, "-ngl") == "12"


@pytest.mark.parametrize(
    ("key", "flags"),
    [("cpu_moe = 7", ("--n-cpu-moe", "7")), ('cpu_moe = "all"', ("--cpu-moe",))],
)
def test_experts_stay_in_ram_where_a_person_says_so(key, flags):
    argv = launch_of(MODEL + key + "\n", 24).argv
    start = argv.index(flags[0])
    assert argv[start : start + len(flags)] == flags


def test_rpc_endpoints_stand_before_the_devices_that_they_bring():
    text = '[engine]\nrpc = ["10.0.0.9:50052", "b:1"]\n' + MODEL
    argv = launch_of(text, 24).argv
    assert value(argv, "--rpc") == "10.0.0.9:50052,b:1"
    assert argv.index("--rpc") < argv.index("-dev")


def test_a_projector_and_a_draft_are_named():
    files = ModelFiles(path="/m/a.gguf", weights=GIB, projector="/m/p.gguf", draft="/m/d.gguf")
    argv = launch_of(MODEL, 24, files={"a": files}).argv
    assert (value(argv, "--mmproj"), value(argv, "-md")) == ("/m/p.gguf", "/m/d.gguf")


@pytest.mark.parametrize(
    ("load_mode", "flags"), [(True, ("--load-mode", "none")), (False, ("--no-mmap",))]
)
def test_files_are_read_rather_than_mapped_with_old_engines_and_new_ones(load_mode, flags):
    argv = launch_of(MODEL, 24, load_mode=load_mode).argv
    start = argv.index(flags[0])
    assert argv[start : start + len(flags)] == flags


def test_what_a_person_writes_comes_after_ours_and_the_model_s_last():
    text = '[engine]\nargs = ["-c", "1"]\n' + MODEL + 'args = ["-c", "2"]\n'
    argv = launch_of(text, 24).argv
    assert argv[-6:] == ("-c", "1", "-c", "2", "--host", "127.0.0.1")


def test_sc_9_to_11_the_environment_of_a_model_wins_over_the_engine_s_and_ours():
    text = '[engine.env]\nA = "1"\nB = "1"\nCUDA_DEVICE_ORDER = "FASTEST_FIRST"\n'
    text += MODEL + '[models.a.env]\nB = "2"\n'
    assert launch_of(text, 24).env == {"A": "1", "B": "2", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}


def test_sc_9_to_11_the_config_is_not_changed_by_rendering_it():
    text = '[engine.env]\nA = "1"\n' + MODEL + '[models.a.env]\nB = "2"\n'
    config = config_of(text)
    files = files_of(config)
    plan = make_plan(config, machine(24), files)
    for _ in range(2):
        make_launch(plan.instances[0], config, files["a"], EngineFlavour(path="x"), plan)
    assert config == config_of(text)
