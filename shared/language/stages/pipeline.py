"""A pipeline: which stages there are, and where each may stand."""

from dataclasses import replace
from typing import Any, Final

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import Kind, read_stage
from tidemark.shared.language.stages import https
from tidemark.shared.language.stages.base import Stage
from tidemark.shared.language.stages.inner import GATHERING
from tidemark.shared.language.stages.windows import HoppingWindow, SessionWindow, TumblingWindow, unnested

STAGES_MAX: Final = 200
"""How many stages one pipeline may have."""
NESTING_MAX: Final = 10
"""How deep pipelines of joins and unions may nest."""


def read_pipeline(tree: Any, path: str, scope: Scope) -> tuple[Stage, ...]:
    """A whole pipeline: one source first, then any stages; errors are noted."""
    problems = scope.problems
    scope, around = replace(scope, metadata=set()), scope
    if type(tree) is not list or not tree:
        problems.add(path, "a pipeline is a list of stages that begins with $source")
        return ()
    if len(tree) > STAGES_MAX or path.count("pipelines[") + path.count(".from") > NESTING_MAX:
        problems.add(path, f"a pipeline has at most {STAGES_MAX} stages, and nests at most {NESTING_MAX} deep")
        return ()
    specs = {name: spec for name, spec in scope.stages.items() if name not in GATHERING}
    stages: list[Stage] = []
    for i, item in enumerate(tree):
        place = f"{path}[{i}]"
        name = next(iter(item)) if type(item) is dict and len(item) == 1 else None
        if i == 0 and name != "$source":
            problems.add(place, f"a pipeline begins with $source, found {name or 'no stage'}")
        if i > 0 and name == "$source":
            problems.add(
                f"{place}.$source", "there is exactly one $source, at the beginning; $union brings further ones in"
            )
            continue
        last = path == "pipeline" and i == len(tree) - 1
        stage = read_stage(item, place, scope, {**specs, "$https": https.LAST} if last else specs, _ELSEWHERE)
        if name in _NEW_DOCUMENTS:
            scope.metadata.clear()
        if isinstance(stage, TumblingWindow | HoppingWindow | SessionWindow):
            stages.extend(unnested(stage, scope))
        elif isinstance(stage, tuple):
            stages.extend(stage)
        elif stage is not None:
            stages.append(stage)
    around.metadata.update(scope.metadata)
    return tuple(stages)


_NEW_DOCUMENTS: Final = frozenset({"$tumblingWindow", "$hoppingWindow", "$sessionWindow", "$join", "$compute"})
"""Stages behind which nothing is told of what came in."""
_ELSEWHERE: Final = "belongs inside the pipeline of a window ($tumblingWindow, $hoppingWindow, $sessionWindow)"
PIPELINE: Final = Kind(read_pipeline, {"$ref": "#/$defs/pipeline"})
