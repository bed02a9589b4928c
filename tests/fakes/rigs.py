"""Machines as people have them, and models with the headers of real ones, for the planner's tests.

A model is named as in tests/gguf_models: "llama31-70b", "gemma3-27b:Q8_0" with other weights, and
"gemma3-27b+mmproj-gemma3-27b" or "qwen3-32b+qwen3-4b" with a projector or a model that drafts.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import msgspec
from tests.fakes.values import GIB, config_of, files_of, machine
from tests.gguf_models import header_of, make

from pannier.config.schema import Config, Model
from pannier.devices.inventory import HostMemory, Inventory, in_order
from pannier.gguf.header import Header
from pannier.gguf.model_files import ModelFiles, ModelHeaders
from pannier.plan.demand import ModelProfile, model_profile
from pannier.plan.placement import Known, make_plan
from pannier.plan.values import Plan


def rig(
    *cards: float,
    used: Sequence[float] = (),
    ours: Sequence[float] = (),
    pci: Sequence[int] = (),
    mig: Sequence[int] = (),
    unified: bool = False,
    ram_gib: float = 64,
    available_gib: float | None = None,
    prefix: str = "CUDA",
) -> Inventory:
    """A machine with cards of these GiB; `used` of each by others and `ours` by our engines.

    `pci` are the bus numbers that the cards are put in order by; `mig` are indices of cards that
    are instances of one.
    """
    plain = machine(*cards, prefix=prefix, ram_gib=ram_gib)
    devices = []
    for device in plain.devices:
        others, us = (int(_at(held, device.index) * GIB) for held in (used, ours))
        devices.append(
            msgspec.structs.replace(
                device,
                free=device.total - others - us,
                used_by_others=others,
                used_by_us=us,
                unified=unified,
                pci=f"0000:{pci[device.index]:02x}:00.0" if pci else None,
                parent="GPU-parent" if device.index in mig else None,
            )
        )
    host = plain.host
    if available_gib is not None:
        host = HostMemory(total=host.total, available=int(available_gib * GIB))
    return msgspec.structs.replace(plain, devices=in_order(devices), host=host)


def _at(values: Sequence[float], index: int) -> float:
    return values[index] if index < len(values) else 0.0


@cache
def _read(name: str) -> Header:
    name, _, quant = name.partition(":")
    return header_of(name, **({"quant": quant} if quant else {}))


@cache
def _bytes(name: str) -> int:
    name, _, quant = name.partition(":")
    return make(name, **({"quant": quant} if quant else {})).size


@cache
def _parts(made: str) -> dict[str, str]:
    """The names of a model and of what goes with it."""
    model, *others = made.split("+")
    kinds = {"projector" if name.startswith("mmproj") else "draft": name for name in others}
    return {"model": model, **kinds}


@cache
def profile(made: str) -> ModelProfile:
    """What the planner knows of a model with these headers."""
    return model_profile(ModelHeaders(**{kind: _read(name) for kind, name in _parts(made).items()}))


def files(path: str, made: str) -> ModelFiles:
    """The files of a model with these headers."""
    parts = _parts(made)
    projector, draft = parts.get("projector"), parts.get("draft")
    return ModelFiles(
        path=path,
        weights=_bytes(parts["model"]),
        projector=f"/m/{projector}.gguf" if projector else None,
        projector_bytes=_bytes(projector) if projector else 0,
        draft=f"/m/{draft}.gguf" if draft else None,
        draft_bytes=_bytes(draft) if draft else 0,
    )


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """A config with its files and what their headers say."""

    config: Config
    files: dict[str, ModelFiles]
    profiles: dict[str, ModelProfile]

    def __repr__(self) -> str:
        """What differs from the defaults; a profile is a screen of numbers."""
        differs = {
            name: {
                key: getattr(model, key)
                for key, default in msgspec.structs.asdict(Model(path=model.path)).items()
                if getattr(model, key) != default
            }
            for name, model in self.config.models.items()
        }
        known = {
            name: found.model and found.model.shape.architecture
            for name, found in self.profiles.items()
        }
        sizes = {name: round(found.weights / GIB, 2) for name, found in self.files.items()}
        config = (self.config.placement, self.config.memory)
        return f"Fleet({differs}, known={known}, gib={sizes}, {config})"

    def plan(self, inventory: Inventory, **known: object) -> Plan:
        """The plan of all this on a machine; `known` are fields of `Known`."""
        return make_plan(
            self.config,
            inventory,
            self.files,
            Known(profiles=self.profiles, **known),  # type: ignore[arg-type]
        )

    def less(self, *names: str) -> "Fleet":
        """The same without these models."""
        models = {name: each for name, each in self.config.models.items() if name not in names}
        return msgspec.structs.replace(
            self, config=msgspec.structs.replace(self.config, models=models)
        )


def fleet(text: str, made: Mapping[str, str], gib: float | Mapping[str, float] = 4.0) -> Fleet:
    """The fleet of a config: headers where `made` names them, sizes of files elsewhere."""
    config = config_of(text)
    sizes = gib if isinstance(gib, Mapping) else dict.fromkeys(config.models, gib)
    found = files_of(config, {name: sizes.get(name, 4.0) for name in config.models})
    for name, headers in made.items():
        found[name] = files(config.models[name].path, headers)
    return Fleet(
        config=config,
        files=found,
        profiles={name: profile(headers) for name, headers in made.items()},
    )


def models(**tables: str) -> str:
    """TOML of models by name and the rest of their tables: "made; key = value; ..." each."""
    return "".join(
        f'[models.{name}]\npath = "/m/{name}.gguf"\n{keys}\n' for name, keys in tables.items()
    )
