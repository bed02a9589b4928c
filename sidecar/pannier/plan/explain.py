"""The reasons of a plan in words with numbers: what was refused, what is missing, what would help.

Must not: decide anything; it is asked when all is decided.
Each sentence names the model, what it needs, what there is, and on which device.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from pannier.plan.demand import Demand, Form, contexts
from pannier.plan.machine import UNKNOWN_ROOM, Machine, Sizes
from pannier.plan.spec import PlacementError
from pannier.plan.values import Group, Instance, Unplaceable

GIB = 1024**3

_LESS_RAM = "less RAM used by other programs, or models that keep less of themselves there"


def gib(size: int) -> str:
    """Bytes for a person: "1.25 GiB"."""
    return f"{size / GIB:.2f} GiB"


def no_context(demand: Demand) -> int:
    """The least context: what a model that does not fit is weighed with."""
    return contexts(demand)[-1]


def rejection(
    demand: Demand,
    machine: Machine,
    needs: Mapping[int, int],
    short: Mapping[int, int],
    *,
    ram: tuple[int, int],
) -> PlacementError:
    """Why a pin cannot be obeyed: need, have and the device that binds; or `ram`, need and have."""
    if not short:
        return PlacementError(f"{demand.name} {_no_ram(*ram)}", hint=_LESS_RAM)
    worst = max(short, key=lambda at: (short[at], -at))
    force = ' or `force = true`, which loads it anyway ("tight")' if machine.dedicated else ""
    return PlacementError(
        f"{demand.name} needs {gib(needs[worst])} on {machine.names[worst]},"
        f" which has {gib(max(0, needs[worst] - short[worst]))} for it:"
        f" {gib(short[worst])} are missing",
        hint=f"other devices, a smaller context{force}",
    )


def _no_ram(need: int, have: int) -> str:
    return f"needs {gib(need)} of RAM beside its devices, and this machine has {gib(have)} for it"


def context_reason(demand: Demand, context: int, *, alone: bool) -> str | None:
    """Why a context is smaller than what was asked for; `alone`: it would not fit by itself."""
    asked = demand.model.context
    if asked is None or context >= asked:
        return None
    if demand.failed_at is not None:
        why = f"with {demand.failed_at} it ran out of memory"
    elif alone:
        why = "with more it does not fit"
    else:
        why = "with more, fewer models could stay in memory"
    return f"{demand.name}: context {context} instead of {asked} tokens: {why}"


def shared_reasons(groups: Sequence[Group], instances: Sequence[Instance]) -> list[str]:
    """Which models share memory, and where."""
    where = {instance.id: instance.devices for instance in instances}
    reasons = []
    for group in groups:
        if group.swap:
            labels = sorted({label for member in group.members for label in where[member]})
            places = ", ".join(labels) or "the RAM"
            reasons.append(f"{', '.join(group.members)} share {places}: not all fit at once")
    return reasons


def tight_reasons(tight: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What is missing where a model is loaded although it does not fit."""
    return [
        f"{name} does not fit {label}: {gib(missing)} are missing"
        for name, short in tight.items()
        for label, missing in short.items()
    ]


def cannot_fit(
    demand: Demand, sizes: Sizes, form: Form, rooms: tuple[int, ...], host: int
) -> Unplaceable:
    """A model that cannot be served, with what it needs by parts and what would help."""
    machine = sizes.machine
    item = sizes.item(demand, form)
    if sizes.fits(item, rooms, UNKNOWN_ROOM):
        return Unplaceable(
            model=demand.name,
            need=item.host,
            have=host,
            reason=f"it {_no_ram(item.host, host)}",
            parts={"RAM": item.host},
            have_by_device={"host": host},
            ways_out=(_LESS_RAM,),
        )
    backends = machine.backends((0,)) if machine.devices else ()
    taken = demand.takes(form, backends)
    share = taken.devices[0] if taken.devices else taken.host
    fields = ("weights", "kv", "compute", "projector", "draft", "overhead")
    parts = {name: getattr(share, name, 0) for name in fields}
    need = share.total
    have = max(rooms, default=0)
    return Unplaceable(
        model=demand.name,
        need=need,
        have=max(0, have),
        reason=f"it needs {gib(need)}, and this machine has {gib(max(0, have))} for it",
        parts={name: size for name, size in parts.items() if size},
        have_by_device=dict(zip(machine.names, rooms, strict=True)),
        ways_out=tuple(_ways_out(demand, sizes, rooms, need, have)),
    )


def _ways_out(
    demand: Demand, sizes: Sizes, rooms: tuple[int, ...], need: int, have: int
) -> list[str]:
    """What would make it fit, the cheapest first."""
    host = sizes.machine.host

    def fits(**changes: object) -> Callable[[int], bool]:
        changed = msgspec.structs.replace(
            demand, model=msgspec.structs.replace(demand.model, **changes)
        )

        def tried(context: int) -> bool:
            other = Sizes(sizes.machine, rooms)
            return other.fits(other.item(changed, changed.form(context)), rooms, host)

        return tried

    least = contexts(demand)[-1]
    ways = []
    smaller = next((size for size in (2048, 1024, 512) if size < least and fits()(size)), None)
    if smaller:
        ways.append(f"a context of {smaller} tokens (`context` and `min_context`)")
    if (
        demand.known.model is not None
        and demand.model.kv_type == "f16"
        and fits(kv_type="q8_0")(least)
    ):
        ways.append('a smaller KV cache (`kv_type = "q8_0"`)')
    if demand.model.slots > 1 and fits(slots=1)(least):
        ways.append("fewer slots (`slots = 1`)")
    weights = demand.files.weights
    fitting = weights - (need - have)
    if fitting > weights // 4:  # 16 bits to 4: what quantisation can do
        ways.append(
            f"a smaller quantisation: a file of at most {gib(fitting)} instead of {gib(weights)}"
        )
    else:
        ways.append("a smaller model")
    ways.append("another model without `keep`, or less memory used by other programs")
    return ways
