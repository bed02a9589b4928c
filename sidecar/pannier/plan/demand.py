"""What one model asks for: the forms that it may be launched in, and what each of them takes.

A form is what the planner may choose: context, batches, experts and layers in RAM, projector. The
bytes come from the footprint of the file's header. Where there is no header that can be read, they
come from the size of the file, as an estimate that knows nothing of context or layers.

Must not: know where there is room.
"""

import msgspec

from pannier.config.schema import KvPair, Model
from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.prices import prices
from pannier.gguf.footprint.profile import Profile, profile_of, trained_context
from pannier.gguf.footprint.projector import Projector, projector_of
from pannier.gguf.footprint.values import (
    MEASURED_BUILD,
    DeviceShare,
    Footprint,
    HostShare,
    LaunchSettings,
    Pooling,
    Prices,
)
from pannier.gguf.model_files import ModelFiles, ModelHeaders
from pannier.plan.roles import MIB, ROLES

DEFAULT_CONTEXT = 8192
"""Tokens per slot of a model whose file does not say what window it was trained on."""

PROMPT_CACHE_MIB = 0
"""`--cache-ram`: the default is 8192 MiB of host RAM per process, behind anyone's plan."""

CHECKPOINTS = 4
"""`--ctx-checkpoints` per slot: the default of 32 costs host RAM on SWA and recurrent models."""

_PIECES = 64
"""Units of a model whose layers are not known."""

_PIECE_BESIDE = 256 * MIB
"""What each device takes beside its pieces, when nothing better is known."""


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What the headers of a model's files say; `problem` is why there is nothing to go by."""

    model: Profile | None = None
    projector: Projector | None = None
    draft: Profile | None = None
    problem: str | None = None


NO_PROFILE = ModelProfile()


def model_profile(headers: ModelHeaders) -> ModelProfile:
    """The profile of a model from its headers. Takes milliseconds: keep it."""
    problem = "; ".join(headers.errors) or None
    if headers.model is None:
        return ModelProfile(problem=problem)
    return ModelProfile(
        model=profile_of(headers.model),
        projector=projector_of(headers.projector) if headers.projector else None,
        draft=profile_of(headers.draft) if headers.draft else None,
        problem=problem,
    )


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """One way to launch a model. `gpu_layers` None: all units; `cpu_moe` None: all experts."""

    context: int
    batch: int
    ubatch: int
    projector_on_device: bool = True
    cpu_moe: int | None = 0
    gpu_layers: int | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one form took when it was loaded on devices of these backends with this split."""

    form: Form
    devices: tuple[str, ...]
    split: tuple[int, ...] | None
    taken: Footprint


class Demand(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One model as the planner sees it.

    `measured` are forms whose loads were measured, `extra` is what loads took beyond the estimate,
    in bytes per device; `failed_at` the context of a load that ran out of memory.
    """

    name: str
    model: Model
    files: ModelFiles
    known: ModelProfile
    build: int = MEASURED_BUILD
    measured: tuple[Measured, ...] = ()
    extra: int = 0
    failed_at: int | None = None

    @property
    def pooled(self) -> bool:
        """Whether it answers with vectors or scores: its role says so."""
        return ROLES[self.model.role].pooled

    @property
    def trained(self) -> int:
        """Tokens of the trained window; a usual one where the file does not say."""
        return (self.known.model and trained_context(self.known.model)) or DEFAULT_CONTEXT

    @property
    def indivisible(self) -> str | None:
        """Why it must not be split, if so."""
        return self.known.model.indivisible if self.known.model else None

    def form(self, context: int) -> Form:
        """How it is launched with this context, before anything is moved to RAM."""
        batch, ubatch = self.model.batch, self.model.ubatch
        if self.pooled:
            # One input must fit one physical batch, else the request is refused.
            batch = ubatch = min(context, max(batch, ubatch))
        layers, experts = self.model.gpu_layers, self.model.cpu_moe
        return Form(
            context=context,
            batch=batch,
            ubatch=ubatch,
            cpu_moe=None if experts == "all" else 0 if experts == "auto" else experts,
            gpu_layers=layers if isinstance(layers, int) else None,
        )

    def widened(self, form: Form, context: int) -> Form:
        """The form with another context; what it keeps in RAM stays there."""
        return msgspec.structs.replace(
            self.form(context),
            projector_on_device=form.projector_on_device,
            cpu_moe=form.cpu_moe,
            gpu_layers=form.gpu_layers,
        )

    def settings(
        self, form: Form, devices: tuple[str, ...], split: tuple[int, ...] | None = None
    ) -> LaunchSettings:
        """The launch of a form on devices of these backends."""
        kv = self.model.kv_type
        role = self.model.role
        pooling: Pooling = "embed" if role == "embed" else "rerank" if role == "rerank" else "none"
        args = self.model.args
        return LaunchSettings(
            context=form.context,
            slots=self.model.slots,
            unified=_given(args, "-kvu", "--kv-unified"),
            kv_k=kv.k if isinstance(kv, KvPair) else kv,
            kv_v=kv.v if isinstance(kv, KvPair) else kv,
            flash_attention=self.model.flash_attention,
            batch=form.batch,
            ubatch=form.ubatch,
            gpu_layers=form.gpu_layers,
            cpu_moe=form.cpu_moe,
            devices=devices,
            split=split,
            pooling=pooling,
            projector_on_device=form.projector_on_device,
            swa_full=_given(args, "--swa-full"),
            kv_offload=not _given(args, "-nkvo", "--no-kv-offload"),
            cache_ram=PROMPT_CACHE_MIB * MIB,
            checkpoints=CHECKPOINTS,
            build=self.build,
        )

    def takes(
        self, form: Form, devices: tuple[str, ...], split: tuple[int, ...] | None = None
    ) -> Footprint:
        """What a form takes on devices of these backends; the exact numbers of a placement."""
        for each in self.measured:
            if (each.form, each.devices, each.split) == (form, devices, split):
                return each.taken
        if self.known.model is None:
            return _guess(self.model, self.files, len(devices), split)
        taken = footprint(
            self.known.model,
            self.settings(form, devices, split),
            projector=self.known.projector,
            draft=self.known.draft,
        )
        if not self.extra:
            return taken
        more = tuple(
            msgspec.structs.replace(share, overhead=max(0, share.overhead + self.extra))
            for share in taken.devices
        )
        return msgspec.structs.replace(taken, devices=more)

    def prices(self, form: Form, devices: tuple[str, ...]) -> Prices:
        """What the units of a form cost on several devices, projector and draft included.

        The model that drafts is split as this one is, which nobody knows yet: each device is
        charged the most that it can be.
        """
        if self.known.model is None:
            total = _guessed(self.model, self.files)
            piece = -(-total // _PIECES)
            beside = _PIECE_BESIDE
            return Prices(
                units=(piece,) * _PIECES, alone=0, first=beside, middle=beside, last=beside
            )
        bare = prices(self.known.model, self.settings(form, devices))
        taken = self.takes(form, devices)
        projector = max((share.projector for share in taken.devices), default=0)
        first, middle, last = self._drafts(form, devices, len(bare.units))
        return msgspec.structs.replace(
            bare,
            first=bare.first + projector + first + self.extra,
            middle=bare.middle + middle + self.extra,
            last=bare.last + last + self.extra,
        )

    def _drafts(self, form: Form, devices: tuple[str, ...], units: int) -> tuple[int, int, int]:
        """What the model that drafts takes at most on the first, a middle and the last device."""
        count = len(devices)
        if self.known.draft is None or count < 2 or units < count:
            return 0, 0, 0
        most = []
        for place in (0, count // 2, count - 1):
            split = [1] * count
            split[place] += units - count
            most.append(self.takes(form, devices, tuple(split)).devices[place].draft)
        return most[0], most[1], most[2]


def contexts(demand: Demand) -> tuple[int, ...]:
    """Contexts to plan with: what was asked for, halved down to the least; one where it is open.

    An open context is planned with the least, and grows into what is left.
    """
    asked, least = demand.model.context, demand.model.min_context
    if asked is None:
        # What is not known to cost anything is not spared.
        least = least if demand.known.model else DEFAULT_CONTEXT
        return (max(1, min(ceiling(demand), least)),)
    levels = [asked]
    while levels[-1] > least:
        halved = -(-levels[-1] // 2 // 256) * 256
        levels.append(max(least, halved) if halved < levels[-1] else least)
    if demand.failed_at is not None:
        return tuple(level for level in levels if level < demand.failed_at) or (levels[-1],)
    return tuple(levels)


def exhausted(demand: Demand) -> bool:
    """Whether a load ran out of memory although there is no smaller context left to try."""
    failed = demand.failed_at
    return failed is not None and contexts(demand)[-1] >= failed


def ceiling(demand: Demand) -> int:
    """The most tokens per slot: what was asked for, or the trained window.

    A vector is made in one batch, so that a larger context of an embedder would never be filled.
    After a load that ran out of memory it is half of what that had.
    """
    most = demand.model.context
    if most is None:
        most = DEFAULT_CONTEXT if demand.known.model is None else demand.trained
        if demand.pooled:
            most = min(most, max(demand.model.batch, demand.model.ubatch))
    if demand.failed_at is None:
        return most
    return max(min(most, demand.model.min_context), min(most, demand.failed_at // 2))


def _given(args: tuple[str, ...], *names: str) -> bool:
    return any(arg in names for arg in args)


def _guessed(model: Model, files: ModelFiles) -> int:
    """Bytes from the files alone: weights, an eighth for KV and compute, projector times 1.4."""
    beside = max(256 * MIB, files.weights // 8) * max(1, model.slots // 4)
    return files.weights + files.draft_bytes + beside + files.projector_bytes * 7 // 5


def _guess(
    model: Model, files: ModelFiles, devices: int, split: tuple[int, ...] | None
) -> Footprint:
    """An estimate for a model whose header cannot be read."""
    total = _guessed(model, files)
    note = "its header cannot be read: an estimate from the size of the file"
    if devices < 2:
        beside = total - files.weights - files.projector_bytes - files.draft_bytes
        held = {"projector": files.projector_bytes, "draft": files.draft_bytes}
        alone = DeviceShare(weights=files.weights, compute=beside, layers=_PIECES, **held)
        here = HostShare(resident=files.weights, compute=beside, **held)
        host = HostShare() if devices else here
        return Footprint(devices=(alone,) * devices, host=host, exact=False, notes=(note,))
    shares = split or (1,) * devices
    piece = -(-total // _PIECES)
    parts = tuple(
        DeviceShare(weights=piece * share * _PIECES // sum(shares), compute=_PIECE_BESIDE)
        for share in shares
    )
    return Footprint(devices=parts, host=HostShare(), exact=False, notes=(note,))
