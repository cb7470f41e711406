"""The durable writes of the product, by name. A write that is not here, or a name that nothing writes, is found by the sweep's coverage."""

from typing import Final

from tests.harness.simulation.drawing import Scenario
from tests.harness.simulation.faults import Side

WRITES: Final[tuple[str, ...]] = (
    "coordinator answers",
    "coordinator blob delete",
    "coordinator blob put",
    "coordinator command AbortCheckpoint",
    "coordinator command Assign",
    "coordinator command CommitHint",
    "coordinator command CoordinatorBeat",
    "coordinator command Drain",
    "coordinator command HoldInput",
    "coordinator command ReadSplits",
    "coordinator command ShareBytes",
    "coordinator command StartCheckpoint",
    "coordinator command StartSources",
    "coordinator command StopTasks",
    "coordinator command TellEnds",
    "coordinator command TellSplits",
    "coordinator command WorkerWanted",
    "coordinator connections",
    "coordinator mirror",
    "coordinator records delete",
    "coordinator registry",
    "coordinator report Echo",
    "coordinator store commit",
    "coordinator store create",
    "coordinator store drop",
    "coordinator store forget",
    "coordinator store generation",
    "coordinator store lead",
    "coordinator store renew",
    "coordinator store update",
    "coordinator topic create",
    "coordinator topic delete",
    "operator blob put",
    "operator edge BarrierFrame",
    "operator edge DataFrame",
    "operator edge EndFrame",
    "operator edge WatermarkFrame",
    "operator flow",
    "operator note write",
    "operator report Ack",
    "operator report Heartbeat",
    "operator report Register",
    "operator report TaskFailed",
    "operator report TaskRestored",
    "operator topic create",
    "sink edge BarrierFrame",
    "sink edge EndFrame",
    "sink edge WatermarkFrame",
    "sink file compacted create",
    "sink file delete",
    "sink file manifest create",
    "sink file publish",
    "sink file staged create",
    "sink file summary replace",
    "sink file volume create",
    "sink flow",
    "sink report Ack",
    "sink report Heartbeat",
    "sink report Register",
    "sink report Released",
    "sink report TaskFailed",
    "sink report TaskRestored",
    "sink sql commit",
    "sink table commit",
    "sink topic create",
    "sink txn abort",
    "sink txn commit",
    "sink txn init",
    "sink txn marker",
    "sink txn output",
    "source blob put",
    "source edge BarrierFrame",
    "source edge DataFrame",
    "source edge EndFrame",
    "source edge WatermarkFrame",
    "source offsets note",
    "source report Ack",
    "source report CheckpointWanted",
    "source report EndsFound",
    "source report Heartbeat",
    "source report Register",
    "source report SplitsFound",
    "source report TaskFailed",
    "source report TaskRestored",
    "source topic create",
    "spark blob put",
    "spark edge BarrierFrame",
    "spark edge DataFrame",
    "spark edge EndFrame",
    "spark edge WatermarkFrame",
    "spark flow",
    "spark report Ack",
    "spark report Heartbeat",
    "spark report Register",
    "spark report TaskFailed",
    "spark report TaskRestored",
    "spark segment write",
    "spark topic create",
    "user topic create",
    "user txn commit",
    "user txn init",
    "user txn output",
    "user txn redrives",
)

RARE: Final = frozenset(
    {
        "coordinator blob delete",
        "coordinator command AbortCheckpoint",
        "coordinator command Drain",
        "coordinator command HoldInput",
        "coordinator command ShareBytes",
        "coordinator command StopTasks",
        "coordinator command TellEnds",
        "coordinator command TellSplits",
        "coordinator command WorkerWanted",
        "coordinator records delete",
        "coordinator report Echo",
        "coordinator store create",
        "coordinator store drop",
        "coordinator store forget",
        "coordinator topic delete",
        "operator edge EndFrame",
        "operator report Register",
        "operator report TaskFailed",
        "operator topic create",
        "sink edge EndFrame",
        "sink file compacted create",
        "sink file delete",
        "sink file volume create",
        "sink report Register",
        "sink report TaskFailed",
        "sink sql commit",
        "sink table commit",
        "sink topic create",
        "sink txn abort",
        "source edge EndFrame",
        "source report EndsFound",
        "source report Register",
        "source report SplitsFound",
        "source report TaskFailed",
        "source topic create",
        "spark blob put",
        "spark edge BarrierFrame",
        "spark edge DataFrame",
        "spark edge EndFrame",
        "spark edge WatermarkFrame",
        "spark flow",
        "spark report Ack",
        "spark report Register",
        "spark report TaskFailed",
        "spark report TaskRestored",
        "spark segment write",
        "spark topic create",
        "user topic create",
        "user txn commit",
        "user txn init",
        "user txn output",
        "user txn redrives",
    }
)
"""Which many seeds never come to, or only at the end: each seed waits at several of them."""

RAREST: Final = (
    "coordinator command HoldInput",
    "coordinator command TellEnds",
    "coordinator command TellSplits",
    "coordinator command WorkerWanted",
    "sink report TaskFailed",
    "spark report TaskFailed",
    "spark topic create",
    "user txn output",
)
"""Which few seeds come to at all: each waits at them, on one side or the other."""

SCARCE: Final = ("spark ", "user ")
"""What writes of services begin with that few seeds have."""

LED_BY: Final[dict[str, tuple[tuple[str, Side], ...]]] = {
    "sink file delete": (("sink file staged create", "after"), ("sink report Ack", "before")),
}
"""What has to have failed before a process comes to a write at all."""


def is_possible(write: str, scenario: Scenario) -> bool:
    """Whether a process of the scenario could come to a write."""
    targets = (scenario.target, scenario.letters)
    match write.split()[:2]:
        case "coordinator", "command" if write == "coordinator command ShareBytes":
            return bool(scenario.coordinator.quotas)
        case "spark", _:
            return scenario.runtime.engine == "spark"
        case "user", _:
            return scenario.redriven
        case "sink", "file":
            if write == "sink file compacted create":
                return scenario.target == "table"
            return "files" in targets or (scenario.target == "table" and write != "sink file summary replace")
        case "sink", "table":
            return scenario.target == "table"
        case "sink", "txn":
            return "kafka" in targets
        case "sink", "sql":
            return "sql" in targets
        case _:
            return True
