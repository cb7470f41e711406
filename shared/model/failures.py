"""Whether an error may be tried again (C10): a class of errors says so by its base class."""

import re
from collections.abc import Iterator
from typing import Final

_FRAME: Final = re.compile(r"\n\s+(at [\w.$/<>]+\([^\n]*\)|\.\.\. \d+ more)(?=\n|$)")
"""A line of a JVM's stack."""


class Lasting(Exception):
    """Time does not mend it: the processor is FAILED at once, with the reason."""


class Outage(Exception):
    """Something outside is away; waiting may help, and the failure does not count."""


def words_of(error: BaseException) -> str:
    """What the error says, with its class, for people: the stack of a JVM is left to the log."""
    return _FRAME.sub("", f"{type(error).__name__}: {error}").strip()


def is_lasting(error: BaseException) -> bool:
    """Whether the error, or a cause of it, is lasting. An error that only adds a place to its cause does not change its nature."""
    return any(isinstance(each, Lasting) for each in _causes(error))


def is_outage(error: BaseException) -> bool:
    """Whether the error itself is an outage. Its causes do not count: the code that caught an outage may have waited long enough."""
    return isinstance(error, Outage)


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


class WrongSetup(Lasting):
    """A document names something that the outside lacks. The message says what was expected where, and what to do (S6)."""


class LogError(Exception):
    """The log refused a request. The message says what was refused, where, and what to do."""
