"""A config file, a real planner, and a fleet that does at once what it is told: a small Pannier.

What the placement service sees of a running one (`placement.live.Desk`), without processes. The
machine is by hand; the files, the edits, the plans and the writes are real.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
from tests.fakes.values import LAUNCHER, machine

from pannier.config.load import parse
from pannier.devices.inventory import Inventory, with_reserves
from pannier.errors import ConfigError, Failure
from pannier.fleet.view import FleetView, GroupView, InstanceView
from pannier.gguf.files import find_files
from pannier.placement.digests import digests_of
from pannier.plan.spec import PlacementSpec
from pannier.planning import Answer, Planner, Question
from pannier.progress.hub import Latest
from pannier.reload import Prepared
from pannier.render.argv import EngineFlavour
from pannier.serve.security import access_of
from pannier.serve.snapshot import ConfigStatus, Snapshot

TWO_CARDS = machine(24, 24)
TWO_MODELS = """\
# mine, and it stays
[server]
allow_http_placement = true   # everybody may

[models.a]
path = "a.gguf"
[models.b]
path = "b.gguf"
"""


class Desk:
    """Its folder holds config.toml and the model files; `failing` models cannot be loaded."""

    def __init__(
        self, folder: Path, text: str = TWO_MODELS, inventory: Inventory = TWO_CARDS
    ) -> None:
        self.path = folder / "config.toml"
        self.path.write_text(text)
        for name in ("a.gguf", "b.gguf"):
            (folder / name).write_bytes(b"x" * 1000)
        self.changing = asyncio.Lock()
        self.inventory = inventory
        self.planner = Planner()
        self.failing: dict[str, Failure] = {}
        self.silent: frozenset[str] = frozenset()
        self.adopted: list[int] = []
        self.anew = False
        self.content = text.encode()
        self.prepared = self.prepared_of(self.content)
        self.snapshots: Latest[Snapshot] = Latest(self._snapshot(0))
        self.adopt(self.content, self.prepared)

    async def prepare(self, content: bytes) -> Prepared:
        return self.prepared_of(content)

    def prepared_of(self, content: bytes) -> Prepared:
        config = parse(content)
        inventory = with_reserves(self.inventory, config.memory.reserve)
        files = find_files(config, self.path.parent)
        question = Question(
            config=config,
            inventory=inventory,
            files=files,
            flavour=EngineFlavour(path="/opt/llama-server"),
            host="direct",
            launcher=LAUNCHER,
        )
        made = self.planner.answer(question)
        if made.problems:
            raise ConfigError(made.problems)
        return Prepared(
            config=config,
            access=access_of(config.server),
            host="direct",
            llama_swap=None,
            files={each.id: files[each.model] for each in made.plan.instances},
            inventory=inventory,
            question=question,
            plan=made.plan,
            groups=made.groups,
            missing=(),
        )

    async def preview(self, spec: PlacementSpec) -> Answer:
        return self.planner.answer(self.prepared.question, spec)

    def adopt(self, content: bytes, prepared: Prepared) -> int:
        self.content, self.prepared = content, prepared
        self.snapshots.publish(self._snapshot(self.snapshots.value.generation + 1))
        self.adopted.append(self.snapshots.value.generation)
        return self.snapshots.value.generation

    def plans_anew(self) -> bool:
        return self.anew

    def say(self, phases: Mapping[str, str]) -> None:
        """Publishes the same with these phases of instances."""
        before = self.snapshots.value
        self.snapshots.publish(msgspec.structs.replace(before, fleet=self._fleet(phases)))

    def _snapshot(self, generation: int) -> Snapshot:
        prepared = self.prepared
        phases = {
            each.id: "failed" if each.model in self.failing else "ready"
            for each in prepared.plan.instances
            if each.model not in self.silent
        }
        return Snapshot(
            generation=generation,
            host="direct",
            status=ConfigStatus(path=str(self.path), loaded_at=1.0),
            config=prepared.config,
            plan=msgspec.structs.replace(prepared.plan, generation=generation),
            inventory=prepared.inventory,
            fleet=self._fleet(phases),
            digests=digests_of(prepared.groups, prepared.question.host),
        )

    def _fleet(self, phases: Mapping[str, str]) -> FleetView:
        plan = self.prepared.plan

        def view(instance: str, group: str) -> InstanceView:
            return InstanceView(
                id=instance,
                group=group,
                phase=phases.get(instance, "cold"),  # type: ignore[arg-type]
                devices=plan.instance(instance).devices,
                failure=self.failing.get(plan.instance(instance).model),
            )

        return FleetView(
            groups=tuple(
                GroupView(
                    id=group.id,
                    identity=group.identity,
                    phase="ready",
                    instances=tuple(view(each.instance, group.id) for each in group.launches),
                )
                for group in self.prepared.groups.values()
            )
        )
