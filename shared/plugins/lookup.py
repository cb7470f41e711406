"""Lookups: documents that are found by the values of their fields, for `$lookup` and `$cachedLookup`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tidemark.shared.model.tables import Found
from tidemark.shared.model.values import Value
from tidemark.shared.plugins.base import C, Plugin, S


class Lookup(Plugin[C, S], ABC):
    """Derive from `Lookup[Config, Settings]`, and write `find`. The documents may change from one question to the next."""

    @abstractmethod
    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Value, ...]]) -> Sequence[Found]:
        """The documents that equal one of `wanted`, which has a value for each field; more may come, none may lack.

        fields: paths, as `place.city`; there may be none, and then all documents are asked for. Equal is as `$eq` has it: numbers of all
        types by their value, null as a missing field, and an array by its items, too. What comes is compared again, so a
        plug-in that cannot narrow a question by a field or a value leaves it out of its own.

        A `Found` is a document and its place, a whole number that tells it from all others and stays while the document is there:
        what is found stands in the order of places. Raises Away, Refused.
        """
