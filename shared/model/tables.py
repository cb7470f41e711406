"""A document that a lookup finds in a table."""

from typing import NamedTuple

from tidemark.shared.model.values import Document


class Found(NamedTuple):
    """A document of a table. `place` tells it from all others of this table; documents stand in the order of places."""

    place: int
    document: Document
