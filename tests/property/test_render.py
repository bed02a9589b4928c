"""Rendering: the same plan gives the same bytes, and nobody else's model is in a command line."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.values import LAUNCHER, files_of, machine, model

from pannier.config.schema import Config, KvPair, Placement
from pannier.devices.inventory import Inventory
from pannier.plan.placement import make_plan
from pannier.render.argv import EngineFlavour, render_launch
from pannier.render.groups import render_plan
from pannier.render.llama_swap import render
from pannier.render.settings import given_by, given_in

NAMES = ("a", "b", "c", "d")
PREFIXES = ("CUDA", "Vulkan", "ROCm", "MTL")


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    sizes = draw(st.lists(st.sampled_from([3, 12, 24, 80]), max_size=4))
    found = machine(*sizes, prefix=draw(st.sampled_from(PREFIXES)))
    if draw(st.booleans()):
        named = (
            msgspec.structs.replace(each, uuid=f"GPU-{each.index:08d}") for each in found.devices
        )
        found = msgspec.structs.replace(found, devices=tuple(named))
    return found


@st.composite
def configs(draw: st.DrawFn) -> Config:
    models = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1)):
        models[name] = model(
            role=draw(st.sampled_from(["chat", "vision", "embed", "rerank"])),
            path=f"/m/{name}.gguf",
            context=draw(st.none() | st.sampled_from([512, 4096, 5000])),
            min_context=256,
            slots=draw(st.integers(1, 4)),
            kv_type=draw(st.sampled_from(["f16", "q8_0", KvPair(k="q8_0", v="f16")])),
            gpu_layers=draw(st.sampled_from(["auto", "all", 0, 7])),
            cpu_moe=draw(st.sampled_from(["auto", "all", 0, 3])),
            args=draw(st.sampled_from([(), ("-kvu",), ("-t", "8"), ("--temp", "0")])),
            env=draw(st.sampled_from([{}, {"A": "1"}])),
        )
    pins = {}
    for name in models:
        if draw(st.integers(0, 3)) == 0:
            devices = draw(st.lists(st.integers(0, 3), unique=True, min_size=1, max_size=3))
            shares = draw(st.none() | st.just(tuple(range(1, len(devices) + 1))))
            pins[name] = Placement(devices=tuple(devices), tensor_split=shares)
    return Config(models=models, placement=pins)


SIZES = st.fixed_dictionaries({name: st.sampled_from([0.5, 4.0, 20.0, 60.0]) for name in NAMES})
ENGINES = st.builds(
    EngineFlavour,
    path=st.just("/opt/llama-server"),
    load_mode=st.booleans(),
    environ=st.sampled_from([{}, {"CUDA_VISIBLE_DEVICES": "3,2,1,0"}, {"PATH": "/bin"}]),
)


def bytes_of(config, inventory, sizes, engine):
    files = files_of(config, sizes)
    plan = make_plan(config, inventory, files)
    groups, problems = render_plan(plan, config, files, engine, host="direct", launcher=LAUNCHER)
    texts = {}
    for name, group in groups.items():
        ports = {launch.instance: 9000 + at for at, launch in enumerate(group.launches)}
        texts[name] = (group.identity, render(group, ports, key="k"))
    return texts, problems


@settings(deadline=None, max_examples=60)
@given(configs(), inventories(), SIZES, ENGINES)
def test_equal_plans_are_rendered_to_equal_bytes_and_without_problems(
    config, inventory, sizes, engine
):
    texts, problems = bytes_of(config, inventory, sizes, engine)
    assert problems == ()
    turned = msgspec.structs.replace(config, models=dict(reversed(config.models.items())))
    assert bytes_of(turned, inventory, sizes, engine)[0] == texts


@settings(deadline=None, max_examples=60)
@given(configs(), inventories(), SIZES, ENGINES)
def test_a_command_line_depends_on_nobody_else_s_model(config, inventory, sizes, engine):
    files = files_of(config, sizes)
    plan = make_plan(config, inventory, files)
    for instance in plan.instances:
        name = instance.model
        launch = render_launch(instance, config, files[name], engine, plan).launch
        alone = msgspec.structs.replace(
            config, models={name: config.models[name], "z": model(args=("-t", "1"))}, placement={}
        )
        others = msgspec.structs.replace(
            plan,
            instances=(instance,),
            groups=(),
            tight={key: short for key, short in plan.tight.items() if key == instance.id},
            generation=plan.generation + 1,
            reasons=("other",),
        )
        assert render_launch(instance, alone, files[name], engine, others).launch == launch


@settings(deadline=None, max_examples=60)
@given(configs(), inventories(), SIZES, ENGINES)
def test_every_setting_is_given_once_and_what_decides_memory_always(
    config, inventory, sizes, engine
):
    files = files_of(config, sizes)
    plan = make_plan(config, inventory, files)
    for instance in plan.instances:
        made = render_launch(instance, config, files[instance.model], engine, plan)
        said = [each.setting for each in given_in(made.own)]
        assert len(said) == len(set(said))
        own = {each.setting: each.value for each in given_in(made.own)}
        own |= {each.setting: each.value for each in given_by(made.env)}
        always = {
            *("path", "alias", "host", "context", "slots", "batch", "ubatch", "kv_k", "kv_v"),
            *("flash_attention", "prompt_cache", "checkpoints", "fit"),
        }
        assert always <= own.keys()
        assert "port" not in own
        if plan.devices and own["fit"] == "off":
            assert {"devices", "layers"} <= own.keys()
        if own["fit"] == "on":
            assert instance.id in plan.tight
            assert not {"layers", "split"} & own.keys(), "else it could not shrink anything"
        if len(instance.devices) < 2:
            assert not {"split", "split_mode"} & own.keys()
        elif own["fit"] == "off":
            shares = own["split"].split(",")
            assert len(shares) == len(instance.devices) == len(own["devices"].split(","))
            assert all(int(share) > 0 for share in shares)


@settings(deadline=None, max_examples=60)
@given(configs(), inventories(), SIZES, ENGINES)
def test_a_process_sees_the_devices_of_its_instance_and_no_others(config, inventory, sizes, engine):
    files = files_of(config, sizes)
    plan = make_plan(config, inventory, files)
    by_label = {device.label: device for device in plan.devices}
    for instance in plan.instances:
        made = render_launch(instance, config, files[instance.model], engine, plan)
        named = made.launch.argv[made.launch.argv.index("-dev") + 1] if plan.devices else ""
        mask = made.launch.env.get("CUDA_VISIBLE_DEVICES")
        assert made.launch.devices == instance.devices
        if not plan.devices:
            assert mask is None
        elif plan.devices[0].backend != "cuda":
            assert mask is None
            assert named == (",".join(instance.devices) or "none")
        elif not instance.devices:
            assert (mask, named) == ("", "none")
        else:
            count = range(len(instance.devices))
            assert named == ",".join(f"CUDA{at}" for at in count)
            devices = [by_label[label] for label in instance.devices]
            uuids = ",".join(device.uuid or "" for device in devices)
            outer = engine.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")
            numbers = ",".join(outer[device.index] for device in devices)
            assert mask == (uuids if all(device.uuid for device in devices) else numbers)
