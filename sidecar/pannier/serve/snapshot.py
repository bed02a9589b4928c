"""Everything that HTTP answers are made from, as one immutable value. Pure.

The service publishes a new one after every change; a handler takes the latest and needs nothing
else, so that no answer mixes two moments and none of them asks a process.

Must not: hold anything live.
"""

import msgspec

from pannier.config.schema import Config
from pannier.devices.inventory import Inventory
from pannier.errors import Problem
from pannier.fleet.view import FleetView
from pannier.plan.values import Plan


class ConfigStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The config file as it was read last; `loaded_at` is wall time, seconds since 1970.

    `notes` are worth knowing and are nothing that is wrong in the file.
    """

    path: str
    loaded_at: float
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of Pannier. `generation` rises by one with every config that is applied.

    `memory_notes` say by instance where loads took other sizes than the rules say, `digests` by
    group what it runs.
    """

    generation: int
    host: str
    status: ConfigStatus
    config: Config
    plan: Plan
    inventory: Inventory = Inventory()
    fleet: FleetView = FleetView()
    memory_notes: dict[str, tuple[str, ...]] = {}
    digests: dict[str, str] = {}
    stopping: bool = False

    @property
    def shown_status(self) -> ConfigStatus:
        """The status with what is to be said of devices and memory at this moment."""
        stale = self.inventory.stale
        notes = [f"devices: the last list stays: {stale}"] if stale is not None else []
        for instance in self.plan.instances:
            notes += [f"{instance.id}: {said}" for said in self.memory_notes.get(instance.id, ())]
        if not notes:
            return self.status
        return msgspec.structs.replace(self.status, notes=(*self.status.notes, *notes))

    def model_of(self, name: str) -> str | None:
        """The model that a client means by an id or an alias."""
        if name in self.config.models:
            return name
        for model_id, model in self.config.models.items():
            if name in model.aliases:
                return model_id
        return None
