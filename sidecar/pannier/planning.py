"""From a config and an inventory to a plan and its launches, with all that is known of the files.

The one place that `serve`, the preview and `pannier plan` go through: it opens the headers (which
it keeps), plans, renders, asks what was learned of exactly these launches, and plans once more with
that. What was measured replaces the estimate of that one form; what loads took beyond the estimate
is added to all forms of the model, as its rules are not what we think.

Must not: ask a device, start anything, or be used on a loop: it reads files.
"""

from collections.abc import Mapping

import msgspec

from pannier.config.schema import Config
from pannier.devices.inventory import Inventory
from pannier.errors import Problem
from pannier.fleet.learned_store import key_of
from pannier.gguf.files import HeaderCache, read_model
from pannier.gguf.footprint.values import MEASURED_BUILD, Footprint
from pannier.gguf.learned import Learned
from pannier.gguf.model_files import ModelFiles, ModelHeaders
from pannier.plan.demand import Form, Measured, ModelProfile, model_profile
from pannier.plan.placement import Known, make_plan, plan_for
from pannier.plan.spec import PlacementSpec
from pannier.plan.values import Instance, Plan
from pannier.render.argv import EngineFlavour
from pannier.render.groups import render_plan
from pannier.render.llama_swap import GroupLaunch

WORTH_MENTIONING = 1 << 20
"""Bytes above an estimate that are no rounding."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to plan, and what is known beside the files. `version` is the engine's own word."""

    config: Config
    inventory: Inventory
    files: Mapping[str, ModelFiles]
    flavour: EngineFlavour
    host: str
    launcher: tuple[str, ...]
    version: str = ""
    running: Plan | None = None
    resident: frozenset[str] = frozenset()
    failed_at: Mapping[str, int] = {}
    learned: Learned = Learned()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The plan and what it starts; `problems` are what could not be rendered."""

    plan: Plan
    groups: dict[str, GroupLaunch]
    problems: tuple[Problem, ...]


class Planner:
    """Plans, and keeps the profiles of the headers it has read. One owner, one thread at a time."""

    def __init__(self) -> None:
        self._headers = HeaderCache()
        self._profiles: dict[str, tuple[ModelHeaders, ModelProfile]] = {}

    def answer(self, asked: Question, spec: PlacementSpec | None = None) -> Answer:
        """The plan for the config, or a preview with another spec, which raises PlacementError."""
        known = Known(
            profiles=self._read(asked),
            running=asked.running,
            resident=asked.resident,
            failed_at=asked.failed_at,
            build=build_number(asked.version),
        )
        answer = _planned(asked, spec, known)
        found = _learned_of(asked, answer)
        if found.measured or found.extra:
            better = msgspec.structs.replace(known, measured=found.measured, extra=found.extra)
            answer = _planned(asked, spec, better)
        return answer

    def _read(self, asked: Question) -> dict[str, ModelProfile]:
        profiles = {}
        for name, files in asked.files.items():
            if files.missing:
                continue
            headers = read_model(files, self._headers)
            kept = self._profiles.get(name)
            # The cache gives the same value for an unchanged file: a profile takes milliseconds.
            if kept is None or not _same(kept[0], headers):
                kept = (headers, model_profile(headers))
            profiles[name] = kept[1]
            self._profiles[name] = kept
        for gone in self._profiles.keys() - asked.files.keys():
            del self._profiles[gone]
        return profiles


def build_number(version: str) -> int:
    """The number of a build: 11434 of "b11434"; that of our constants where there is none."""
    digits = version.removeprefix("b")
    return int(digits) if digits.isdecimal() and int(digits) else MEASURED_BUILD


def _same(one: ModelHeaders, other: ModelHeaders) -> bool:
    return (
        one.model is other.model
        and one.projector is other.projector
        and one.draft is other.draft
        and one.errors == other.errors
    )


def _planned(asked: Question, spec: PlacementSpec | None, known: Known) -> Answer:
    if spec is None:
        plan = make_plan(asked.config, asked.inventory, asked.files, known)
    else:
        plan = plan_for(spec, asked.config, asked.inventory, asked.files, known)
    groups, problems = render_plan(
        plan, asked.config, asked.files, asked.flavour, host=asked.host, launcher=asked.launcher
    )
    return Answer(plan=plan, groups=groups, problems=problems)


class _Learned(msgspec.Struct, frozen=True):
    """By model: what its launches took before, and how far any load was above its estimate."""

    measured: dict[str, tuple[Measured, ...]]
    extra: dict[str, int]


def _learned_of(asked: Question, answer: Answer) -> _Learned:
    """What was learned of exactly these launches."""
    measured: dict[str, tuple[Measured, ...]] = {}
    extra: dict[str, int] = {}
    if not asked.config.memory.learn or not asked.learned.loads:
        return _Learned(measured, extra)
    devices = {device.label: device for device in answer.plan.devices}
    for group in answer.groups.values():
        for launch in group.launches:
            instance = answer.plan.instance(launch.instance)
            used = [devices[label] for label in instance.devices]
            estimate = Footprint(devices=instance.device_bytes, host=instance.host_bytes)
            try:
                key = key_of(launch, asked.files[instance.model], used, asked.version)
            except OSError:  # a file went in this moment; the engine will say so
                continue
            taken = asked.learned.apply(estimate, key)
            if taken.measured:
                form = Measured(
                    form=_form(instance),
                    devices=tuple(device.backend for device in used),
                    split=instance.tensor_split,
                    taken=taken,
                )
                measured[instance.model] = (*measured.get(instance.model, ()), form)
            above = _above(estimate, taken)
            if above > WORTH_MENTIONING:
                extra[instance.model] = max(above, extra.get(instance.model, 0))
    return _Learned(measured, extra)


def _above(estimate: Footprint, taken: Footprint) -> int:
    pairs = zip(estimate.devices, taken.devices, strict=True)
    return max((now.total - before.total for before, now in pairs), default=0)


def _form(instance: Instance) -> Form:
    """The form that an instance was planned in."""
    layers, experts = instance.gpu_layers, instance.cpu_moe
    return Form(
        context=instance.context,
        batch=instance.batch,
        ubatch=instance.ubatch,
        projector_on_device=instance.projector_on_device,
        cpu_moe=None if experts == "all" else experts,
        gpu_layers=layers if isinstance(layers, int) else None,
    )
