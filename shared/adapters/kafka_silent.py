"""One connection that gets no answer tells of the others to the same broker: a way that has died swallows what is said on all of them.

Nobody resets such connections, so each was found out by a request of its own that got no answer, one after the other: minutes passed after
the network had come back. A connection on which the broker has said nothing for as long as the first one waited is closed with it, and
opened anew when it is needed. Where it was only idle, nothing is lost; a request that was sent on it meanwhile is tried again, as on any
connection that is lost.
"""

import time
from collections import defaultdict
from typing import Any, Final
from weakref import WeakSet

from aiokafka.conn import AIOKafkaConnection, CloseReason

_open: Final[defaultdict[tuple[int, str, int], "WeakSet[AIOKafkaConnection]"]] = defaultdict(WeakSet)
"""The library's connections, by event loop, host and port: loops of other threads do not meet here."""
_BROKERS_MAX: Final = 1_000
"""Addresses whose connections are known; beyond it they are learnt anew, and older ones are found out one by one."""
_close: Final = AIOKafkaConnection.close


def know(connection: AIOKafkaConnection, host: str, port: int) -> None:
    """It is open; closed with others, or they with it."""
    if len(_open) >= _BROKERS_MAX:
        _open.clear()
    _open[id(connection._loop), host, port].add(connection)


def _closed(connection: AIOKafkaConnection, reason: CloseReason | None = None, exc: BaseException | None = None) -> Any:
    beside = _open.get((id(connection._loop), connection.host, connection.port), WeakSet())
    beside.discard(connection)
    found = _close(connection, reason=reason, exc=exc)
    if reason is CloseReason.CONNECTION_TIMEOUT:
        since = time.monotonic() - connection._request_timeout
        for other in list(beside):
            if other._last_action <= since:
                beside.discard(other)
                _close(other, reason=reason)
    return found


AIOKafkaConnection.close = _closed
