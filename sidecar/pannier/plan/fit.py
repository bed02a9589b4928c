"""What to give up when a model does not fit, and in which order.

A ladder of what the person left open, cheapest first: context down to the least; the projector to
RAM; experts to RAM; layers to RAM. Each rung is taken only when all before it were not enough, and
only as far as needed; each is a reason with numbers. What is written in the config as a number is
not a rung.

Must not: look at other models; the rooms that it is given are what one launch may have.
"""

from collections.abc import Callable, Iterator

import msgspec

from pannier.plan.demand import Demand, Form, contexts, exhausted
from pannier.plan.machine import UNKNOWN_ROOM, Pin, Sizes

GIB = 1024**3


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """The forms that one launch may take, by level of context, from the first that fits.

    `steps` are the reasons for what was given up already, but for the context, which may grow again
    when all have their places.
    """

    forms: tuple[Form, ...]
    steps: tuple[str, ...] = ()

    def at(self, level: int) -> Form:
        """The form at a level of context; the last one for all levels beyond."""
        return self.forms[min(level, len(self.forms) - 1)]


def ladder(
    demand: Demand,
    sizes: Sizes,
    rooms: tuple[int, ...],
    host: int,
    *,
    pin: Pin | None = None,
) -> Ladder | None:
    """The first forms that fit these rooms; None when nothing that is open is enough.

    A model that ran out of memory with its least context has to give up something else.
    """

    def fits(form: Form) -> bool:
        return sizes.fits(sizes.item(demand, form, pin), rooms, host)

    def held(form: Form) -> bool:
        # What leaves the devices goes to RAM, so that with both there may be a least and a most.
        return sizes.fits(sizes.item(demand, form, pin), rooms, UNKNOWN_ROOM)

    plain = [demand.form(context) for context in contexts(demand)]
    first = next((at for at, form in enumerate(plain) if fits(form)), None)
    if first is not None and not exhausted(demand):
        forms = (plain[first],) * (first + 1) + tuple(plain[first + 1 :])
        return Ladder(forms=forms)
    steps = []
    for form, step in _rungs(demand, plain[-1], held):
        steps.append(step)
        if fits(form):
            return Ladder(forms=(form,), steps=tuple(steps))
    return None if first is None else Ladder(forms=(plain[-1],), steps=tuple(steps))


def _rungs(demand: Demand, form: Form, held: Callable[[Form], bool]) -> Iterator[tuple[Form, str]]:
    """What may be moved to RAM, one kind after the other, as little of it as is enough."""
    known = demand.known
    if known.projector is not None and form.projector_on_device:
        form = msgspec.structs.replace(form, projector_on_device=False)
        size = known.projector.weights + known.projector.compute
        yield form, f"{demand.name}: the projector ({size / GIB:.2f} GiB) stays in RAM: slower"
    if known.model is None:
        return
    if demand.model.cpu_moe == "auto" and known.model.has_experts:
        most = known.model.expert_layers
        count = _least(1, most, lambda n: held(msgspec.structs.replace(form, cpu_moe=n)))
        form = msgspec.structs.replace(form, cpu_moe=count)
        yield form, f"{demand.name}: the experts of {count} of {most} layers stay in RAM: slower"
    if demand.model.gpu_layers == "auto":
        units = known.model.units
        kept = _least(1, units, lambda n: held(msgspec.structs.replace(form, gpu_layers=units - n)))
        form = msgspec.structs.replace(form, gpu_layers=units - kept)
        yield form, f"{demand.name}: {kept} of {units} layers stay in RAM: slower"


def _least(low: int, high: int, enough: Callable[[int], bool]) -> int:
    """The least of low..high that is enough, for what only gets easier; high when none is."""
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
