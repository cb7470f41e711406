"""`$source` of a schedule."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import STRING, Option, Read
from tidemark.shared.language.problems import join
from tidemark.shared.language.schedule import Schedule, zone_of_schedule
from tidemark.shared.language.stages.sources.base import TIMING, SourceBase, SourceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSource(SourceBase):
    """A document at each instant of a schedule: one split that never ends, whose records are a function of their positions."""

    one_task: ClassVar[bool] = True
    positions_are_times: ClassVar[bool] = True
    free: ClassVar[frozenset[str]] = SourceBase.free | {"cron", "timezone"}
    cron: str
    timezone: str = "UTC"

    @property
    def schedule(self) -> Schedule:
        """When documents come."""
        return Schedule(self.cron, zone_of_schedule(self.timezone))

    @property
    def bounded(self) -> bool:
        """It never ends."""
        return False


def _check(_: object, found: Read, path: str, scope: Scope) -> None:
    """The expression and the zone; a schedule without records is not idle."""
    if found.get("partitionIdleTimeout") is not None and "timeField" not in found:
        scope.problems.warn(
            join(path, "partitionIdleTimeout"), "has no effect: the watermark of a schedule goes with the clock"
        )
        found.fields["partition_idle_timeout_ms"] = None
    for name, read in (("timezone", zone_of_schedule), ("cron", Schedule)):
        try:
            if name in found:
                read(found[name])
        except (ExpressionError, ValueError) as error:
            scope.problems.add(join(path, name), str(error))


_OPTIONS: Final = (
    Option("cron", STRING, "when documents come: five fields as cron's, or six with seconds in front", required=True),
    Option("timezone", STRING, "of the schedule: a name such as Europe/Berlin, or an offset (default UTC)"),
    *TIMING,
)
KIND: Final = SourceKind(ScheduleSource, _OPTIONS, _check)
