"""What a person's `args` and `env` say against the config or the plan: problems, never repairs.

A person's flags stand last and win, so one that contradicts the plan would make the plan untrue: it
would run, and nobody could say in what memory. It is not removed either. The person is told which
key says the same thing to the planner too. Two rules, so that `check` says before what a machine
would only find later: a flag must be what the config's keys say, and what the plan made of them.

Must not: refuse what the plan does not decide.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from pannier.config.locate import Path, key_path, line_of
from pannier.config.schema import Config, KvPair, Model
from pannier.config.shape import quote
from pannier.errors import Problem
from pannier.plan.demand import CHECKPOINTS, PROMPT_CACHE_MIB
from pannier.plan.roles import ROLES
from pannier.render.argv import Rendered
from pannier.render.flags import HOST_ADDRESS
from pannier.render.settings import (
    BY_NAME,
    UNCOUNTED,
    Given,
    flag_of,
    given_by,
    given_in,
    is_unified,
    normal,
)

MASKS = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GGML_CUDA_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
        *("GGML_VK_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"),
    }
)
"""Variables that decide which devices a process sees, and what they are called there."""

_UNSET = {
    "main_device": "0",
    "split_mode": "layer",
    "experts": "0",
    "projector": "none",
}
"""What a setting is that we do not write."""


class _Expected(msgspec.Struct, frozen=True):
    """What settings have to be, by name; None: not to be given at all.

    Of those that are not in it nothing is known. `units` are the model's, where they are known.
    """

    values: Mapping[str, str | None]
    units: int | None = None


def config_problems(config: Config, lines: Mapping[Path, int] | None = None) -> tuple[Problem, ...]:
    """What is given against the config's own keys: the same on every machine.

    One problem for each place, though it be the engine's and concern every model. `lines` are those
    of the file's keys, where they are known.
    """
    return once(
        problem
        for name, model in config.models.items()
        for problem in _against(_asked(config, model), config, name, lines)
    )


def launch_problems(rendered: Rendered, config: Config, model: str) -> tuple[Problem, ...]:
    """What is given against the plan, for one launch as it was rendered."""
    own = {each.setting: each.value for each in given_by(rendered.env)}
    own |= {each.setting: each.value for each in given_in(rendered.own)}
    values: dict[str, str | None] = {**dict.fromkeys(BY_NAME), **_UNSET, "role": "chat", **own}
    values["rpc"] = ",".join(config.engine.rpc) or None
    devices = rendered.launch.devices
    if not devices:
        values |= {"devices": "none", "layers": "0"}
    elif values["devices"] != ",".join(devices):
        # Its own names for them are others: neither name means the device to both of us.
        values |= {"devices": None, "projector_device": None}
    expected = _Expected(values, rendered.units)
    masks = _masks(rendered, config.models[model].env, ("models", model, "env"))
    return once([*_against(expected, config, model), *masks])


def uncounted(config: Config) -> tuple[str, ...]:
    """Notes about arguments that change what a launch takes and that no footprint counts."""
    return tuple(
        f"{key_path((*path, at))}: {quote(arg)} changes what the model takes, which is planned"
        " without it"
        for path, args in _all_args(config)
        for at, arg in enumerate(args)
        if flag_of(arg) in UNCOUNTED
    )


def once(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The first problem of each place."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.where, problem)
    return tuple(first.values())


def _asked(config: Config, model: Model) -> _Expected:
    """What the config's keys alone decide, on whatever machine."""
    kv = model.kv_type
    unified = is_unified((*config.engine.args, *model.args))
    context = None if model.context is None else model.context * (1 if unified else model.slots)
    pooled = ROLES[model.role].pooled
    values: dict[str, str | None] = {
        "host": HOST_ADDRESS,
        "port": None,
        "context": None if context is None else str(context),
        "slots": str(model.slots),
        "kv_k": kv.k if isinstance(kv, KvPair) else kv,
        "kv_v": kv.v if isinstance(kv, KvPair) else kv,
        "flash_attention": model.flash_attention,
        "prompt_cache": str(PROMPT_CACHE_MIB),
        "checkpoints": str(CHECKPOINTS),
        "fit": "off",
        "role": model.role if pooled else "chat",
        "rpc": ",".join(config.engine.rpc) or None,
        "main_device": _UNSET["main_device"],
        "split_mode": _UNSET["split_mode"],
    }
    if not pooled:
        values |= {"batch": str(model.batch), "ubatch": str(model.ubatch)}
    if isinstance(model.gpu_layers, int):
        values["layers"] = str(model.gpu_layers)
    if model.cpu_moe != "auto":
        values["experts"] = str(model.cpu_moe)
    if model.draft is None:
        values["draft"] = None
    if model.mmproj == "none":
        values["projector"] = "none"
    return _Expected(values)


def _against(
    expected: _Expected, config: Config, name: str, lines: Mapping[Path, int] | None = None
) -> Iterator[Problem]:
    """A problem for everything that is given and not what it has to be."""
    model = config.models[name]
    sources: list[tuple[Path, tuple[Given, ...]]] = [
        (("engine", "args"), tuple(given_in(config.engine.args))),
        (("engine", "env"), tuple(given_by(config.engine.env))),
        (("models", name, "args"), tuple(given_in(model.args))),
        (("models", name, "env"), tuple(given_by(model.env))),
    ]
    for path, found in sources:
        said = {given.setting: given.value for given in found}
        for given in found:
            if _agrees(given, expected):
                continue
            wanted = expected.values[given.setting]
            shown = _shown(given.setting, wanted)
            with_what = f"starts {quote(name)} with {quote(shown)}" if shown else "decides that"
            yield Problem(
                code="conflict",
                where=key_path((*path, given.place)),
                line=line_of(lines, (*path, given.place)) if lines else None,
                message=f"{quote(given.words)} contradicts the plan, which {with_what}",
                hint=_hint(given, said, config, name),
            )


def _agrees(given: Given, expected: _Expected) -> bool:
    if given.setting not in expected.values:
        return True
    wanted = expected.values[given.setting]
    if wanted is None:
        return False
    have, want = normal(given.setting, given.value), normal(given.setting, wanted)
    if have == want:
        return True
    if given.setting == "layers" and want == "all":
        # A number at least as large as the model says the same.
        enough = isinstance(have, str) and have.isdecimal() and expected.units is not None
        return have == "auto" or (enough and int(str(have)) >= (expected.units or 0))
    return False


def _shown(name: str, value: str | None) -> str | None:
    """A setting as we write it, or None where we do not."""
    if value is None or _UNSET.get(name) == value or (name, value) == ("role", "chat"):
        return None
    setting = BY_NAME[name]
    switch = next((flag for flag, means in setting.switches.items() if means == value), None)
    return switch or f"{setting.flags[0]} {value}"


_KEYS = {
    "path": "path",
    "slots": "slots",
    "batch": "batch",
    "ubatch": "ubatch",
    "flash_attention": "flash_attention",
    "layers": "gpu_layers",
    "experts": "cpu_moe",
    "projector": "mmproj",
    "draft": "draft",
    "role": "role",
}
"""Settings with a key of the same meaning under [models.NAME]."""

_REMARKS = {
    "alias": "leave it out, and add the name to aliases",
    "host": "leave it out: models listen on 127.0.0.1, and clients come in through server.listen",
    "port": "leave it out: Pannier picks the port, and clients come in through server.listen",
    "prompt_cache": "leave it out: the plan counts on no prompt cache in RAM",
    "checkpoints": f"leave it out: the plan counts {CHECKPOINTS} checkpoints for each slot",
    "fit": "leave it out: Pannier makes it fit; gpu_layers, cpu_moe and context say how",
    "split_mode": "leave it out: a model is split by layers, over the devices of its placement",
}


def _hint(given: Given, said: Mapping[str, str], config: Config, name: str) -> str:
    """What to write instead; `said` is all that was given beside it."""
    if given.setting in _REMARKS:
        return _REMARKS[given.setting]
    if given.setting == "rpc":
        endpoints = ", ".join(map(_toml, given.value.split(",")))
        return f"write `rpc = [{endpoints}]` under [engine] instead"
    if given.setting in _PLACEMENTS and given.value.strip() != "none":
        table = key_path(("placement", name))
        return f"write `{_PLACEMENTS[given.setting](given.value)}` under [{table}] instead"
    table = key_path(("models", name))
    if given.setting == "projector_device":
        return "leave it out: a projector stays in RAM where the devices have no room for it"
    if given.setting in _PLACEMENTS:  # none of them
        written = "gpu_layers = 0"
    elif given.setting == "context":
        written = f"context = {_per_slot(given.value, said, config, name)}"
    elif given.setting in ("kv_k", "kv_v"):
        written = _kv_type(said, config.models[name])
    else:
        value = normal(given.setting, given.value)
        written = f"{_KEYS[given.setting]} = {_toml(str(value))}"
    return f"write `{written}` under [{table}] instead"


def _devices(value: str) -> str:
    return f"devices = [{', '.join(map(_toml, value.split(',')))}]"


def _shares(value: str) -> str:
    shares = [share.strip() for share in re.split("[,/]+", value)]
    return f"tensor_split = [{', '.join(shares)}]"


_PLACEMENTS: dict[str, Callable[[str], str]] = {
    "devices": _devices,
    "split": _shares,
    "main_device": _devices,
    "projector_device": _devices,
}
"""Settings that a [placement.NAME] says: its first device is the main one and the projector's."""


def _per_slot(value: str, said: Mapping[str, str], config: Config, name: str) -> str:
    """Tokens per slot, as the key counts them."""
    model, number = config.models[name], value.strip()
    if not re.fullmatch("[0-9]{1,18}", number):
        return "…"
    slots = said.get("slots", "")
    caches = int(slots) if re.fullmatch("[1-9][0-9]{0,3}", slots) else model.slots
    if is_unified((*config.engine.args, *model.args)):
        caches = 1
    return str(max(1, int(number) // caches))


def _kv_type(said: Mapping[str, str], model: Model) -> str:
    kv = model.kv_type
    k = said.get("kv_k", kv.k if isinstance(kv, KvPair) else kv)
    v = said.get("kv_v", kv.v if isinstance(kv, KvPair) else kv)
    return f"kv_type = {_toml(k)}" if k == v else f"kv_type = {{ k = {_toml(k)}, v = {_toml(v)} }}"


def _toml(value: str) -> str:
    text = value.strip()
    return text if re.fullmatch("[0-9]{1,18}", text) else quote(text, 200)


def _masks(rendered: Rendered, env: Mapping[str, str], path: Path) -> Iterator[Problem]:
    """Variables of a model that show it other devices than those that it was planned on.

    Those of [engine] were there when the engine was asked for its devices: the plan is within them.
    """
    table = key_path(("placement", str(path[1])))
    for name in sorted(MASKS & env.keys()):
        planned = rendered.env.get(name, rendered.environ.get(name))
        if env[name] == planned:
            continue
        shown = quote(f"{name}={planned}", 200) if planned is not None else f"no {name}"
        yield Problem(
            code="conflict",
            where=key_path((*path, name)),
            message=f"{quote(f'{name}={env[name]}')} contradicts the plan, which starts"
            f" {quote(str(path[1]))} with {shown}",
            hint=f"name the devices under [{table}]; to hide one from all models, set the variable"
            " under [engine.env]",
        )


def _all_args(config: Config) -> Iterator[tuple[Path, tuple[str, ...]]]:
    yield ("engine", "args"), config.engine.args
    for name, model in config.models.items():
        yield ("models", name, "args"), model.args
