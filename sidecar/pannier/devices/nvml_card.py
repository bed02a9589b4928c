"""Reads one card of NVML field by field, or its MIG instances in its place.

Drivers refuse single functions on laptops, on MIG instances, in containers and on chips that share
memory with the CPU: each field fails alone and becomes words, the rest stays. Of a function with
versions the newest that the driver knows is asked: memory without what the driver itself keeps
needs R510. Calls: NVIDIA's nvml.h, as nvidia-ml-py names them.

Must not: import pynvml (it is passed in), or conclude anything from one field about another card.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from pannier.devices.inventory import HostMemory
from pannier.devices.nvml_words import (
    FUNCTION_NOT_FOUND,
    GONE,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    normal_pci,
    shares_memory,
    words,
)
from pannier.devices.reading import Card, CardProcess

_T = TypeVar("_T")
_Memory = tuple[int, int, int]
"""Total, used and free in bytes."""

_PROHIBITED = 2
_MIG_ENABLED = 1
_PROCESS_LISTS: tuple[tuple[Literal["compute", "graphics"], str], ...] = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
)


class Fields:
    """What was asked of one card: the words of what failed, and the codes."""

    def __init__(self, nvml: Any) -> None:  # noqa: ANN401 (pynvml has no types)
        self._nvml = nvml
        self._problems: list[str] = []
        self.codes: set[int] = set()
        self.last: int | None = None
        self.gone: str | None = None

    def read(self, what: str, call: Callable[[], _T], *quiet: int) -> _T | None:
        """The field, or None; a failure with a code of `quiet` is an answer, not a problem."""
        self.last = None
        if self.gone:
            return None
        try:
            return call()
        except self._nvml.NVMLError as error:
            self.last = error.value
            self.codes.add(error.value)
            if error.value in GONE:
                self.gone = words(error.value, str(error))
            elif error.value not in quiet:
                self.say(f"{what} could not be read: {words(error.value, str(error))}")
        except ValueError as error:  # a name that is no UTF-8
            self.say(f"{what} could not be read: {error}")
        return None

    def say(self, problem: str) -> None:
        """One more problem, in words."""
        self._problems.append(problem)

    @property
    def problems(self) -> tuple[str, ...]:
        """A lost card has one problem, not one per field."""
        return (self.gone,) if self.gone else tuple(self._problems)


class CardReader:
    """Reads cards; `host` is the memory of chips that have none of their own."""

    def __init__(self, nvml: Any, host: HostMemory) -> None:  # noqa: ANN401 (pynvml has no types)
        self._nvml = nvml
        self._host = host

    def card(self, index: int, fields: Fields) -> tuple[Card, ...]:
        """The card with this index, or the MIG instances that it is cut into. Never empty."""
        nvml = self._nvml
        handle = fields.read("the card", lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        if fields.last == NO_PERMISSION:
            fields.say("a container has to be given its device file")
        if handle is None:
            return (Card(index=index, compute_capable=False, problems=fields.problems),)
        card = Card(
            index=index,
            name=fields.read("its name", lambda: nvml.nvmlDeviceGetName(handle)) or "",
            uuid=fields.read("its UUID", lambda: nvml.nvmlDeviceGetUUID(handle)),
            pci=fields.read("its PCI bus id", lambda: self._pci(handle)),
            compute_capable=self._can_compute(handle, fields),
        )
        mode = fields.read(
            "its MIG mode", lambda: nvml.nvmlDeviceGetMigMode(handle),
            NOT_SUPPORTED, FUNCTION_NOT_FOUND,
        )  # fmt: skip
        if mode is not None and mode[0] == _MIG_ENABLED:
            return self._instances(card, handle, fields)
        return (self._measured(card, handle, fields),)

    def _pci(self, handle: object) -> str:
        bus_id = self._nvml.nvmlDeviceGetPciInfo_v3(handle).busId
        text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else str(bus_id)
        if (pci := normal_pci(text)) is None:
            raise ValueError(f"{text!r} is no bus id")
        return pci

    def _can_compute(self, handle: object, fields: Fields) -> bool:
        """False where CUDA is known not to run; what cannot be read is no proof."""
        nvml = self._nvml
        fields.read(
            "its compute capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle),
            NOT_SUPPORTED,
        )  # fmt: skip
        if fields.last == NOT_SUPPORTED:
            fields.say("CUDA does not run on it: it has no compute capability")
            return False
        mode = fields.read(
            "its compute mode", lambda: nvml.nvmlDeviceGetComputeMode(handle), NOT_SUPPORTED
        )
        if mode == _PROHIBITED:
            fields.say("its compute mode is Prohibited (allow it: nvidia-smi --compute-mode=0)")
        return mode != _PROHIBITED

    def _instances(self, card: Card, handle: object, fields: Fields) -> tuple[Card, ...]:
        """In MIG mode nothing can run on the card itself."""
        nvml = self._nvml
        count = fields.read(
            "the number of its MIG instances", lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        )
        found: list[Card] = []
        for place in range(count or 0):
            own = Fields(nvml)
            instance = own.read(
                f"its MIG instance {place}",
                partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place),
                NOT_FOUND, INVALID_ARGUMENT,
            )  # fmt: skip
            if instance is not None:
                found.append(self._instance(card, instance, own))
            for problem in own.problems if instance is None else ():
                fields.say(problem)
        if not found:
            fields.say("it is in MIG mode and has no instance that can be seen (nvidia-smi -L)")
            none = msgspec.structs.replace(card, compute_capable=False, problems=fields.problems)
            return (none,)
        whole = fields.problems
        return tuple(
            msgspec.structs.replace(each, problems=(*whole, *each.problems)) for each in found
        )

    def _instance(self, card: Card, handle: object, fields: Fields) -> Card:
        nvml = self._nvml
        instance = msgspec.structs.replace(
            card,
            name=fields.read("its name", lambda: nvml.nvmlDeviceGetName(handle)) or card.name,
            uuid=fields.read("its UUID", lambda: nvml.nvmlDeviceGetUUID(handle)),
            parent=card.uuid or card.pci or f"card {card.index}",
        )
        return self._measured(instance, handle, fields)

    def _measured(self, card: Card, handle: object, fields: Fields) -> Card:
        """The card with its memory, its processes, and all that was wrong."""
        memory = fields.read("its memory", lambda: self._memory(handle), NOT_SUPPORTED)
        refused = fields.last == NOT_SUPPORTED
        total = memory[0] if memory else None
        unified = card.parent is None and shares_memory(
            card.name, total, self._host.total, refused=refused
        )
        if unified:
            memory = self._shared(fields)
        elif refused:
            fields.say("its memory could not be read: the driver does not support it here")
        processes = fields.read("its processes", lambda: self._processes(handle))
        total, used, free = memory or (None, None, None)
        return msgspec.structs.replace(
            card,
            total=total, used=used, free=free, processes=processes, unified=unified,
            compute_capable=card.compute_capable and not fields.gone,
            problems=fields.problems,
        )  # fmt: skip

    def _memory(self, handle: object) -> _Memory:
        """What the driver keeps for itself counts as used by version 1 alone."""
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except nvml.NVMLError as error:
            if error.value in GONE:
                raise
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        if not memory.total:
            raise ValueError("the driver says that it has 0 bytes")
        return memory.total, memory.used, memory.free

    def _shared(self, fields: Fields) -> _Memory | None:
        if not self._host.total:
            fields.say("its memory is the host's, of which nothing is known")
            return None
        used = max(0, self._host.total - self._host.available)
        return self._host.total, used, self._host.total - used

    def _processes(self, handle: object) -> tuple[CardProcess, ...]:
        """Compute and graphics in one list: a process that does both holds its bytes once."""
        found: dict[int, CardProcess] = {}
        for kind, function in _PROCESS_LISTS:
            for entry in self._listed(kind, function, handle):
                size = entry.usedGpuMemory
                known = found.get(entry.pid)
                if known is None:
                    found[entry.pid] = CardProcess(pid=entry.pid, bytes=size, kind=kind)
                elif size is not None:
                    most = max(size, known.bytes or 0)
                    found[entry.pid] = msgspec.structs.replace(known, bytes=most)
        return tuple(found.values())

    def _listed(self, kind: str, function: str, handle: object) -> list[Any]:
        nvml = self._nvml
        try:
            return list(getattr(nvml, f"{function}_v3")(handle))
        except nvml.NVMLError as error:
            if error.value == NOT_SUPPORTED and kind == "graphics":
                return []  # a card without graphics has no such process
            if error.value != FUNCTION_NOT_FOUND:
                raise
        return list(getattr(nvml, f"{function}_v2")(handle))
