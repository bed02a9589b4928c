"""Plan -> what the fleet shall run: the launch of every group. Pure.

A group that cannot be rendered (an argument that llama-swap cannot carry, or one that contradicts
the plan) is a problem with its model's name, and does not keep the others from being rendered.

Must not: decide which host runs; it is told.
"""

from collections.abc import Mapping, Sequence

from pannier.config.schema import Config
from pannier.errors import Problem
from pannier.gguf.model_files import ModelFiles
from pannier.plan.values import Group, Plan
from pannier.render.argv import EngineFlavour, Launch, render_launch
from pannier.render.conflicts import config_problems, launch_problems, once
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
    """The groups to run by id, and what could not be rendered.

    The problems of the config alone (`config_problems`) are among them, also those of models that
    are not placed: they are what `check` finds.
    """
    groups: dict[str, GroupLaunch] = {}
    problems = [*config_problems(config)]
    for group in plan.groups:
        try:
            launch, found = _rendered(group, plan, config, files, engine, host, launcher)
        except ValueError as error:
            where = f"models.{plan.instance(group.members[0]).model}"
            problems.append(Problem(code="unrenderable", where=where, message=str(error)))
            continue
        problems += found
        if not found:
            groups[group.id] = launch
    return groups, once(problems)


def _rendered(
    group: Group,
    plan: Plan,
    config: Config,
    files: Mapping[str, ModelFiles],
    engine: EngineFlavour,
    host: str,
    launcher: Sequence[str],
) -> tuple[GroupLaunch, list[Problem]]:
    """One group, and what its members are given against the plan."""
    launches: list[Launch] = []
    problems: list[Problem] = []
    for member in group.members:
        instance = plan.instance(member)
        rendered = render_launch(instance, config, files[instance.model], engine, plan)
        launches.append(rendered.launch)
        problems += launch_problems(rendered, config, instance.model)
    launch = group_launch(group.id, launches, swap=group.swap, host=host, launcher=launcher)
    return launch, problems
