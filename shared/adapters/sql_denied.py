"""Whether a database refuses a client. A driver tells a refusal as it tells an outage, without a code: only the server's words differ."""

import re
from typing import Final

from sqlalchemy import exc

_DENIED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist|database .* does not exist"
    r"|not permitted to log in|permission denied for database",
    re.IGNORECASE,
)
"""PostgreSQL's, in English; in another language a refusal is waited out like an outage."""


def is_denied(error: exc.DBAPIError) -> bool:
    """A wrong password, user or database, said as a connection was opened."""
    return isinstance(error, exc.OperationalError) and says_denied(str(error.orig))


def says_denied(text: str) -> bool:
    """Whether these are words of a refusal."""
    return _DENIED.search(text) is not None
