"""Errors by cause: a peer's broken frame, or a bug of ours. A user's document is refused long before."""

from collections.abc import Mapping


class ProtocolError(Exception):
    """The base of the two errors of the protocol."""


class PeerError(ProtocolError):
    """A frame that no correct peer would have sent, or a hole in a channel: the task fails, naming the place (F1, F6)."""


class LocalError(ProtocolError):
    """The machine was driven wrongly, or contradicts itself: a bug on this side."""


def require(where: str, claims: Mapping[str, bool]) -> None:
    """Raise LocalError naming every claim that does not hold."""
    broken = [claim for claim, holds in claims.items() if not holds]
    if broken:
        message = f"{where}: does not hold: {'; '.join(broken)}"
        raise LocalError(message)
