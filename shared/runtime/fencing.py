"""A leader's records carry its token, as a header. A reader takes no record of a lower token behind one of a higher token (C8).

A leader that was cut off goes on writing when its network is back. By then another leader has written more. The token shows which records
are newer, in the order of the log.
"""

from dataclasses import dataclass
from typing import Final

from tidemark.shared.model.ids import LeaderToken, Offset
from tidemark.shared.ports.log import LogRecord

HEADER: Final = "tidemark-leader"
CHANGES_HEADER: Final = "tidemark-changes"
LEADS_KEY: Final = b""
"""Key of the record with which a term begins in a compacted topic, where a leader's last record may be gone. No name is empty."""
ASKED_HEADER: Final = "tidemark-asked"
"""Of a request: where the answers ended when it was asked."""
_DIGITS_MAX: Final = 18
"""Of a token: it is a store's 64-bit number."""

Headers = tuple[tuple[str, bytes], ...]


def signed(token: LeaderToken, changes: int | None = None) -> Headers:
    """The headers of a leader's record. `changes`: of the store, as the leader knows (`CommitStore.changes`)."""
    told: Headers = ((HEADER, str(token).encode()),)
    if changes is not None:
        told += ((CHANGES_HEADER, str(changes).encode()),)
    return told


def token_of(record: LogRecord) -> LeaderToken:
    """Of the leader that wrote a record; 0 where nothing says."""
    return LeaderToken(_number(record, HEADER))


def changes_of(record: LogRecord) -> int:
    """How many changes its leader knew the store to have confirmed; 0 where nothing says."""
    return _number(record, CHANGES_HEADER)


def asked(answers_end: Offset) -> Headers:
    """The headers of a request."""
    return ((ASKED_HEADER, str(answers_end).encode()),)


def asked_at(record: LogRecord) -> Offset:
    """Where the answers ended when a request was asked; 0 where nothing says."""
    return Offset(_number(record, ASKED_HEADER))


def _number(record: LogRecord, header: str) -> int:
    value = next((value for name, value in record.headers if name == header), b"")
    return int(value) if value.isdigit() and len(value) <= _DIGITS_MAX else 0


@dataclass(slots=True)
class Fence:
    """Of one topic, as one reader knows it."""

    token: LeaderToken = LeaderToken(0)  # noqa: RUF009 - a number
    """The highest that was read."""

    def admits(self, record: LogRecord) -> bool:
        """Whether a record counts; to be asked of each one, in the order of the log."""
        token = token_of(record)
        if token < self.token:
            return False
        self.token = token
        return True
