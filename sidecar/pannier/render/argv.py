"""instance -> the command line and environment of its llama-server. Pure.

Everything that decides memory is written out (context, slots, batch, cache types, prompt cache,
checkpoints, devices, layers), so that llama-server has nothing left to guess: `-fit on`, an absent
`-np` and an absent `-ts` change sizes behind the planner's back. What a person writes in `args`
comes last but for the address and wins, as llama-server takes the last of two equal flags;
`conflicts` finds what contradicts the plan.

The launch has no port (spec SC-6): two launches are equal when they would run the same engine, on
whatever port they are started.

Must not: choose anything that the plan has not chosen.
"""

from collections.abc import Sequence

import msgspec

from pannier.config.schema import Config, KvPair, Model
from pannier.devices.inventory import DEVICE_ORDER, Device, EngineBackend
from pannier.devices.masks import Selection, device_selection
from pannier.gguf.footprint.values import Footprint
from pannier.gguf.model_files import ModelFiles
from pannier.plan.demand import CHECKPOINTS, PROMPT_CACHE_MIB
from pannier.plan.roles import ROLES
from pannier.plan.values import Instance, Plan
from pannier.render.flags import HOST_ADDRESS
from pannier.render.settings import is_unified

PROJECTOR_DEVICE = "MTMD_BACKEND_DEVICE"
"""Where the projector goes. Builds before b11000 put it on the first device that they see, whatever
`-dev` says; all take this variable (tools/mtmd/clip.cpp, common/arg.cpp)."""


class EngineFlavour(msgspec.Struct, frozen=True, kw_only=True):
    """What the installed llama-server understands, where builds differ, and what it runs in.

    `environ` is the environment that it was asked for its devices with, masks included.
    """

    path: str
    load_mode: bool = True
    environ: dict[str, str] = {}


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How one instance is started, but for its port.

    `devices` are the inventory's labels, in the order of the split; the engine may know them by
    others. `estimate` is what it was planned to take, where that was computed; it starts nothing.
    """

    instance: str
    argv: tuple[str, ...]
    env: dict[str, str]
    ttl_s: float
    preload: bool
    load_timeout_s: int
    file_bytes: int
    devices: tuple[str, ...]
    estimate: Footprint | None = None


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A launch, and which of it the plan decided: arguments, variables and the model's units.

    `environ` is what the engine was asked with; `units` is None where the header is not known.
    """

    launch: Launch
    own: tuple[str, ...]
    env: dict[str, str]
    environ: dict[str, str]
    units: int | None


def render_launch(
    instance: Instance, config: Config, files: ModelFiles, engine: EngineFlavour, plan: Plan
) -> Rendered:
    """The launch of one instance of the plan.

    Raises ValueError for devices that no process can use together.
    """
    model = config.models[instance.model]
    environ = {**DEVICE_ORDER, **engine.environ, **config.engine.env}
    devices = [_device(plan, label) for label in instance.devices]
    selection = _selection(devices, plan, environ)
    own = ["-m", files.path, "--alias", instance.id]
    own += _context_flags(instance, config, model)
    own += _device_flags(instance, devices, selection, config, plan)
    own += _load_flags(instance, files, engine)
    own += ROLES[model.role].engine_flags
    own += ["--no-ui", "--offline"]
    env = {**selection.env, **_projector_env(instance, devices, selection, files)}
    address = ["--host", HOST_ADDRESS]
    launch = Launch(
        instance=instance.id,
        argv=(engine.path, *own, *config.engine.args, *model.args, *address),
        env={**DEVICE_ORDER, **config.engine.env, **model.env, **env},
        ttl_s=float(model.ttl),
        preload=model.preload,
        load_timeout_s=instance.load_timeout_s,
        file_bytes=instance.file_bytes,
        devices=instance.devices,
        estimate=_estimate(instance),
    )
    return Rendered(
        launch=launch, own=(*own, *address), env=env, environ=environ, units=_units(instance)
    )


def _device(plan: Plan, label: str) -> Device:
    return next(device for device in plan.devices if device.label == label)


def _selection(devices: Sequence[Device], plan: Plan, environ: dict[str, str]) -> Selection:
    """What makes the engine use exactly these devices."""
    if not plan.devices:
        # Nothing is known of this machine's devices, or there are none: nothing to hide.
        return Selection()
    machine: EngineBackend = next(
        (device.backend for device in plan.devices if device.backend != "rpc"), "rpc"
    )
    return device_selection(devices, environ, backend=machine)


def _context_flags(instance: Instance, config: Config, model: Model) -> list[str]:
    """`-c` is the sum over the slots: with an explicit `-np` llama-server divides it among them.

    With one cache for all (`-kvu`) it is what they share.
    """
    kv = instance.kv_type
    kv_k, kv_v = (kv.k, kv.v) if isinstance(kv, KvPair) else (kv, kv)
    caches = 1 if is_unified((*config.engine.args, *model.args)) else instance.slots
    return [
        *("-c", str(instance.context * caches)),
        *("-np", str(instance.slots)),
        *("-b", str(instance.batch), "-ub", str(instance.ubatch)),
        *("-ctk", kv_k, "-ctv", kv_v),
        *("-fa", model.flash_attention),
        *("--cache-ram", str(PROMPT_CACHE_MIB)),
        *("--ctx-checkpoints", str(CHECKPOINTS)),
    ]


def _device_flags(
    instance: Instance,
    devices: Sequence[Device],
    selection: Selection,
    config: Config,
    plan: Plan,
) -> list[str]:
    """Which devices are used. A device that shall hold nothing is left out, never given a zero."""
    if not devices:
        return [*selection.flags, "-ngl", "0", "-fit", "off"] if plan.devices else ["-fit", "off"]
    flags = []
    if any(device.backend == "rpc" for device in devices):
        # All of them: their devices are numbered through. Who uses none waits for no other machine.
        flags += ["--rpc", ",".join(config.engine.rpc)]
    flags += selection.flags
    if instance.cpu_moe == "all":
        flags += ["--cpu-moe"]
    elif instance.cpu_moe:
        flags += ["--n-cpu-moe", str(instance.cpu_moe)]
    shrinks = (
        instance.id in plan.tight
        and instance.gpu_layers == "auto"
        and not _is_split_by_hand(instance)
    )
    if len(devices) > 1:
        shares = instance.tensor_split or tuple(1 for _ in devices)
        # With a split llama-server does not move anything any more.
        split = [] if shrinks else ["-ts", ",".join(map(str, shares))]
        flags += ["-sm", "layer", *split]
    if shrinks:
        # Nothing is known but that it does not fit whole: llama-server moves layers to RAM.
        return [*flags, "-fit", "on"]
    layers = "all" if instance.gpu_layers == "auto" else str(instance.gpu_layers)
    return [*flags, "-ngl", layers, "-fit", "off"]


def _is_split_by_hand(instance: Instance) -> bool:
    return instance.pinned and len(instance.devices) > 1


def _load_flags(instance: Instance, files: ModelFiles, engine: EngineFlavour) -> list[str]:
    """Without mmap the progress is linear in time, and a load to devices was faster when cold."""
    flags = ["--load-mode", "none"] if engine.load_mode else ["--no-mmap"]
    if files.projector:
        flags += ["--mmproj", files.projector]
        # Said even without devices: some builds put it on a GPU that nothing else of it uses.
        flags += [] if _projects_on_device(instance) else ["--no-mmproj-offload"]
    if files.draft:
        flags += ["-md", files.draft]
    return flags


def _projector_env(
    instance: Instance, devices: Sequence[Device], selection: Selection, files: ModelFiles
) -> dict[str, str]:
    """The projector's device is the first of the split, where the plan counts it."""
    if not files.projector or not _projects_on_device(instance):
        return {}
    if devices[0].backend == "rpc":
        # Variables are read before `--rpc`: the engine does not know the device yet, and gives up.
        return {}
    return {PROJECTOR_DEVICE: selection.labels[0]}


def _projects_on_device(instance: Instance) -> bool:
    return bool(instance.devices) and instance.projector_on_device


def _estimate(instance: Instance) -> Footprint | None:
    """What the header says; an estimate from the file's size is nothing to hold a load against."""
    if instance.gpu_layers == "auto":
        return None
    return Footprint(
        devices=instance.device_bytes,
        host=instance.host_bytes,
        exact=instance.exact,
        measured=instance.measured,
    )


def _units(instance: Instance) -> int | None:
    """Units of the model, where all of them are on devices and the header told them."""
    if instance.gpu_layers != "all":
        return None
    return sum(share.layers for share in instance.device_bytes) or None
