"""Plan -> what the fleet shall run: the launch of every group. Pure.

A group that cannot be rendered (an argument that llama-swap cannot carry) is a problem with its
model's name, and does not keep the others from being rendered.

Must not: decide which host runs; it is told.
"""

from collections.abc import Mapping, Sequence

from pannier.config.schema import Config
from pannier.errors import Problem
from pannier.gguf.model_files import ModelFiles
from pannier.plan.values import Plan
from pannier.render.argv import EngineFlavour, make_launch
from pannier.render.llama_swap import GroupLaunch, group_launch


def render_plan(
    plan: Plan,
    config: Config,
    files: Mapping[str, ModelFiles],
    engine: EngineFlavour,
    *,
    host: str,
    launcher: Sequence[str],
) -> tuple[dict[str, GroupLaunch], tuple[Problem, ...]]:
    """The groups to run by id, and what could not be rendered."""
    groups: dict[str, GroupLaunch] = {}
    problems: list[Problem] = []
    for group in plan.groups:
        instances = [plan.instance(member) for member in group.members]
        launches = [
            make_launch(instance, config, files[instance.model], engine, plan)
            for instance in instances
        ]
        try:
            groups[group.id] = group_launch(
                group.id, launches, swap=group.swap, host=host, launcher=launcher
            )
        except ValueError as error:
            where = f"models.{instances[0].model}"
            problems.append(Problem(code="unrenderable", where=where, message=str(error)))
    return groups, tuple(problems)
