"""Bounds of the MongoDB sink, which all sink workers read: apart from the sink, and its driver, which few load."""

from dataclasses import dataclass

from tidemark.shared.model.settings import check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class MongoSinkSettings:
    """The settings of one sink worker."""

    part_bytes_max: int = 4 * 1024 * 1024
    """Encoded documents of one part, which one transaction writes; also the documents held in memory before they are staged."""
    answer_ms: int = 10_000
    """How long a server is looked for; with six times as much for an answer the target counts as away."""
    collections_max: int = 1000
    """How many collections an expression in `into` may name; documents for more go to the dead letters."""
    connections_max: int = 15
    """Connections to one server, of all tasks of the process."""

    def __post_init__(self) -> None:
        """Raise ValueError for values that cannot work."""
        check_positive(self, "mongodb sink")
