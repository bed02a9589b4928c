"""instance -> the command line and environment of its llama-server. Pure.

Everything that decides memory is written out (context, slots, batch, cache types, prompt cache,
checkpoints), so that llama-server has nothing left to guess: `-fit on` and an absent `-np` change
sizes behind the planner's back. What a person writes in `args` comes last but for the address and
wins, as llama-server takes the last of two equal flags.

The launch has no port (spec SC-6): two launches are equal when they would run the same engine, on
whatever port they are started.

Must not: choose anything that the plan has not chosen.
"""

import msgspec

from pannier.config.schema import Config, KvPair, Model
from pannier.devices.inventory import DEVICE_ORDER
from pannier.gguf.footprint.values import Footprint
from pannier.gguf.model_files import ModelFiles
from pannier.plan.demand import CHECKPOINTS, PROMPT_CACHE_MIB
from pannier.plan.roles import ROLES
from pannier.plan.values import Instance, Plan
from pannier.render.flags import HOST_ADDRESS


class EngineFlavour(msgspec.Struct, frozen=True, kw_only=True):
    """What the installed llama-server understands, where builds differ."""

    path: str
    load_mode: bool = True


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How one instance is started, but for its port.

    `estimate` is what it was planned to take, where that was computed; it starts nothing.
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


def make_launch(
    instance: Instance, config: Config, files: ModelFiles, engine: EngineFlavour, plan: Plan
) -> Launch:
    """The launch of one instance of the plan."""
    model = config.models[instance.model]
    argv = [engine.path, "-m", files.path, "--alias", instance.id]
    argv += _context_flags(instance, model)
    argv += _device_flags(instance, model, config, plan)
    argv += _load_flags(instance, files, engine)
    argv += ROLES[model.role].engine_flags
    argv += ["--no-ui", "--offline"]
    argv += [*config.engine.args, *model.args, "--host", HOST_ADDRESS]
    return Launch(
        instance=instance.id,
        argv=tuple(argv),
        env={**DEVICE_ORDER, **config.engine.env, **model.env},
        ttl_s=float(model.ttl),
        preload=model.preload,
        load_timeout_s=instance.load_timeout_s,
        file_bytes=instance.file_bytes,
        devices=instance.devices,
    )


def _context_flags(instance: Instance, model: Model) -> list[str]:
    """`-c` is the sum over the slots: with an explicit `-np` llama-server divides it among them."""
    kv = instance.kv_type
    kv_k, kv_v = (kv.k, kv.v) if isinstance(kv, KvPair) else (kv, kv)
    return [
        *("-c", str(instance.context * instance.slots)),
        *("-np", str(instance.slots)),
        *("-b", str(instance.batch), "-ub", str(instance.ubatch)),
        *("-ctk", kv_k, "-ctv", kv_v),
        *("-fa", model.flash_attention),
        *("--cache-ram", str(PROMPT_CACHE_MIB)),
        *("--ctx-checkpoints", str(CHECKPOINTS)),
    ]


def _device_flags(instance: Instance, model: Model, config: Config, plan: Plan) -> list[str]:
    """Which devices are used. A device that shall hold nothing is left out, never given a zero."""
    flags = ["--rpc", ",".join(config.engine.rpc)] if config.engine.rpc else []
    if not instance.devices:
        return (
            [*flags, "-dev", "none", "-ngl", "0", "-fit", "off"]
            if plan.devices
            else ["-fit", "off"]
        )
    flags += ["-dev", ",".join(instance.devices)]
    if len(instance.devices) > 1:
        shares = instance.tensor_split or tuple(1 for _ in instance.devices)
        flags += ["-sm", "layer", "-ts", ",".join(map(str, shares))]
    if instance.cpu_moe == "all":
        flags += ["--cpu-moe"]
    elif instance.cpu_moe:
        flags += ["--n-cpu-moe", str(instance.cpu_moe)]
    if instance.id in plan.tight and instance.gpu_layers == "auto":
        # It does not fit whole: llama-server itself moves layers to RAM until it does.
        return [*flags, "-fit", "on"]
    layers = "all" if instance.gpu_layers == "auto" else str(instance.gpu_layers)
    return [*flags, "-ngl", layers, "-fit", "off"]


def _load_flags(instance: Instance, files: ModelFiles, engine: EngineFlavour) -> list[str]:
    """Without mmap the progress is linear in time, and a load to devices was faster when cold."""
    flags = ["--load-mode", "none"] if engine.load_mode else ["--no-mmap"]
    if files.projector:
        flags += ["--mmproj", files.projector]
        flags += [] if instance.projector_on_device else ["--no-mmproj-offload"]
    if files.draft:
        flags += ["-md", files.draft]
    return flags
