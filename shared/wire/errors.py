"""The error for bytes that do not decode."""


class WireError(Exception):
    """Bytes that are not what they should be. The message says what was expected and found; the caller adds where they lay (F6)."""
