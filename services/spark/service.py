"""Wiring of a Spark stage's process: one session for all of its tasks."""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Final

import structlog
from pyspark.sql import SparkSession

from tidemark.services.spark.body import SparkBody
from tidemark.shared.model.ids import Place
from tidemark.shared.model.settings import knob
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning import StepHead
from tidemark.shared.process.outside import make_outside
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, settings_of
from tidemark.shared.runtime.body import TaskBody
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.worker import Worker
from tidemark.spark_stages.manifest import StepBounds
from tidemark.spark_stages.session import end_application, forget_ended, is_lost, open_session, warm_up
from tidemark.spark_stages.step import SparkStep

_log = structlog.get_logger()
_CONNECT: Final = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "zstandard": "zstandard",
}
"""Modules that PySpark's client of Spark Connect needs, and the packages that have them."""
_LOOK_MS: Final = 10_000
"""Between two looks at an application."""
_SETTING: Final = re.compile(r"spark\.[^=\s]+=.*")


class KeptSession:
    """A session that is started when somebody first asks for it, and again when its JVM has ended."""

    def __init__(self, master: str, conf: Mapping[str, str] | None = None) -> None:
        """conf: Spark's own settings, beside the product's."""
        self._master, self._conf = master, conf or {}
        self._session: SparkSession | None = None
        self._seen_lost = False
        self._starting = threading.Lock()

    def get(self) -> SparkSession:
        """A session that lives; blocks while it starts."""
        with self._starting:
            self._forget_if_ended()
            if self._session is None:
                session = open_session("tidemark", self._master, self._conf)
                warm_up(session)
                self._session = session
            return self._session

    def _forget_if_ended(self) -> None:
        """Work on a session that has ended fails with it; the next generation's stages ask for the session anew."""
        if ended := forget_ended():
            _log.error("spark.ended", how=f"{ended} has ended; another one is started")
            self._session = None

    def look(self) -> None:
        """End an application that is without an executor at two looks in a row: its jobs would wait for ever. They fail, as an outage."""
        if not self._starting.acquire(blocking=False):
            return
        try:
            lost = isinstance(self._session, SparkSession) and is_lost(self._session.sparkContext)
            if lost and self._seen_lost and self._session is not None:
                end_application(self._session.sparkContext)
            self._seen_lost = lost
        finally:
            self._starting.release()

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
    conf: tuple[str, ...] = knob(())
    """Settings of Spark itself, as `spark-submit --conf` has them: `spark.executor.memory=2g`."""

    def __post_init__(self) -> None:
        super(SparkSettings, self).__post_init__()
        if wrong := next((each for each in self.conf if not _SETTING.fullmatch(each)), None):
            raise ValueError(f"spark setting conf: expected spark.NAME=VALUE, found {wrong!r}")

    @property
    def spark(self) -> dict[str, str]:
        """The options of `conf`, by name."""
        return dict(each.split("=", 1) for each in self.conf)


def spark_settings(settings: ProcessSettings) -> SparkSettings:
    """From the process' settings. ProcessSettingsError."""
    found = settings_of(settings.extra, SparkSettings, "TIDEMARK_EXTRA", others=True)
    connects = found.master.startswith("sc://")
    if missing := [package for module, package in _CONNECT.items() if connects and find_spec(module) is None]:
        raise ProcessSettingsError(
            f"TIDEMARK_EXTRA.master: {found.master} is an address of Spark Connect, which needs {', '.join(_CONNECT.values())} beside"
            f" PySpark; {', '.join(missing)} not found: install them into the Python environment of the Spark service, or name a master"
        )
    return found


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
    session = KeptSession(bounds.master, bounds.spark)
    outside = make_outside(settings)

    async def begin() -> None:
        await outside.executor.blocking(session.get)

    def not_begun(error: BaseException) -> None:
        _log.error(
            "spark.not_begun", reason=repr(error), how="the first step tries again, and says so where it fails, too"
        )

    async def watch() -> None:
        while True:
            await outside.clock.sleep_ms(_LOOK_MS)
            await outside.executor.blocking(session.look)

    outside.executor.spawn(begin(), "spark session", not_begun)
    outside.executor.spawn(watch(), "spark application", not_begun)
    return Worker(Place(settings.place), settings.incarnation, SparkService(session, bounds), outside)
