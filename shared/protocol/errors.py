"""Whose fault it was: a peer's broken frame, or a bug of ours. A user's document is refused long before."""


class ProtocolError(Exception):
    """Base of both."""


class PeerError(ProtocolError):
    """A frame that no correct peer would have sent, or a hole in a channel: the task fails, naming the place (F1, F6)."""


class LocalError(ProtocolError):
    """The machine was driven wrongly, or contradicts itself: a bug on this side."""
