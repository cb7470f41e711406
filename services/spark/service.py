"""Wiring of a Spark stage's process: one session for all of its tasks."""

import uuid

from pyspark.sql import SparkSession

from services.spark.body import SparkBody
from shared.model.ids import Place, WorkerIncarnation
from shared.operators.context import TaskContext as OperatorContext
from shared.operators.window_plan import WindowPlan
from shared.planning import StepHead
from shared.process.outside import make_outside
from shared.process.settings import ProcessSettings
from shared.runtime.body import TaskBody
from shared.runtime.context import TaskContext
from shared.runtime.worker import Worker
from spark_stages.session import open_session
from spark_stages.step import SparkStep
from spark_stages.warmup import warm_up


class SparkService:
    """Builds tasks of Spark stages. The session is started with the first and stays."""

    name = "spark"

    def __init__(self, master: str) -> None:
        self._master = master
        self._session: SparkSession | None = None

    async def build(self, context: TaskContext) -> TaskBody:
        """The body of a window's stage."""
        head = context.vertex.head
        if not isinstance(head, StepHead):
            message = f"{context.task}: expected a window's step, found {type(head).__name__}"
            raise TypeError(message)
        operators = OperatorContext(processor=context.assign.name)
        return SparkBody(context, WindowPlan(head.step.window), operators, self.make)

    def make(self, plan: WindowPlan, root: str, operators: OperatorContext) -> SparkStep:
        """A step on the session; blocks while the session starts."""
        return SparkStep(self.session(), plan, root, operators)

    def session(self) -> SparkSession:
        """The session of this process; blocks while it starts."""
        if self._session is None:
            self._session = open_session("tidemark", self._master)
            warm_up(self._session)
        return self._session

    async def close(self) -> None:
        """Stop the session."""
        if self._session is not None:
            self._session.stop()


async def build(settings: ProcessSettings) -> Worker:
    """A worker of this service; its session is up before it registers."""
    service = SparkService(str(settings.extra.get("master", "local[2]")))
    outside = make_outside(settings)
    await outside.executor.blocking(service.session)
    return Worker(Place(settings.place), WorkerIncarnation(uuid.uuid4().hex), service, outside)
