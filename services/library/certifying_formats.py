"""The tests that a plug-in's format has to pass: its author derives a class from `FormatContract`, and pytest runs them."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from tidemark.shared.language.values import parse_json
from tidemark.shared.model.values import Document
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.plugins.interface import API, Format

_DAMAGES: Final = 200
"""Of each record: bytes that are changed, left out, added."""


class FormatContract:
    """Derive `class TestMine(FormatContract)`, set `plugin` and `documents`, and `config` where it takes one."""

    plugin: ClassVar[type[Format[Any]]]
    documents: ClassVar[Sequence[Document]]
    """Some that it writes and reads back."""
    config: ClassVar[Mapping[str, Any]] = {}

    def test_it_is_written_for_this_version_of_the_interface(self) -> None:
        """The class says so."""
        assert self.plugin.api == API, f"set api = {API} in the class, once it keeps the contract of that version"

    def test_what_is_written_is_read_back(self) -> None:
        """Each document comes back as it was, also by another object."""
        writer, reader = self._made(), self._made()
        for document in self.documents:
            found = reader.decode(writer.encode(document))
            read = parse_json(found) if isinstance(found, bytes) else found
            assert read == document, f"{document} came back as {read}"

    def test_a_document_has_one_record(self) -> None:
        """Written again, by the same object or another one, it gives the same bytes."""
        one, two = self._made(), self._made()
        for document in self.documents:
            records = {one.encode(document), two.encode(document), one.encode(document)}
            assert len(records) == 1, f"{document} was written as {records}"
            assert all(isinstance(each, bytes) for each in records)

    def test_a_damaged_record_is_read_or_refused_by_a_value_error(self) -> None:
        """Bytes that are no record raise ValueError and nothing else, and the next record is read as ever."""
        form, drawn = self._made(), random.Random(0)  # noqa: S311 - damage, and always the same
        for document in self.documents:
            record = form.encode(document)
            whole = form.decode(record)
            for _ in range(_DAMAGES):
                damaged = _damaged(record, drawn)
                try:
                    found = form.decode(damaged)
                except ValueError:
                    continue
                assert isinstance(found, dict | bytes), f"{damaged!r}: expected a document or bytes, found {found!r}"
            assert form.decode(record) == whole, "a record is read otherwise after damaged ones"

    def _made(self) -> Format[Any]:
        return make_of(self.plugin.__name__, self.plugin, self.config, {})


def _damaged(record: bytes, drawn: random.Random) -> bytes:
    begin, end = sorted(drawn.randrange(len(record) + 1) for _ in range(2))
    return record[:begin] + drawn.randbytes(drawn.randrange(3)) + record[end if drawn.random() < 1 / 2 else begin :]
