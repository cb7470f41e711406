"""Wiring of a Spark stage's process: one session for all of its tasks."""

import threading
from dataclasses import dataclass, fields

import structlog
from pyspark.sql import SparkSession

from tidemark.services.spark.body import SparkBody
from tidemark.shared.model.ids import Place
from tidemark.shared.model.knobs import knob
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning import StepHead
from tidemark.shared.process.outside import make_outside
from tidemark.shared.process.settings import ProcessSettings, settings_of
from tidemark.shared.runtime.body import TaskBody
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.worker import Worker
from tidemark.spark_stages.manifest import StepBounds
from tidemark.spark_stages.session import forget_ended, open_session, warm_up
from tidemark.spark_stages.step import SparkStep

_log = structlog.get_logger()


class KeptSession:
    """A session that is started when somebody first asks for it, and again when its JVM has ended."""

    def __init__(self, master: str) -> None:
        self._master = master
        self._session: SparkSession | None = None
        self._starting = threading.Lock()

    def get(self) -> SparkSession:
        """A session that lives; blocks while it starts."""
        with self._starting:
            self._forget_if_ended()
            if self._session is None:
                session = open_session("tidemark", self._master)
                warm_up(session)
                self._session = session
            return self._session

    def _forget_if_ended(self) -> None:
        """Work on a session whose JVM was killed fails with it; the next generation's stages ask for the session anew."""
        if forget_ended():
            _log.error("spark.ended", how="Spark's JVM has ended (killed, or out of memory); another one is started")
            self._session = None

    def begin_group(self, name: str) -> None:
        """Jobs that this thread starts from now on are counted under this name. Not on a Spark Connect address."""
        self.get().sparkContext.setJobGroup(name, name)

    def jobs_of(self, name: str) -> int:
        """How many jobs of a group Spark has started."""
        return len(self.get().sparkContext.statusTracker().getJobIdsForGroup(name))

    def stop(self) -> None:
        """End the session, if it was started."""
        self._forget_if_ended()
        if self._session is not None:
            self._session.stop()
            self._session = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings(StepBounds):
    """Of one process (TIDEMARK_EXTRA, JSON)."""

    master: str = knob("local[2]")
    """A master, or a Spark Connect address."""


def spark_settings(settings: ProcessSettings) -> SparkSettings:
    """From the process' settings. ProcessSettingsError."""
    return settings_of(settings.extra, SparkSettings, "TIDEMARK_EXTRA", others=True)


class SparkService:
    """Builds tasks of Spark stages, all on one session. `keeps`: the session outlives the service."""

    name = "spark"

    def __init__(self, session: KeptSession, bounds: StepBounds | None = None, *, keeps: bool = False) -> None:
        self._session = session
        self._bounds = bounds or StepBounds()
        self._keeps = keeps

    async def build(self, context: AssignedTask) -> TaskBody:
        """The body of a window's stage."""
        head = context.vertex.head
        if not isinstance(head, StepHead):
            message = f"{context.task}: expected a window's step, found {type(head).__name__}"
            raise TypeError(message)
        return SparkBody(context, WindowPlan(head.step.window), context.operators, self.make)

    def make(self, plan: WindowPlan, root: str, operators: TaskContext, key_groups: int) -> SparkStep:
        """A step on the session; blocks while the session starts."""
        bounds = self._bounds
        return SparkStep(
            self._session.get(),
            plan,
            root,
            operators,
            key_groups,
            **{each.name: getattr(bounds, each.name) for each in fields(StepBounds)},
        )

    async def close(self) -> None:
        """Stop the session, unless it is kept."""
        if not self._keeps:
            self._session.stop()


async def build(settings: ProcessSettings) -> Worker:
    """A worker of this service; its session comes up beside it, for only a step waits for it."""
    bounds = spark_settings(settings)
    session = KeptSession(bounds.master)
    outside = make_outside(settings)

    async def begin() -> None:
        await outside.executor.blocking(session.get)

    def not_begun(error: BaseException) -> None:
        _log.error(
            "spark.not_begun", reason=repr(error), how="the first step tries again, and says so where it fails, too"
        )

    outside.executor.spawn(begin(), "spark session", not_begun)
    return Worker(Place(settings.place), settings.incarnation, SparkService(session, bounds), outside)
