"""What does not decode."""


class WireError(Exception):
    """Bytes that are not what they should be: says what was expected and found; the caller adds where they lay (F6)."""
