"""What a document names and the outside lacks: no failure that trying again could mend, and none that a record causes."""

from tidemark.shared.model.failures import Lasting


class WrongSetup(Lasting):
    """A topic, a connection, a file system or a variable is not there: says what was expected where, and what to do (S6)."""
