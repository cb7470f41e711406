"""A pipeline: which stages there are, and where each may stand."""

from dataclasses import replace
from typing import Final

from tidemark.shared.language.expressions.ast import CreateUuid, FilterArray, MapArray, ReduceArray
from tidemark.shared.language.expressions.scope import KnownMetadata, Scope
from tidemark.shared.language.kinds import Kind, read_stage
from tidemark.shared.language.stages import https
from tidemark.shared.language.stages.base import Stage
from tidemark.shared.language.stages.inner import GATHERING
from tidemark.shared.language.stages.trees import Branch
from tidemark.shared.language.stages.windows import HoppingWindow, SessionWindow, TumblingWindow, nodes_in, unnested

STAGES_MAX: Final = 200
"""How many stages one pipeline may have."""
NESTING_MAX: Final = 10
"""How deep pipelines of joins and unions may nest."""


def read_pipeline(tree: object, path: str, scope: Scope) -> tuple[Stage, ...]:
    """A whole pipeline: one source first, then any stages; errors are noted."""
    problems = scope.problems
    told, around = KnownMetadata(), scope.told
    scope = replace(scope, told=told)
    if type(tree) is not list or not tree:
        problems.add(path, "a pipeline is a list of stages that begins with $source")
        return ()
    if len(tree) > STAGES_MAX or path.count("pipelines[") + path.count(".from") > NESTING_MAX:
        problems.add(path, f"a pipeline has at most {STAGES_MAX} stages, and nests at most {NESTING_MAX} deep")
        return ()
    specs = {name: spec for name, spec in scope.stages.items() if name not in GATHERING}
    stages: list[Stage] = []
    records = False
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
        told.records = records and name in _ONCE
        stage = read_stage(item, place, scope, {**specs, "$https": https.LAST} if last else specs, _ELSEWHERE)
        if name in _NEW_DOCUMENTS:
            told.metadata.clear()
        records = name == "$source" or (records and name not in _NEW_DOCUMENTS)
        if name in _ONCE:
            _one_value_each(stage, scope)
        if isinstance(stage, TumblingWindow | HoppingWindow | SessionWindow):
            stages.extend(unnested(stage, scope))
        elif isinstance(stage, tuple):
            stages.extend(stage)
        elif stage is not None:
            stages.append(stage)
    around.metadata.update(told.metadata)
    return tuple(stages)


def _one_value_each(stage: object, scope: Scope) -> None:
    """Note a `$createUUID` that would give several values of one document the same id."""
    for node in nodes_in(stage):
        several = isinstance(node, MapArray | FilterArray | ReduceArray) or (
            isinstance(node, Branch) and node is not getattr(stage, "fields", None)
        )
        found = next((each for each in nodes_in(node) if isinstance(each, CreateUuid)), None) if several else None
        if found is not None:
            what = "makes one id for a document, and a dotted path, an object of fields, $map, $filter or $reduce may ask for several"
            scope.problems.add(
                found.path, f"$createUUID {what}: compute a field of its own first; behind $unwind each item has an id"
            )
            return


_NEW_DOCUMENTS: Final = frozenset({"$tumblingWindow", "$hoppingWindow", "$sessionWindow", "$join", "$compute"})
"""Stages behind which nothing is told of what came in."""
_ONCE: Final = frozenset({"$addFields", "$set", "$project", "$replaceRoot", "$replaceWith", "$match", "$setStreamMeta"})
"""Stages that evaluate an expression once for a document."""
_ELSEWHERE: Final = "belongs inside the pipeline of a window ($tumblingWindow, $hoppingWindow, $sessionWindow)"
PIPELINE: Final = Kind(read_pipeline, {"$ref": "#/$defs/pipeline"})
