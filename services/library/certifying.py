"""The tests that a plug-in's source, lookup or format has to pass: its author derives a class from the contract, and pytest runs them."""

import asyncio
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar, Final

from tidemark.services.library.hands import HANDS
from tidemark.services.operator.tables.held import HeldTable
from tidemark.services.operator.tables.plugin import PluggedTable
from tidemark.services.source.connectors.plugin import PluginConnector
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.language.query.match import equality_values
from tidemark.shared.language.values import canonical_key, encode_doc, parse_json, type_name
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.values import MISSING, Date, Document, Found, Value, long
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.plugins.interface import API, Format, Lookup, Plugin, Source
from tidemark.shared.ports.tables import Names
from tidemark.shared.runtime.settings import LookupSettings

Given = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A stage's config, and the config of its connection."""
_HASHED: Final = (2**31, 2**31 - 1, 2**16, 2**16 - 1, *(10**n for n in range(3, 10)))
"""What `hash` is commonly divided by for an ordinal."""
_EACH = 10
"""Records in a split."""
_LEAST, _LITTLE, _ALL = 1, 30, 1 << 20
"""Bytes of a fetch: fewer than a record has, some records, all."""
_BACKLOG: Final = 3_000
"""Records of a split that are more than a source reads at once when it is asked for little."""
_EMPTY_MAX: Final = 100
"""Fetches in turn without a record, of a source that says that there are more."""
_READ_S: Final = 1.0
"""For a read that finds nothing: one that waits holds up the other splits of its task, and checkpoints."""
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: times behind it were hardly counted in milliseconds."""
Read = dict[SplitId, list[tuple[int, int, int, bytes]]]
"""Position, number, time and value of each record, by split."""


class VersionContract:
    """What each contract has."""

    plugin: ClassVar[type[Plugin[Any, Any]]]

    def test_it_is_written_for_this_version_of_the_interface(self) -> None:
        """The class says so."""
        assert self.plugin.api == API, f"set api = {API} in the class, once it keeps the contract of that version"


class SourceContract(VersionContract):
    """Derive `class TestMine(SourceContract)`, set `plugin`, write `given` and `add`; once for each config in which it reads otherwise."""

    plugin: ClassVar[type[Source[Any, Any]]]
    splits: ClassVar[int] = 3
    """How many splits it is tried with; 1 for a source that has one alone."""

    def given(self, folder: Path) -> Given:
        """A source without records: config of the stage, and of its connection. `folder` is empty, and the source's own."""
        raise TypeError(f"{type(self).__name__}: write given(self, folder)")

    def add(self, folder: Path, split: int, numbers: Sequence[int]) -> None:
        """Append documents with the field `n`, one for each number, to a split; the next one is made where there is none yet.

        Where splits have names, let a later one sort in front of an earlier: an ordinal that is a place among the names is found so.
        """
        raise TypeError(f"{type(self).__name__}: write add(self, folder, split, numbers)")

    # --- what it must keep ------------------------------------------------------------------------------------------------

    def test_each_split_is_read_whole_and_in_order(self, tmp_path: Path) -> None:
        """All records of every split come once, in the split's order, with positions that grow."""
        asyncio.run(self._whole(tmp_path))

    async def _whole(self, folder: Path) -> None:
        lanes = self._fill(folder)
        for max_bytes in (_LEAST, _LITTLE, _ALL):
            found = await _drained(await self._opened(folder), max_bytes)
            _same(lanes, _lanes(found), f"reads of about {max_bytes} bytes give the numbers of each split")
            late = [each for records in found.values() for each in records if abs(each[2]) > _LAST_MS]
            assert not late, f"timestamp_ms is in milliseconds since 1970: {late[0]}"

    def test_a_restart_resumes_exactly_from_any_record(self, tmp_path: Path) -> None:
        """From the positions behind any fetch, and of any record, a fresh object gives the rest: the same records, nothing twice."""
        asyncio.run(self._resumed(tmp_path))

    async def _resumed(self, folder: Path) -> None:
        self._fill(folder)
        source = await self._opened(folder)
        whole = await _drained(source, _ALL)
        ends = {status.split: status.next_position for status in source.status()}
        source = await self._opened(folder)
        given: Read = {}
        while not all(status.at_end for status in source.status()):
            _add(given, await source.fetch(_LITTLE, 1))
            positions = {status.split: status.next_position for status in source.status()}
            await self._rest(folder, positions, given, whole)
        for number in range(1, _EACH + 1):
            behind = {
                split: Offset(records[number][0]) if number < len(records) else ends[split]
                for split, records in whole.items()
            }
            await self._rest(folder, behind, {split: whole[split][:number] for split in behind}, whole)

    def test_a_position_gives_the_same_whenever_it_is_read(self, tmp_path: Path) -> None:
        """Also to the same object, and behind others: what was read is no part of what comes next."""
        self._fill(tmp_path)
        with self._asked(tmp_path) as source:
            for split in HANDS.call(source.splits):
                whole = HANDS.call(source.read, split.name, split.begin, _ALL).records
                for record in (*whole, *reversed(whole)):
                    found = HANDS.call(source.read, split.name, record.position, _LEAST).records
                    assert found, f"split {split.name}, read from the position of {record}: nothing comes"
                    _same(record, found[0], f"split {split.name}, read again from {record.position}")

    def test_a_read_gives_about_as_much_as_it_is_asked_for(self, tmp_path: Path) -> None:
        """Else all that waits would lie in memory at once; and where nothing is, it says so without waiting."""
        self.add(tmp_path, 0, range(_BACKLOG))
        with self._asked(tmp_path) as source:
            (split,) = HANDS.call(source.splits)
            found = HANDS.call(source.read, split.name, split.begin, _LITTLE)
            assert len(found.records) < _BACKLOG, f"asked for about {_LITTLE} bytes, it gives all {_BACKLOG} records"
            position, taken = found.next, len(found.records)
            while taken < _BACKLOG and found.records:
                found = HANDS.call(source.read, split.name, position, _ALL)
                position, taken = found.next, taken + len(found.records)
            _same(_BACKLOG, taken, "records of one split, read one batch behind the other")
            waits = []
            for _ in range(3):  # the machine may be busy
                begun = time.monotonic()
                assert not HANDS.call(source.read, split.name, position, _ALL).records
                waits.append(time.monotonic() - begun)
            assert min(waits) < _READ_S, (
                f"a read that finds nothing took {min(waits):.1f} s: it does not wait for records"
            )

    def test_an_object_that_was_never_opened_can_be_closed(self, tmp_path: Path) -> None:
        """An object is closed where `open` has failed, too."""
        self._made(tmp_path).close()

    async def _rest(self, folder: Path, positions: Mapping[SplitId, Offset], given: Read, whole: Read) -> None:
        rest = await _drained(await self._opened(folder, positions), _ALL)
        for split in positions:
            found = [*given.get(split, []), *rest.get(split, [])]
            assert found == whole.get(split, []), (
                f"split {split}, read again from {positions[split]}: {found} instead of {whole.get(split, [])}"
            )

    def test_tasks_see_the_same_splits_and_share_them(self, tmp_path: Path) -> None:
        """Two objects list the same splits with the same ordinals; divided among them, everything is read once."""
        asyncio.run(self._shared(tmp_path))

    async def _shared(self, folder: Path) -> None:
        lanes = self._fill(folder)
        one, two = self._source(folder), self._source(folder)
        splits = await one.splits()
        assert splits == await two.splits(), "two tasks see different splits"
        _same(await one.bounded(), await one.bounded(), "bounded, asked again")
        _same(await one.bounded(), await two.bounded(), "bounded, of another object")
        known = await one.found(list(splits), first=True)
        _same(known, await two.found(list(splits), first=True), "ordinals, origins and begins in two tasks")
        await two.check(known)
        # Of all: a single one may be so by chance.
        by_hash = any(all(at == hash(name) % each for name, at in splits.items()) for each in _HASHED)
        assert not by_hash, (
            f"the ordinals of {list(splits)} are their hash(), which is another one in each process: zlib.crc32 stays"
        )
        assert len(splits) == self.splits, f"{self.splits} splits were filled, and it lists {list(splits)}"
        names = sorted(splits)
        await _open(one, names[::2])
        await _open(two, names[1::2])
        _same(lanes, _lanes({**await _drained(one, _ALL), **await _drained(two, _ALL)}), "two tasks give")

    def test_it_ends_or_goes_on_as_it_says(self, tmp_path: Path) -> None:
        """A bounded source finishes all splits, and gives nothing behind them; another one reads on when more comes."""
        asyncio.run(self._ended(tmp_path))

    async def _ended(self, folder: Path) -> None:
        lanes = self._fill(folder)
        source = await self._opened(folder)
        await _drained(source, _ALL)
        if await source.bounded():
            assert all(status.finished for status in source.status()), "a bounded split does not say that it has ended"
            positions = {status.split: status.next_position for status in source.status()}
            again = await self._opened(folder, positions)
            _same({}, await _drained(again, _ALL), "records behind the end of a bounded source")
            assert all(status.finished for status in again.status()), (
                "a split that has ended goes on, read from its end"
            )
            return
        assert not any(status.finished for status in source.status()), "a split that goes on says that it has ended"
        self.add(folder, 0, [100, 101])
        found: Read = {}
        for _ in range(100):
            _add(found, await source.fetch(_ALL, 10))
            if sum(map(len, found.values())) == len((100, 101)):
                break
        _same([[100, 101]], _lanes(found), f"two records that were added behind {lanes}")

    def test_splits_that_come_keep_the_others_as_they_were(self, tmp_path: Path) -> None:
        """Ordinals and origins stay; one that comes is read from its first record."""
        asyncio.run(self._grown(tmp_path))

    async def _grown(self, folder: Path) -> None:
        self._fill(folder)
        source = await self._opened(folder)
        if self.splits == 1 or await source.bounded():
            return
        before = await source.splits()
        known = await source.found(list(before), first=True)
        self.add(folder, self.splits, [100, 101])
        self.add(folder, 0, [102])
        await self._source(folder).check(known)
        after = await source.splits()
        assert before.items() <= after.items(), f"ordinals have changed: {before}, {after}"
        new = [name for name in after if name not in before]
        assert len(new) == 1, f"a split was added to {list(before)}, and it lists {list(after)}"
        fresh = self._source(folder)
        await _open(fresh, new, first=False)
        _same([[100, 101]], _lanes(await _drained(fresh, _ALL)), "a split that came, read from its earliest position")

    def test_a_drain_stops_behind_what_is_there(self, tmp_path: Path) -> None:
        """`end` is behind the last record that there is now, and what comes later is not read."""
        asyncio.run(self._stopped(tmp_path))

    async def _stopped(self, folder: Path) -> None:
        lanes = self._fill(folder)
        source = await self._opened(folder)
        given: Read = {}
        _add(given, await source.fetch(_LITTLE, 1))
        ends = await source.ends({status.split: status.next_position for status in source.status()})
        source.end_at({split: end for split, end in ends.items() if end is not None})
        if None not in ends.values():
            self.add(folder, 0, [100, 101])
        for _ in range(_EMPTY_MAX):
            _add(given, await source.fetch(_ALL, 1))
            if all(status.finished for status in source.status()):
                break
        else:
            raise AssertionError(f"a drain never comes to the ends that it named: {dict(ends)}, {source.status()}")
        _same(lanes, _lanes(given), "what was there when the drain began")

    def test_what_is_committed_takes_nothing_from_what_follows(self, tmp_path: Path) -> None:
        """Told of a checkpoint, the source still gives every record behind it, to this object and to a fresh one."""
        asyncio.run(self._committed(tmp_path))

    async def _committed(self, folder: Path) -> None:
        self._fill(folder)
        whole = await _drained(await self._opened(folder), _ALL)
        source = await self._opened(folder)
        given: Read = {}
        _add(given, await source.fetch(_LITTLE, 1))
        positions = {status.split: status.next_position for status in source.status()}
        await source.note("job", positions)
        _add(given, await source.fetch(_LITTLE, 1))
        before = {split: [each for each in whole[split] if each[0] < positions[split]] for split in positions}
        await self._rest(folder, positions, before, whole)

    # --- its world ----------------------------------------------------------------------------------------------------------

    def _fill(self, folder: Path) -> list[list[int]]:
        """Numbers 0, 1, 2, … dealt to splits in turn; by split, sorted."""
        lanes = [[self.splits * n + lane for n in range(_EACH)] for lane in range(self.splits)]
        for lane, numbers in enumerate(lanes):
            self.add(folder, lane, numbers)
        return lanes

    def _source(self, folder: Path) -> PluginConnector:
        return PluginConnector(lambda: self._made(folder), "the plug-in", HANDS, SystemClock())

    def _made(self, folder: Path) -> Source[Any, Any]:
        config, settings = self.given(folder)
        return make_of(self.plugin.__name__, self.plugin, config, settings)

    @contextmanager
    def _asked(self, folder: Path) -> Iterator[Source[Any, Any]]:
        """An open object of the plug-in itself."""
        source = HANDS.call(self._made, folder)
        try:
            HANDS.call(source.open)
            yield source
        finally:
            HANDS.call(source.close)

    async def _opened(self, folder: Path, positions: Mapping[SplitId, Offset] | None = None) -> PluginConnector:
        source = self._source(folder)
        await _open(source, list(await source.splits() if positions is None else positions), positions)
        return source


async def _open(
    source: PluginConnector,
    splits: Collection[SplitId],
    positions: Mapping[SplitId, Offset] | None = None,
    *,
    first: bool = True,
) -> Mapping[SplitId, KnownSplit]:
    known = await source.found(splits, first=first)
    await source.open({split: (positions or {}).get(split, each.begin) for split, each in known.items()})
    return known


async def _drained(source: PluginConnector, max_bytes: int) -> Read:
    """Everything up to where all splits are at their end."""
    found: Read = {}
    empty = 0
    while not all(status.at_end for status in source.status()):
        batches = await source.fetch(max_bytes, 1)
        _add(found, batches)
        empty = 0 if batches else empty + 1
        assert empty < _EMPTY_MAX, f"{empty} fetches gave no record, and it says that there are more: {source.status()}"
    return found


def _add(found: Read, batches: Sequence[RawBatch]) -> None:
    for batch in batches:
        rows = zip(batch.positions.tolist(), batch.values.to_pylist(), batch.timestamps_ms.tolist(), strict=True)
        records = found.setdefault(batch.split, [])
        records += [(position, _number(value), time_ms, value) for position, value, time_ms in rows]


def _number(value: bytes | None) -> int:
    document = None if value is None else parse_json(value)
    assert isinstance(document, dict), f"expected a document, or one as JSON in bytes, found {value!r}"
    assert isinstance(document.get("n"), int), f"expected the field n that add() has given it, found {document}"
    return int(document["n"])


def _same(expected: object, found: object, what: str) -> None:
    assert found == expected, f"{what}: expected {expected}, found {found}"


def _lanes(found: Read) -> list[list[int]]:
    return sorted([number for _, number, *_ in records] for records in found.values())


_DAMAGES: Final = 200
"""Of each record: bytes that are changed, left out, added."""


class FormatContract(VersionContract):
    """Derive `class TestMine(FormatContract)`, set `plugin` and `documents`, and `config` where it takes one."""

    plugin: ClassVar[type[Format[Any]]]
    documents: ClassVar[Sequence[Document]]
    """Some that it writes and reads back."""
    config: ClassVar[Mapping[str, Any]] = {}

    def test_what_is_written_is_read_back(self) -> None:
        """Each document comes back as it was, also by another object."""
        writer, reader = self._made(), self._made()
        for document in self.documents:
            before = encode_doc(document)
            found = HANDS.call(reader.decode, HANDS.call(writer.encode, document))
            read = parse_json(found) if isinstance(found, bytes) else found
            assert encode_doc(document) == before, f"encode() has changed the document that it was given, to {document}"
            assert read == document, f"{document} came back as {read}"
            same = _typed(read) == _typed(document)
            assert same, (
                f"{document} came back as {read}, with values of other types: {_typed(document)} as {_typed(read)}"
            )

    def test_a_document_has_one_record(self) -> None:
        """Written again, by the same object or another one, it gives the same bytes."""
        one, two = self._made(), self._made()
        for document in self.documents:
            records = [HANDS.call(each.encode, document) for each in (one, two, one)]
            assert all(isinstance(each, bytes) for each in records), (
                f"expected bytes from encode(), found {records[0]!r}"
            )
            assert len(set(records)) == 1, f"{document} was written as {records}"

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


def _typed(value: Value) -> object:
    """The value, unequal to values of other types that Python takes for the same: 1, 1.0 and True."""
    if isinstance(value, dict):
        return {name: _typed(each) for name, each in value.items()}
    return [_typed(each) for each in value] if isinstance(value, list) else (type_name(value), value)


def _damaged(record: bytes, drawn: random.Random) -> bytes:
    begin, end = sorted(drawn.randrange(len(record) + 1) for _ in range(2))
    return record[:begin] + drawn.randbytes(drawn.randrange(3)) + record[end if drawn.random() < 1 / 2 else begin :]


_NOWHERE: Final[Sequence[Value]] = (
    "", "none", "\x00", "\ud800", "%", "'", '"', True, -7, 2**62, 0.5, float("nan"), Decimal("0.1"), Date(10**17), ["a"], {"a": 1},
)  # fmt: skip
"""Values that a document may look for, and hardly any has."""
_FIELDS_MAX, _VALUES_MAX = 3, 3
"""Of one question: fields, and values of each field where there are several."""
Wanted = tuple[Value, ...]
Question = tuple[Sequence[Names], Sequence[Wanted]]


class LookupContract(VersionContract):
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
        """Put documents where the lookup finds them, beside those that are there."""
        raise TypeError(f"{type(self).__name__}: write fill(self, folder, documents)")

    # --- what it must keep ------------------------------------------------------------------------------------------------

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

    def test_a_place_stays_when_other_documents_come(self, tmp_path: Path) -> None:
        """Those behind half of the documents, put there first, are the same among all."""
        half = len(self.documents) // 2
        self.fill(tmp_path, self.documents[half:])
        before = {each.place: canonical_key(each.document) for each in self._ask(self._table(tmp_path), (), [()])}
        self.fill(tmp_path, self.documents[:half])
        for table in (self._table(tmp_path), self._table(tmp_path)):
            after = {canonical_key(each.document): each.place for each in self._ask(table, (), [()])}
            moved = [text for place, text in before.items() if after.get(text, place) != place]
            assert not moved, f"other documents came, and the place of {moved[0]!r} is {after[moved[0]]} now"

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
            HANDS,
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
