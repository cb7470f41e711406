"""What an error says of trying again (C10): a class of errors says it by being one of these."""

from collections.abc import Iterator


class Lasting(Exception):
    """Time does not mend it: the processor is FAILED at once, with the reason."""


class Outage(Exception):
    """Something outside is away; waiting may help, and the failure does not count."""


def is_lasting(error: BaseException) -> bool:
    """Whether it, or what it was raised from, is: who adds a place to an error does not change what it is."""
    return any(isinstance(each, Lasting) for each in _causes(error))


def is_outage(error: BaseException) -> bool:
    """Whether it is; not by what it was raised from, for who caught that may have waited long enough."""
    return isinstance(error, Outage)


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__
