"""config x inventory x footprints -> Plan: which model runs where, and why.

Pure and deterministic: the same input gives the same plan, in whatever order the models stand in
the file. One function for everybody: the view, the preview and the launch are its value. What a
person pinned is obeyed or refused; everything else is found by `pack`, beside it.

Must not: read files, ask devices, or look at what runs but for where it runs.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from pannier.config.schema import Config
from pannier.devices.inventory import Inventory, with_reserves
from pannier.gguf.footprint.values import MEASURED_BUILD, Footprint
from pannier.gguf.model_files import ModelFiles
from pannier.plan.demand import NO_PROFILE, Demand, Form, Measured, ModelProfile, ceiling
from pannier.plan.explain import (
    cannot_fit,
    context_reason,
    no_context,
    rejection,
    shared_reasons,
    tight_reasons,
)
from pannier.plan.fit import Ladder, ladder
from pannier.plan.grow import Grown, Growth
from pannier.plan.items import Item
from pannier.plan.machine import UNKNOWN_ROOM, Machine, Pin, Sizes, machine_of
from pannier.plan.pack import LIMIT, Packing, Spot, pack
from pannier.plan.pins import pins_of
from pannier.plan.roles import ROLES, load_ceiling_s
from pannier.plan.spec import PlacementError, PlacementSpec, spec_of_config
from pannier.plan.stay import stay
from pannier.plan.values import Group, Instance, Plan, Rejected, Unplaceable

NO_SPEC = PlacementSpec()


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the config and the devices; all of it may be absent.

    `profiles` come from the headers, by model. `running` is the plan that runs, and `resident` its
    instances that are in memory now. By model: `measured` are forms whose loads were measured,
    `extra` is what loads took beyond the estimate, in bytes per device, `failed_at` the context of
    a load that ran out of memory. `build` is the engine's.
    """

    profiles: Mapping[str, ModelProfile] = {}
    running: Plan | None = None
    resident: frozenset[str] = frozenset()
    measured: Mapping[str, tuple[Measured, ...]] = {}
    extra: Mapping[str, int] = {}
    failed_at: Mapping[str, int] = {}
    build: int = MEASURED_BUILD


class _Launch(msgspec.Struct, kw_only=True):
    """One launch on its way into the plan: mutable only here."""

    id: str
    demand: Demand
    replica: int
    pin: Pin | None
    sizes: Sizes
    ladder: Ladder | None = None
    clipped: Item | None = None
    tight: dict[int, int] = {}

    def form(self, level: int) -> Form | None:
        """Its form at a level of context; None for what does not fit."""
        return self.ladder.at(level) if self.ladder else None


def make_plan(
    config: Config,
    inventory: Inventory,
    files: Mapping[str, ModelFiles],
    known: Known | None = None,
) -> Plan:
    """The plan for this config on these devices. Never raises for a valid config.

    A manual spec that cannot be obeyed is rejected with its reason, and the automatic plan made.
    """
    known = known or Known()
    spec = spec_of_config(config)
    try:
        return plan_for(spec, config, inventory, files, known)
    except PlacementError as error:
        plan = plan_for(NO_SPEC, config, inventory, files, known)
        rejected = Rejected(spec=str(spec), reason=str(error))
        why = f"the placement of the config is not used: {error}"
        return msgspec.structs.replace(plan, rejected=rejected, reasons=(why, *plan.reasons))


def plan_for(
    spec: PlacementSpec,
    config: Config,
    inventory: Inventory,
    files: Mapping[str, ModelFiles],
    known: Known | None = None,
) -> Plan:
    """The plan with this manual spec. Raises PlacementError when it cannot be obeyed."""
    planning = _Planning(spec, config, inventory, files, known or Known())
    return planning.plan()


class _Planning:
    """The making of one plan."""

    def __init__(
        self,
        spec: PlacementSpec,
        config: Config,
        inventory: Inventory,
        files: Mapping[str, ModelFiles],
        known: Known,
    ) -> None:
        self._spec, self._config, self._known = spec, config, known
        self._inventory = with_reserves(inventory, config.memory.reserve)
        running = known.running
        ours = sum(
            instance.host_bytes.total
            for instance in (running.instances if running else ())
            if instance.id in known.resident
        )
        self._machine: Machine = machine_of(self._inventory, config.memory.reserve, ours)
        self._sizes = Sizes(self._machine)
        self._files = files
        self._split_over: frozenset[int] = frozenset()
        self._unplaceable: list[Unplaceable] = []
        self._reasons: list[str] = list(inventory.notes)

    def plan(self) -> Plan:
        names = sorted(
            self._config.models, key=lambda name: (ROLES[self._config.models[name].role].rank, name)
        )
        absent = tuple(name for name in names if self._files[name].missing)
        launches = self._launches([name for name in names if name not in absent])
        keeps = [launch for launch in launches if launch.demand.model.keep]
        others = [launch for launch in launches if not launch.demand.model.keep]
        rooms, host = self._settle(keeps)
        self._fit(others, rooms, host)
        placed = [launch for launch in launches if launch.ladder or launch.clipped]
        weighed = [each for each in placed if not (each.tight and _keeps(each))]
        packing, forms = self._pack(weighed)
        grown = self._grow(placed, packing, forms)
        return self._finish(placed, packing, grown, absent)

    def _launches(self, names: Sequence[str]) -> list[_Launch]:
        launches = []
        for name in names:
            model = self._config.models[name]
            demand = Demand(
                name=name,
                model=model,
                files=self._files[name],
                known=self._known.profiles.get(name, NO_PROFILE),
                build=self._known.build,
                measured=self._known.measured.get(name, ()),
                extra=self._known.extra.get(name, 0),
                failed_at=self._known.failed_at.get(name),
            )
            pins = pins_of(self._spec, demand, self._inventory, self._sizes)
            for replica, pin in enumerate(pins):
                many = len(pins) > 1
                launches.append(
                    _Launch(
                        id=f"{name}#{replica}" if many else name,
                        demand=demand,
                        replica=replica,
                        pin=pin,
                        sizes=self._sizes,
                    )
                )
            if demand.known.problem:
                self._reasons.append(f"{name}: {demand.known.problem}")
        return launches

    def _settle(self, keeps: list[_Launch]) -> tuple[tuple[int, ...], int]:
        """Rooms that are left beside what is never swapped out."""
        rooms, host = self._machine.capacity, self._machine.host
        settled: list[_Launch] = []
        # One after the other in the order of the plan, each within what those before leave; what
        # comes does not push aside what runs.
        for launch in sorted(keeps, key=lambda each: self._running(each) is None):
            self._fit([launch], rooms, host)
            if launch.ladder is None:
                continue
            packing = self._try_pack([*settled, launch], even=False)
            if packing is None:
                launch.ladder = None
                self._squeeze(launch, rooms, host)
                continue
            settled.append(launch)
            rooms, host = packing.rooms, packing.host_room
            spread = (spot for spot in packing.spots.values() if spot.layers is not None)
            self._split_over = frozenset(at for spot in spread for at in spot.devices)
        return rooms, host

    def _fit(self, launches: Sequence[_Launch], rooms: tuple[int, ...], host: int) -> None:
        """The forms of each launch within these rooms, or why there is none."""
        sizes = Sizes(self._machine, rooms, self._split_over)
        for launch in launches:
            launch.sizes = sizes
            launch.ladder = ladder(launch.demand, sizes, rooms, host, pin=launch.pin)
            if launch.ladder is None:
                self._squeeze(launch, rooms, host)
            else:
                self._reasons += launch.ladder.steps

    def _squeeze(self, launch: _Launch, rooms: tuple[int, ...], host: int) -> None:
        """Nothing that is open is enough: tight where that may be tried, else not placed."""
        demand, pin = launch.demand, launch.pin
        form = demand.form(no_context(demand))
        needs = launch.sizes.needs_of(demand, form, pin)
        item = launch.sizes.item(demand, form, pin)
        # Where the devices hold it, RAM is what is missing, and that is not tried: what would be
        # killed for it may be any program.
        held = launch.sizes.fits(item, rooms, UNKNOWN_ROOM)
        short = {} if held else {at: n - rooms[at] for at, n in needs.items() if n > rooms[at]}
        tried = self._machine.dedicated and short
        if pin is not None and not (pin.force and tried):
            raise rejection(demand, self._machine, needs, short, ram=(item.host, host))
        if not tried:
            self._unplaceable.append(cannot_fit(demand, launch.sizes, form, rooms, host))
            return
        launch.tight = short
        way = tuple((at, min(need, rooms[at])) for at, need in needs.items())
        launch.clipped = Item(id=launch.id, ways=(way,), pooled=demand.pooled)

    def _item(self, launch: _Launch, form: Form | None) -> Item:
        running = self._running(launch)
        home = self._indices(running.devices) if running else ()
        item = launch.clipped
        if form is not None:
            item = launch.sizes.item(launch.demand, form, launch.pin)
        assert item is not None  # noqa: S101  all others were left out
        keep = launch.demand.model.keep
        return msgspec.structs.replace(item, id=launch.id, keep=keep, home=home)

    def _running(self, launch: _Launch) -> Instance | None:
        plan = self._known.running
        found = next((i for i in (plan.instances if plan else ()) if i.id == launch.id), None)
        return found if found and found.model == launch.demand.name else None

    def _indices(self, labels: tuple[str, ...]) -> tuple[int, ...]:
        names = self._machine.names
        if any(label not in names for label in labels):
            return ()
        return tuple(names.index(label) for label in labels)

    def _try_pack(self, launches: Sequence[_Launch], *, even: bool = True) -> Packing | None:
        depth = max((len(each.ladder.forms) for each in launches if each.ladder), default=1)
        levels = [
            [self._item(each, each.form(level)) for each in launches] for level in range(depth)
        ]
        machine = self._machine
        return pack(levels, machine.capacity, machine.host, limit=LIMIT, even=even)

    def _pack(self, launches: Sequence[_Launch]) -> tuple[Packing, Mapping[str, Form | None]]:
        """Where all of them go, and in which forms they are there."""
        packing = self._try_pack(launches)
        # Each of them fits alone beside what is never swapped out, so that all fit in swap sets.
        assert packing is not None, "no packing although every model fits alone"  # noqa: S101
        planned = {each.id: each.form(packing.level) for each in launches}
        running = self._known.running
        if running is None:
            return packing, planned
        # With the contexts that they have now, if that leaves room for what is new.
        for forms in ({each.id: self._as_it_runs(each, packing) for each in launches}, planned):
            kept = stay(
                [group.members for group in running.groups],
                [self._item(each, forms[each.id]) for each in launches],
                {each.id: each.tensor_split for each in running.instances if each.tensor_split},
                packing,
                capacity=self._machine.capacity,
                host=self._machine.host,
            )
            if kept is not None:
                return kept, forms
        return packing, planned

    def _as_it_runs(self, launch: _Launch, packing: Packing) -> Form | None:
        form, running = launch.form(packing.level), self._running(launch)
        if form is None or running is None:
            return form
        context = min(running.context, ceiling(launch.demand))
        return launch.demand.widened(form, context) if context > form.context else form

    def _grow(
        self,
        launches: Sequence[_Launch],
        packing: Packing,
        forms: Mapping[str, Form | None],
    ) -> dict[str, Grown]:
        grown = []
        for launch in launches:
            form = forms.get(launch.id)
            if form is None:
                continue
            running = self._running(launch)
            grown.append(
                Grown(
                    id=launch.id,
                    demand=launch.demand,
                    form=form,
                    spot=packing.spots[launch.id],
                    pin=launch.pin,
                    sizes=launch.sizes,
                    running=running.context if running else None,
                    split=running.tensor_split if running else None,
                )
            )
        # The clipped ones are part of the charges, and stay as they are.
        fixed = [packing.spots[each.id] for each in launches if each.id in packing.spots]
        Growth(packing, grown, self._machine, fixed).run()
        return {each.id: each for each in grown}

    def _finish(
        self,
        launches: Sequence[_Launch],
        packing: Packing,
        grown: Mapping[str, Grown],
        absent: tuple[str, ...],
    ) -> Plan:
        instances = []
        for launch in launches:
            found = grown.get(launch.id)
            made = self._instance(launch, found.form, found.spot) if found else self._tight(launch)
            instances.append(made)
            first = launch.ladder.at(0).context if launch.ladder else 0
            alone = first < (launch.demand.model.context or 0)
            why = context_reason(launch.demand, made.context, alone=alone)
            self._reasons += [why] if why else []
        names = self._machine.names
        tight = {
            launch.id: {names[at]: short for at, short in sorted(launch.tight.items())}
            for launch in sorted(launches, key=lambda launch: launch.id)
            if launch.tight
        }
        groups = self._groups(instances, packing)
        reasons = (
            *dict.fromkeys(self._reasons),
            *shared_reasons(groups, instances),
            *tight_reasons(tight),
        )
        return Plan(
            manual=bool(self._spec.entries),
            spec=str(self._spec) if self._spec.entries else None,
            devices=self._inventory.devices,
            instances=tuple(instances),
            groups=groups,
            unplaceable=tuple(self._unplaceable),
            skipped_not_installed=absent,
            tight=tight,
            co_tenants=_co_tenants(instances),
            reasons=reasons,
        )

    def _instance(self, launch: _Launch, form: Form, spot: Spot) -> Instance:
        devices = spot.devices if self._machine.devices else ()
        split = spot.layers
        if split is None and launch.pin is not None and len(devices) > 1:
            split = launch.pin.split or launch.sizes.even(launch.demand, form, devices)
        taken = launch.demand.takes(form, self._machine.backends(devices), split)
        return self._made(launch, form, devices, split, taken)

    def _tight(self, launch: _Launch) -> Instance:
        """One that does not fit: where it was weighed, with what it would take there."""
        form = launch.demand.form(no_context(launch.demand))
        needs = launch.sizes.needs_of(launch.demand, form, launch.pin)
        devices = tuple(needs)
        split = launch.pin.split if launch.pin else None
        if len(devices) > 1 and split is None:
            split = launch.sizes.proportional(launch.demand, form, devices)
        taken = launch.demand.takes(form, self._machine.backends(devices), split)
        return self._made(launch, form, devices, split, taken)

    def _made(
        self,
        launch: _Launch,
        form: Form,
        devices: tuple[int, ...],
        split: tuple[int, ...] | None,
        taken: Footprint,
    ) -> Instance:
        model, files = launch.demand.model, launch.demand.files
        layers: int | Literal["auto", "all"] = model.gpu_layers
        if form.gpu_layers is not None:
            layers = form.gpu_layers
        elif launch.demand.known.model and not launch.tight:
            # What does not fit is left to llama-server, which moves layers until it loads.
            layers = "all"
        return Instance(
            id=launch.id,
            model=launch.demand.name,
            role=model.role,
            replica=launch.replica,
            devices=tuple(self._machine.names[at] for at in devices),
            tensor_split=split if len(devices) > 1 else None,
            context=form.context,
            slots=model.slots,
            kv_type=model.kv_type,
            batch=form.batch,
            ubatch=form.ubatch,
            gpu_layers=layers,
            cpu_moe=form.cpu_moe if form.cpu_moe is not None else "all",
            projector_on_device=form.projector_on_device,
            device_bytes=taken.devices,
            host_bytes=taken.host,
            exact=taken.exact,
            measured=taken.measured,
            pinned=launch.pin is not None,
            file_bytes=files.total,
            load_timeout_s=load_ceiling_s(model.role, files.total),
        )

    def _groups(self, instances: Sequence[Instance], packing: Packing) -> tuple[Group, ...]:
        """Residents in the order of the plan, then the swap sets, named by their first device."""
        by_set: dict[int, list[Instance]] = {}
        for instance in instances:
            spot = packing.spots.get(instance.id)
            if spot is not None:
                by_set.setdefault(spot.group, []).append(instance)
        swapped = [members for members in by_set.values() if len(members) > 1]
        together = {instance.id for members in swapped for instance in members}
        groups = [Group(id=i.id, members=(i.id,)) for i in instances if i.id not in together]
        taken = {instance.id for instance in instances}
        for members in sorted(swapped, key=self._first_device):
            first = self._machine.names[self._first_device(members)[0]]
            name = f"swap-{first}"
            while name in taken:
                name = f"swap-{name}"
            taken.add(name)
            ids = tuple(instance.id for instance in members)
            groups.append(Group(id=name, members=ids, swap=True))
        return tuple(groups)

    def _first_device(self, members: Sequence[Instance]) -> tuple[int, str]:
        used = [at for member in members for at in self._indices(member.devices)]
        return min(used, default=0), members[0].id


def _keeps(launch: _Launch) -> bool:
    return launch.demand.model.keep


def _co_tenants(instances: Sequence[Instance]) -> dict[str, tuple[str, ...]]:
    """Which instances share a device, by its label."""
    on: dict[str, list[str]] = {}
    for instance in instances:
        for label in instance.devices:
            on.setdefault(label, []).append(instance.id)
    return {label: tuple(sorted(ids)) for label, ids in sorted(on.items()) if len(ids) > 1}
