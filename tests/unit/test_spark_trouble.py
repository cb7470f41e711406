# ruff: noqa: N802 -- a test carries its rule's name
"""Which of Spark's troubles are outages (C10): what time may mend, and nothing that is the stage's own."""

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, PySparkRuntimeError

from tidemark.services.spark.body import outage_of
from tidemark.shared.model.failures import is_lasting, is_outage

ABORTED = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times\nTraceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited"), "cannot work now: .JAVA_GATEWAY"),
        (Py4JNetworkError("Answer from Java side is empty"), "does not answer .*started again"),
        (ConnectionRefusedError(111, "Connection refused"), "does not answer"),
        (PySparkException(ABORTED + "OSError: [Errno 28] No space left on device\n\tat java"), r"now: OSError: .*device$"),
        (PySparkException(ABORTED + "java.io.IOException: No space left on device"), "now: java.io.IOException"),
        (OSError(12, "Cannot allocate memory"), "Cannot allocate memory"),
    ],
)  # fmt: skip
def test_C10_what_time_may_mend_does_not_count(error: Exception, says: str) -> None:
    """A JVM that has ended or cannot begin, executors without room: told in one line, as an outage."""
    found = outage_of(error)
    assert found is not None
    assert (is_lasting(found), is_outage(found)) == (False, True)
    with pytest.raises(type(found), match=says):
        raise found


@pytest.mark.parametrize(
    "error", [PySparkException(ABORTED + "ZeroDivisionError: division by zero"), ValueError("no such column")]
)
def test_C10_a_failure_of_the_stage_counts(error: Exception) -> None:
    """Else what fails each time would be tried for ever."""
    assert outage_of(error) is None
