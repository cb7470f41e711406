"""What a worker says of itself: to whoever waits for it, to whoever measures, and in heartbeats."""

from tests.harness.worker_stand import JOB, ME, WorkerStand, at_work
from tidemark.shared.model.ids import Epoch, Generation, LeaderToken, Place, ProcessorName, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import CoordinatorBeat, Heartbeat, TaskBeat
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.worker import Worker


def test_a_worker_is_ready_while_it_hears_a_coordinator() -> None:
    """Registered, and heard of one lately; who scrapes it sees what it hosts and could host."""

    async def story(stand: WorkerStand) -> None:
        worker, settings = stand.worker, stand.outside.settings
        await stand.settle()
        assert worker.unready() == ""
        await stand.settle(2 * settings.heartbeat_timeout_ms)
        assert worker.unready().startswith("no coordinator heard for ")
        await stand.tell(CoordinatorBeat(LeaderToken(1)))
        await stand.settle()
        assert worker.unready() == ""
        assert {m.name: m.value for m in worker.measures()} == {"tasks": 0, "slots": settings.slots}
        idle = Worker(Place("p"), WorkerIncarnation("w2"), stand.service, stand.outside)
        assert idle.unready() == "waits for the brokers"

    at_work(story)


def test_a_heartbeat_that_would_be_too_large_goes_without_details() -> None:
    """What is said through the worker is bounded, and still says that it lives."""

    async def story(stand: WorkerStand) -> None:
        of_task = ProcessorName("p"), JOB, Generation(1), VertexId("v"), 0, "running", Epoch(1), 0, 0
        task = TaskBeat(*of_task, details={"d": "x" * 5_000})
        stand.worker.report(Heartbeat(ME, Place("large"), "sink", 4, 1, "h", (task,)))
        await stand.settle()
        (told,) = [beat for beat in await stand.reports(Heartbeat) if beat.place == "large"]
        assert told.tasks[0].details == {}

    at_work(story, settings=RuntimeSettings(heartbeat_bytes_max=1_000, collects=True, engine="local"))
