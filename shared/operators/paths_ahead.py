"""Which paths of its records a source reads in the pass that decodes them: those that the operators behind it ask for.

Planning asks, so nothing here loads Arrow: a command that only plans starts in a blink.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tidemark.shared.language.fields import Path, expression_paths
from tidemark.shared.language.stages import InnerStage, SessionWindow
from tidemark.shared.operators.specs import (
    BranchSpec,
    FrontSpec,
    KeyBySpec,
    OperatorSpec,
    PartialSpec,
    StatelessSpec,
    TapSpec,
)

_PATHS_MAX: Final = 16
"""Each path is a comparison for each field of a record, and 17 bytes a row."""


def paths_ahead(front: FrontSpec, behind: Sequence[OperatorSpec]) -> tuple[Path, ...]:
    """The undeclared paths that the front and the operators of its chain read of its records, in order."""
    found: set[Path] = set()
    for expr in (front.source.time_field, front.source.record_id):
        if expr is not None:
            found |= expression_paths(expr)
    written = {field.name for field in front.source.schema}
    for spec in behind:
        if isinstance(spec, KeyBySpec):
            found |= {path for path in expression_paths(spec.key) if path and path[0] not in written}
        elif isinstance(spec, StatelessSpec):
            if not _of_stages(spec.stages, found, written):
                break
        elif isinstance(spec, PartialSpec):
            window = spec.window.stage
            if isinstance(window, SessionWindow) and window.partition_by is not None:
                found |= {path for path in expression_paths(window.partition_by) if path and path[0] not in written}
            _of_stages(window.pipeline, found, written)
            break
        elif not isinstance(spec, BranchSpec | TapSpec):
            break
    declared = {field.name for field in front.source.schema}
    own = sorted(path for path in found if path and path[0] not in declared)
    return tuple(own[:_PATHS_MAX])


def _of_stages(stages: Iterable[InnerStage], found: set[Path], written: set[str]) -> bool:
    """Add the paths that stages read of the records; whether the stages behind them may read these, too."""
    for stage in stages:
        found |= {path for path in stage.paths() if path and path[0] not in written}
        if not stage.shows_others:
            return False
        written |= stage.named()
    return True
