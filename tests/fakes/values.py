"""Short ways to the values that the pure parts take: configs, machines, model files, plans."""

from collections.abc import Mapping

from pannier.config.load import parse
from pannier.config.schema import Config, Model
from pannier.devices.inventory import Device, HostMemory, Inventory, backend_of
from pannier.gguf.model_files import ModelFiles
from pannier.plan.placement import make_plan
from pannier.plan.values import Plan
from pannier.render.argv import EngineFlavour
from pannier.render.groups import render_plan
from pannier.render.llama_swap import GroupLaunch

GIB = 1024**3
LAUNCHER = ("python", "-m", "pannier.fleet.launcher", "--socket", "/run/pannier/reports")


def machine(*free_gib: float, prefix: str = "CUDA", ram_gib: float = 64) -> Inventory:
    """A machine with cards of these sizes, all of it free; none: a machine without GPUs."""
    devices = tuple(
        Device(
            index=index,
            backend=backend_of(f"{prefix}0"),
            label=f"{prefix}{index}",
            name=f"Card {index}",
            total=int(gib * GIB),
            free=int(gib * GIB),
        )
        for index, gib in enumerate(free_gib)
    )
    host = HostMemory(total=int(ram_gib * GIB), available=int(ram_gib * GIB))
    return Inventory(
        devices=devices, engine_backend=backend_of(f"{prefix}0") if devices else "cpu", host=host
    )


def config_of(text: str) -> Config:
    """The config of a TOML text."""
    return parse(text.encode())


def model(**keys: object) -> Model:
    """A model whose file is /m/x.gguf, with these keys."""
    return Model(**{"path": "/m/x.gguf", **keys})  # type: ignore[arg-type]


def files_of(config: Config, gib: float | Mapping[str, float] = 4.0) -> dict[str, ModelFiles]:
    """Files of one size, or of a size each; a negative size is a file that is not there."""
    found = {}
    for name, each in config.models.items():
        size = gib if isinstance(gib, int | float) else gib[name]
        found[name] = ModelFiles(
            path=each.path,
            weights=max(0, int(size * GIB)),
            missing=(each.path,) if size < 0 else (),
        )
    return found


def groups_of(
    config: Config,
    inventory: Inventory | None = None,
    files: Mapping[str, ModelFiles] | None = None,
    *,
    host: str = "llama-swap",
    engine: str = "/opt/llama-server",
) -> dict[str, GroupLaunch]:
    """The groups of a config that can be rendered whole."""
    inventory = inventory or machine(24)
    files = files or files_of(config)
    plan = make_plan(config, inventory, files)
    groups, problems = render_plan(
        plan, config, files, EngineFlavour(path=engine), host=host, launcher=LAUNCHER
    )
    assert problems == ()
    return groups


def plan_of(config: Config, inventory: Inventory, gib: float | Mapping[str, float] = 4.0) -> Plan:
    """The plan for files of these sizes."""
    return make_plan(config, inventory, files_of(config, gib))
