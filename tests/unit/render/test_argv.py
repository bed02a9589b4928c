"""The command line of an instance: all that decides memory is in it, and nothing is added."""

import msgspec
import pytest
from tests.fakes.values import GIB, config_of, files_of, machine

from pannier.devices.inventory import Device, Inventory
from pannier.gguf.footprint.values import DeviceShare, HostShare
from pannier.gguf.measured import measurement
from pannier.gguf.model_files import ModelFiles
from pannier.plan.placement import make_plan
from pannier.render.argv import EngineFlavour, render_launch
from pannier.render.groups import render_plan


def cards(*parts, backend="cuda", prefix="CUDA"):
    """A machine with cards of 24 GiB that have these UUIDs; a pair is one with its parent's."""
    devices = []
    for index, part in enumerate(parts):
        uuid, parent = part if isinstance(part, tuple) else (part, None)
        devices.append(
            Device(
                index=index, backend=backend, label=f"{prefix}{index}", name="Card", uuid=uuid,
                parent=parent, total=24 * GIB, free=24 * GIB,
            )
        )  # fmt: skip
    return Inventory(devices=tuple(devices), engine_backend=backend)


def with_rpc(inventory, label="RPC0"):
    far = Device(
        index=len(inventory.devices), backend="rpc", label=label, name="far", total=24 * GIB,
        free=24 * GIB,
    )  # fmt: skip
    return msgspec.structs.replace(inventory, devices=(*inventory.devices, far))


def launch_of(
    text, *free_gib, gib=4.0, files=None, load_mode=True, on=None, environ=None, **changes
):
    """The launch of the first instance of a plan; `changes` are made to that instance."""
    config = config_of(text)
    found = {**files_of(config, gib), **(files or {})}
    plan = make_plan(config, on or machine(*free_gib), found)
    instance = msgspec.structs.replace(plan.instances[0], **changes)
    engine = EngineFlavour(path="/opt/llama-server", load_mode=load_mode, environ=environ or {})
    return render_launch(instance, config, found[instance.model], engine, plan).launch


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
    launch = launch_of(text, 24, 24)
    assert launch.devices == ("CUDA1", "CUDA0")
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert (value(launch.argv, "-dev"), value(launch.argv, "-ts")) == ("CUDA0,CUDA1", "3,1")
    assert (value(launch.argv, "-ngl"), value(launch.argv, "-sm")) == ("all", "layer")


def test_one_device_has_no_split():
    argv = launch_of(MODEL, 24).argv
    assert value(argv, "-dev") == "CUDA0"
    assert not {"-ts", "-sm", "-mg"} & set(argv)


def test_without_devices_no_device_is_named():
    argv = launch_of(MODEL).argv
    assert "-dev" not in argv
    assert value(argv, "-fit") == "off"


def test_a_model_that_does_not_fit_is_left_to_the_engine_to_shrink():
    argv = launch_of(MODEL, 2, gib=4.0).argv
    assert value(argv, "-fit") == "on"
    assert not {"-ngl", "-ts"} & set(argv)


def test_a_split_that_would_keep_the_engine_from_shrinking_a_model_is_left_out():
    argv = launch_of(MODEL, 2, 2, gib=9.0).argv
    assert (value(argv, "-fit"), value(argv, "-dev")) == ("on", "CUDA0,CUDA1")
    assert not {"-ngl", "-ts"} & set(argv)


def test_devices_that_a_person_chose_keep_their_split_even_where_it_is_tight():
    text = MODEL + "[placement.a]\ndevices = [0, 1]\ntensor_split = [3, 1]\nforce = true\n"
    argv = launch_of(text, 2, 2, gib=9.0).argv
    assert (value(argv, "-fit"), value(argv, "-ngl"), value(argv, "-ts")) == ("off", "all", "3,1")


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


RPC = '[engine]\nrpc = ["10.0.0.9:50052", "b:1"]\n' + MODEL


def test_rpc_endpoints_stand_before_the_devices_that_they_bring():
    text = RPC + '[placement.a]\ndevices = ["RPC0"]\n'
    argv = launch_of(text, on=with_rpc(cards("GPU-1"))).argv
    assert value(argv, "--rpc") == "10.0.0.9:50052,b:1"
    assert value(argv, "-dev") == "RPC0"
    assert argv.index("--rpc") < argv.index("-dev")


def test_who_uses_no_device_of_another_machine_does_not_wait_for_it():
    text = RPC + '[placement.a]\ndevices = ["CUDA0"]\n'
    assert "--rpc" not in launch_of(text, on=with_rpc(cards("GPU-1"))).argv


FILES = ModelFiles(path="/m/a.gguf", weights=GIB, projector="/m/p.gguf", draft="/m/d.gguf")


def test_a_projector_and_a_draft_are_named():
    argv = launch_of(MODEL, 24, files={"a": FILES}).argv
    assert (value(argv, "--mmproj"), value(argv, "-md")) == ("/m/p.gguf", "/m/d.gguf")


@pytest.mark.parametrize(
    ("inventory", "device"),
    [
        (cards("GPU-1", "GPU-2"), "CUDA0"),  # the only one that the process sees
        (cards(None, None, backend="vulkan", prefix="Vulkan"), "Vulkan1"),
    ],
    ids=["cuda", "vulkan"],
)
def test_a_projector_goes_to_the_first_device_of_the_plan_with_every_engine(inventory, device):
    launch = launch_of(MODEL + "[placement.a]\ndevices = [1]\n", on=inventory, files={"a": FILES})
    assert launch.env["MTMD_BACKEND_DEVICE"] == device == value(launch.argv, "-dev")
    assert "--no-mmproj-offload" not in launch.argv


def test_an_engine_is_not_told_of_a_projector_s_device_that_it_cannot_know_yet():
    text = RPC + '[placement.a]\ndevices = ["RPC0"]\n'
    launch = launch_of(text, on=with_rpc(cards("GPU-1")), files={"a": FILES})
    assert "MTMD_BACKEND_DEVICE" not in launch.env


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (MODEL, {"projector_on_device": False}),
        (MODEL + "gpu_layers = 0\n", {}),
    ],
    ids=["the ladder", "no layers"],
)
def test_a_projector_that_was_planned_in_ram_is_kept_off_the_devices(text, changes):
    launch = launch_of(text, 24, files={"a": FILES}, **changes)
    assert launch.argv.count("--no-mmproj-offload") == 1
    assert "MTMD_BACKEND_DEVICE" not in launch.env


def test_without_a_projector_nothing_is_said_of_one():
    launch = launch_of(MODEL, 24, projector_on_device=False)
    assert "MTMD_BACKEND_DEVICE" not in launch.env
    assert not [word for word in launch.argv if "mmproj" in word]


def test_slots_that_share_one_cache_get_the_context_once():
    text = MODEL + 'context = 4096\nslots = 3\nargs = ["--kv-unified"]\n'
    argv = launch_of(text, 24).argv
    assert (value(argv, "-c"), value(argv, "-np")) == ("4096", "3")


def test_a_number_of_layers_on_devices_is_that_of_the_plan():
    assert value(launch_of(MODEL, 24, gpu_layers=17).argv, "-ngl") == "17"


def test_cards_are_shown_by_their_uuids_and_counted_from_zero_again():
    text = MODEL + "[placement.a]\ndevices = [2, 0]\n"
    launch = launch_of(text, on=cards("GPU-a", "GPU-b", "GPU-c"))
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-a"
    assert value(launch.argv, "-dev") == "CUDA0,CUDA1"
    assert launch.devices == ("CUDA2", "CUDA0")


def test_what_the_engine_measures_on_its_first_device_is_that_of_the_plan_s_first():
    text = MODEL + "[placement.a]\ndevices = [1, 0]\n"
    launch = launch_of(text, on=cards("GPU-a", "GPU-b"))
    names = value(launch.argv, "-dev").split(",")
    said = {names[0]: {"weights": 7}, names[1]: {"weights": 5}}
    took = measurement(said, names, devices=len(launch.devices), build="b1", at=0.0)
    by_label = dict(zip(launch.devices, took.devices, strict=True))
    assert (by_label["CUDA1"].weights, by_label["CUDA0"].weights) == (7, 5)


def test_other_backends_are_given_their_devices_by_name_alone():
    text = MODEL + "[placement.a]\ndevices = [1]\n"
    launch = launch_of(text, on=cards(None, None, backend="vulkan", prefix="Vulkan"))
    assert value(launch.argv, "-dev") == "Vulkan1"
    assert set(launch.env) == {"CUDA_DEVICE_ORDER"}


def test_a_model_on_the_cpu_sees_no_card_of_a_machine_that_has_some():
    launch = launch_of(MODEL + "gpu_layers = 0\n", on=cards("GPU-a"))
    assert launch.env["CUDA_VISIBLE_DEVICES"] == ""
    assert (value(launch.argv, "-dev"), value(launch.argv, "-ngl")) == ("none", "0")


def test_a_mask_that_the_engine_was_asked_under_is_narrowed_and_not_widened():
    text = MODEL + "[placement.a]\ndevices = [1]\n"
    asked = {"CUDA_VISIBLE_DEVICES": "5,3"}
    assert launch_of(text, 24, 24, environ=asked).env["CUDA_VISIBLE_DEVICES"] == "3"
    own = '[engine.env]\nCUDA_VISIBLE_DEVICES = "7,6"\n' + text
    assert launch_of(own, 24, 24, environ=asked).env["CUDA_VISIBLE_DEVICES"] == "6"


def test_what_a_model_was_planned_to_take_goes_with_its_launch():
    device, host = DeviceShare(weights=5, layers=3), HostShare(resident=2)
    planned = {"device_bytes": (device,), "host_bytes": host, "gpu_layers": "all"}
    estimate = launch_of(MODEL, 24, **planned, exact=False, measured=True).estimate
    assert (estimate.devices, estimate.host) == ((device,), host)
    assert (estimate.exact, estimate.measured) == (False, True)


def test_an_estimate_from_the_size_of_a_file_is_none_to_hold_a_load_against():
    assert launch_of(MODEL, 24).estimate is None


def test_devices_that_no_process_can_use_together_are_a_problem_of_their_model():
    text = MODEL + "[placement.a]\ndevices = [0, 1]\n"
    config = config_of(text)
    files = files_of(config)
    plan = make_plan(config, cards("GPU-a", "GPU-b"), files)
    mixed = cards(("MIG-a", "GPU-x"), "GPU-b").devices
    plan = msgspec.structs.replace(plan, devices=mixed)
    engine = EngineFlavour(path="x")
    groups, problems = render_plan(plan, config, files, engine, host="direct", launcher=())
    assert groups == {}
    assert [(each.code, each.where) for each in problems] == [("unrenderable", "models.a")]
    assert "CUDA0 is a MIG instance" in problems[0].message


@pytest.mark.parametrize(
    ("load_mode", "flags"), [(True, ("--load-mode", "none")), (False, ("--no-mmap",))]
)
def test_files_are_read_rather_than_mapped_with_old_engines_and_new_ones(load_mode, flags):
    argv = launch_of(MODEL, 24, load_mode=load_mode).argv
    start = argv.index(flags[0])
    assert argv[start : start + len(flags)] == flags


def test_what_a_person_writes_comes_after_ours_and_the_model_s_last():
    text = '[engine]\nargs = ["-t", "1"]\n' + MODEL + 'args = ["-t", "2"]\n'
    argv = launch_of(text, 24).argv
    assert argv[-6:] == ("-t", "1", "-t", "2", "--host", "127.0.0.1")


def test_sc_9_the_environment_of_a_model_wins_over_the_engine_s():
    text = '[engine.env]\nA = "1"\nB = "1"\nCUDA_DEVICE_ORDER = "FASTEST_FIRST"\n'
    text += MODEL + '[models.a.env]\nB = "2"\n'
    env = launch_of(text, 24).env
    assert {name: env[name] for name in ("A", "B")} == {"A": "1", "B": "2"}
    assert env["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_sc_10_the_devices_of_the_plan_come_after_the_environment_and_win():
    text = '[engine.env]\nCUDA_VISIBLE_DEVICES = "0,1"\n' + MODEL
    text += "[placement.a]\ndevices = [1]\n"
    assert launch_of(text, on=cards("GPU-a", "GPU-b")).env["CUDA_VISIBLE_DEVICES"] == "GPU-b"


def test_sc_11_the_config_is_not_changed_by_rendering_it():
    text = '[engine.env]\nA = "1"\n' + MODEL + '[models.a.env]\nB = "2"\n'
    config = config_of(text)
    files = files_of(config)
    plan = make_plan(config, machine(24), files)
    engine = EngineFlavour(path="x", environ={"C": "3"})
    before = msgspec.json.encode((plan, files["a"], engine))
    for _ in range(2):
        render_launch(plan.instances[0], config, files["a"], engine, plan)
    assert config == config_of(text)
    assert msgspec.json.encode((plan, files["a"], engine)) == before
