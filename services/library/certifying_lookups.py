"""The tests that a plug-in's lookup has to pass: its author derives a class from `LookupContract`, and pytest runs them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar, Final

from tidemark.services.library.release_world import Inline
from tidemark.services.operator.tables.held import HeldTable
from tidemark.services.operator.tables.plugin import PluggedTable
from tidemark.shared.language.query.match import equality_values
from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.values import MISSING, Date, Document, Found, Value, long
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.plugins.interface import API, Lookup
from tidemark.shared.ports.tables import Names
from tidemark.shared.runtime.settings import LookupSettings

Given = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A stage's config, and the config of its connection."""
_NOWHERE: Final[Sequence[Value]] = (
    "", "none", "\x00", "\ud800", "%", "'", '"', True, -7, 2**62, 0.5, float("nan"), Decimal("0.1"), Date(10**17), ["a"], {"a": 1},
)  # fmt: skip
"""Values that a document may look for, and hardly any has."""
_FIELDS_MAX, _VALUES_MAX = 3, 3
"""Of one question: fields, and values of each field where there are several."""
Wanted = tuple[Value, ...]
Question = tuple[Sequence[Names], Sequence[Wanted]]


class LookupContract:
    """Derive `class TestMine(LookupContract)`, set `plugin` and `documents`, write `given` and `fill`; once for each config."""

    plugin: ClassVar[type[Lookup[Any, Any]]]
    documents: ClassVar[Sequence[Document]]
    """Some that it can have, with all kinds of values, arrays and missing fields that it knows."""
    fields: ClassVar[Sequence[str]] = ()
    """The paths by which it is asked; none: the top-level fields of the documents, and one that they do not have."""

    def given(self, folder: Path) -> Given:
        """A lookup without documents: config of the stage, and of its connection. `folder` is empty, and the lookup's own."""
        raise TypeError(f"{type(self).__name__}: write given(self, folder)")

    def fill(self, folder: Path, documents: Sequence[Document]) -> None:
        """Put documents where the lookup finds them."""
        raise TypeError(f"{type(self).__name__}: write fill(self, folder, documents)")

    # --- what it must keep ------------------------------------------------------------------------------------------------

    def test_it_is_written_for_this_version_of_the_interface(self) -> None:
        """The class says so."""
        assert self.plugin.api == API, f"set api = {API} in the class, once it keeps the contract of that version"

    def test_without_fields_it_finds_all(self, tmp_path: Path) -> None:
        """Each document once, as it was put there."""
        self.fill(tmp_path, self.documents)
        found = self._ask(self._table(tmp_path), (), [()])
        assert _texts(found) == sorted(map(canonical_key, self.documents))

    def test_nothing_that_is_asked_for_is_missing(self, tmp_path: Path) -> None:
        """By any fields, and any values of any type: all documents that are equal come, of each that is asked for in one question."""
        self.fill(tmp_path, self.documents)
        table = self._table(tmp_path)
        held = HeldTable([each.document for each in self._ask(table, (), [()])])
        for fields, wanted in self._questions():
            found = set(_texts(self._ask(table, fields, wanted)))
            lacking = [each for each in asyncio.run(held.find(fields, wanted)) if not found.issuperset(_texts([each]))]
            assert not lacking, f"fields {fields}, wanted {wanted}: {lacking[0].document} is missing"

    def test_a_document_has_one_place(self, tmp_path: Path) -> None:
        """However it is found, and by whatever object; no other document has it."""
        self.fill(tmp_path, self.documents)
        table = self._table(tmp_path)
        places = {each.place: canonical_key(each.document) for each in self._ask(table, (), [()])}
        assert len(places) == len(self.documents), f"{len(self.documents)} documents have {len(places)} places"
        for number, (fields, wanted) in enumerate(self._questions()):
            for each in self._ask(self._table(tmp_path) if number % 2 else table, fields, wanted):
                was = places.get(each.place)
                assert was == canonical_key(each.document), (
                    f"place {each.place} was another document's: {each.document}"
                )

    def test_it_can_be_let_go_of_and_opened_again(self, tmp_path: Path) -> None:
        """An object is made anew after every error: what it finds is the same, and closing one that was never opened is nothing."""
        self.fill(tmp_path, self.documents)
        config, settings = self.given(tmp_path)
        make_of(self.plugin.__name__, self.plugin, config, settings).close()
        table = self._table(tmp_path)
        before = self._ask(table, (), [()])
        asyncio.run(table.close())
        assert self._ask(table, (), [()]) == before

    # --- its world ----------------------------------------------------------------------------------------------------------

    def _questions(self) -> Iterator[Question]:
        """By one field and by several; one value, and all at once."""
        fields = self.fields or (*dict.fromkeys(name for each in self.documents for name in each), "nowhere")
        known = {field: _values(self.documents, _names(field)) for field in fields}
        for field, values in known.items():
            yield from _each([field], [(value,) for value in (*values, None, *_NOWHERE)])
        for some in (each for size in range(2, _FIELDS_MAX + 1) for each in combinations(fields, size)):
            yield from _each(some, list(product(*((*known[field][:_VALUES_MAX], None) for field in some))))

    def _table(self, folder: Path) -> PluggedTable:
        config, settings = self.given(folder)
        return PluggedTable(
            lambda: make_of(self.plugin.__name__, self.plugin, config, settings),
            "the plug-in",
            Inline(),
            LookupSettings(),
        )

    @staticmethod
    def _ask(table: PluggedTable, fields: Sequence[Names], wanted: Sequence[Wanted]) -> Sequence[Found]:
        return asyncio.run(table.find(fields, wanted))


def _each(fields: Sequence[str], wanted: Sequence[Wanted]) -> Iterator[Question]:
    """One after the other, and all in one question."""
    names = [_names(field) for field in fields]
    for some in (*([each] for each in wanted), wanted):
        yield names, some


def _names(field: str) -> Names:
    return tuple(field.split("."))


def _values(documents: Sequence[Document], names: Names) -> list[Value]:
    """What the documents have at the path, each once; numbers also as those of other types that equal them."""
    found: dict[bytes, Value] = {}
    for value in (each for document in documents for each in equality_values(document, names) if each is not MISSING):
        found.setdefault(canonical_key(value), value)
    numbers = [each for each in found.values() if type(each) in (int, float)]
    return [*found.values(), *map(float, numbers), *(long(int(each)) for each in numbers if each == int(each))]


def _texts(found: Sequence[Found]) -> list[bytes]:
    """The documents, to be compared."""
    return sorted(canonical_key(each.document) for each in found)
