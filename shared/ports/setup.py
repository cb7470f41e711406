"""A document names something that the outside lacks. Trying again does not mend it, and no record causes it."""

from tidemark.shared.model.failures import Lasting


class WrongSetup(Lasting):
    """A topic, a connection, a file system or a variable is missing. The message says what was expected where, and what to do (S6)."""
