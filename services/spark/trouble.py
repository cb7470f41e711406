"""Spark's passing troubles (C10): its JVM has ended or cannot begin, its executors find no room or no file handles, or are lost.

A cluster's master that does not answer is one, and so is an application that it has ended. Spark tells all of them as text, the executors'
as the end of a Python traceback, so they are known by words. All else is the stage's own failure.
"""

import errno
from typing import Final

from py4j.protocol import Py4JNetworkError

from tidemark.shared.model.failures import Outage

_PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
_WORDS: Final = (
    *(f"[Errno {number}]" for number in _PASSING),
    "No space left on device",
    "Cannot allocate memory",
    "JAVA_GATEWAY_EXITED",
    "Answer from Java side is empty",
    "StatusCode.UNAVAILABLE",
    "stopped SparkContext",
    "SparkContext was shut down",
    "SparkContext._taskScheduler()",  # is null: an application that ended while it began, for no master answered
    "ExecutorLostFailure",
)
_SAID_CHARACTERS: Final = 300
"""Of Spark's words: a failed job's have a stack of the JVM behind them."""


class SparkUnavailable(Outage):
    """Spark is away, or cannot work now."""


def outage_of(error: Exception) -> SparkUnavailable | None:
    """The error as an outage, if it is one."""
    if isinstance(error, SparkUnavailable):
        return error
    said = str(error)
    word = next((word for word in _WORDS if word in said), None)
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return SparkUnavailable(f"Spark does not answer ({said[:_SAID_CHARACTERS]}); its session is started again")
    if word is None:
        return None
    at = said.index(word)
    line = said[said.rfind("\n", 0, at) + 1 :].splitlines()[0][:_SAID_CHARACTERS]
    return SparkUnavailable(f"Spark cannot work now: {line}")
