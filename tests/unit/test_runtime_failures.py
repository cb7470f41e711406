# ruff: noqa: N802 -- a test carries its rule's name
"""What a task's failure says of trying again: rules C10, S6."""

import pytest

from tests.harness.worker_stand import WorkerStand, working
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.computation.problems import ClassError, ComputationError, ConfigError, StateError
from tidemark.shared.language.problems import DocumentError, InvalidDocument
from tidemark.shared.model.formats import FormatError
from tidemark.shared.model.messages import TaskFailed, TaskRestored
from tidemark.shared.operators.base import OperatorError
from tidemark.shared.planning.physical import PlanError
from tidemark.shared.ports.blobs import BlobUnavailable
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.sink import MarkerAhead, TargetRefused, TargetUnavailable
from tidemark.shared.ports.source import SourceMissing, SourceReplaced
from tidemark.shared.ports.tables import TableDenied, TableRefused
from tidemark.shared.process.connections import ConnectionMissing, NoFileSystem


def raised(error: Exception, cause: Exception) -> Exception:
    """As by `raise error from cause`."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "permanent", "outage"),
    [
        (RuntimeError("a bug"), False, False),
        (LogUnavailable("away"), False, True),
        (BlobUnavailable("away"), False, True),
        (TargetUnavailable("away"), False, True),
        (TargetRefused("commit 3, record 7"), True, False),
        (MarkerAhead("5 above 4"), True, False),
        (FormatError("state of version 7"), True, False),
        (raised(OperatorError("kg:3"), FormatError("state of version 7")), True, False),
        (InvalidDocument([DocumentError("connections.k.url", "${URL} is not set")]), True, False),
        (PlanError("positions are of one split"), True, False),
        (ConnectionMissing("no connection k"), True, False),
        (NoFileSystem("s9://"), True, False),
        (SourceMissing("topic t"), True, False),
        (SourceReplaced("topic t"), True, False),
        (TableRefused("no such table"), True, False),
        (ClassError("no module of that name"), True, False),
        (ConfigError("config.x is not known"), True, False),
        (StateError("of another version"), True, False),
        (ComputationError("ValueError: no such meter"), False, False),
        (TableDenied("a password"), False, False),
        (OperatorError("too many rows"), False, False),
        (raised(TargetUnavailable("away"), OSError("refused")), False, True),
    ],
)
def test_C10_S6_the_reason_of_a_failure_says_whether_it_counts(
    error: BaseException, permanent: bool, outage: bool
) -> None:
    """An outage does not count towards FAILED; what time does not mend ends the processor at once, with the reason in its words."""

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1))
        await stand.said(TaskRestored)
        stand.service.built[0].fail(error)
        (failed,) = await stand.said(TaskFailed)
        assert (failed.permanent, failed.outage) == (permanent, outage)
        assert str(error) in failed.reason

    async def main(world: VirtualWorld) -> None:
        async with working(world) as stand:
            await story(stand)

    run_virtual(main)
