"""Numbers of tasks, looked at before anything starts: the coordinator would refuse them once all has."""

from collections.abc import Mapping

from tidemark.services.coordinator.planning import task_names
from tidemark.shared.language.problems import Problems
from tidemark.shared.model.messages import KEY_GROUPS
from tidemark.shared.model.plan import PhysicalPlan


def check_tasks(plan: PhysicalPlan, parallelism: Mapping[str, int]) -> None:
    """InvalidDocument for tasks of what the plan does not have, and for numbers that nothing can have."""
    names = task_names(plan)
    problems = Problems()
    for name, tasks in sorted(parallelism.items()):
        if name not in names:
            problems.add("tasks", f"no vertex or service {name} in this pipeline", accepted=sorted(names), found=name)
        elif not 1 <= tasks <= KEY_GROUPS:
            problems.add(f"tasks.{name}", f"expected 1 to {KEY_GROUPS} tasks, found {tasks}")
    problems.check()
