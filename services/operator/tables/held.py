"""A table that lies in memory whole: the document's own, or the rows of a file."""

from collections.abc import Sequence
from itertools import product

from tidemark.shared.language.stages.looking_up import key_of, lookup_keys
from tidemark.shared.model.values import Document, Found
from tidemark.shared.ports.tables import Names


class HeldTable:
    """`Table` over documents, with an index for each set of columns that it is asked by."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self._indexes: dict[tuple[Names, ...], dict[bytes, list[int]]] = {}

    async def find(self, columns: Sequence[Names], wanted: Sequence[tuple[object, ...]]) -> Sequence[Found]:
        """See `Table.find`."""
        if not columns:
            return [Found(place, document) for place, document in enumerate(self._documents)]
        index = self._index(tuple(columns))
        places = sorted({place for one in wanted for place in index.get(key_of(one), ())})
        return [Found(place, self._documents[place]) for place in places]

    def _index(self, columns: tuple[Names, ...]) -> dict[bytes, list[int]]:
        if columns not in self._indexes:
            index: dict[bytes, list[int]] = {}
            for place, document in enumerate(self._documents):
                for parts in product(*(sorted(lookup_keys(document, names)) for names in columns)):
                    index.setdefault(b"".join(parts), []).append(place)
            self._indexes[columns] = index
        return self._indexes[columns]

    async def close(self) -> None:
        """Nothing is open."""
