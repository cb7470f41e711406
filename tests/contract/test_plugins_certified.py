# ruff: noqa: N802 -- a test carries its rule's name
"""The suites of `tidemark.testing` find faults as authors make them: in sources, sinks, lookups and formats that are else the example's."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from tidemark_shelf import ShelfLookup, ShelfSink, ShelfSource

from tests.contract.sources_worlds import PluginLanes
from tests.contract.test_plugins import _FromShelf, _OfShelf
from tests.harness.opening import open_splits
from tidemark.plugins import Batch, Document, Found, Overtaken, Record, Refused, Split, from_json, to_json
from tidemark.plugins import Format as AnyFormat
from tidemark.services.library.hands import Hands
from tidemark.shared.adapters.executor import Spawner
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.plugins.interface import PluginFailed
from tidemark.shared.ports.sink import TargetRefused
from tidemark.testing import FormatContract, LookupContract

Given = tuple[dict[str, Any], dict[str, Any]]
Changed = Callable[[Batch], Batch]


class _Ending(_FromShelf):
    def given(self, folder: Path) -> Given:
        return {"follow": False}, super().given(folder)[1]


def _reading(change: Changed) -> type[ShelfSource]:
    """A source whose reads are the example's, changed."""

    class Reading(ShelfSource):
        def read(self, split: str, position: int, max_bytes: int) -> Batch:
            return change(super().read(split, position, max_bytes))

    return Reading


def _records(change: Callable[[Record], Record]) -> type[ShelfSource]:
    return _reading(lambda batch: replace(batch, records=[change(each) for each in batch.records]))


def _listing(change: Callable[[Split], Split]) -> type[ShelfSource]:
    class Listing(ShelfSource):
        def splits(self) -> Sequence[Split]:
            return [change(each) for each in super().splits()]

    return Listing


class Cursor(ShelfSource):
    """Goes on where it has stopped, wherever it is asked to read from."""

    def open(self) -> None:
        super().open()
        self.stands: dict[str, int] = {}

    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        batch = super().read(split, self.stands.get(split, position), max_bytes)
        self.stands[split] = batch.next
        return batch


class Whole(ShelfSource):
    """Gives all that there is."""

    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        found = Batch((), position)
        while (more := super().read(split, found.next, 1 << 30)).records:
            found = Batch([*found.records, *more.records], more.next)
        return found if found.records else more


class Timid(ShelfSource):
    """Gives no record that has more bytes than it is asked for."""

    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        batch = super().read(split, position, max_bytes)
        large = batch.records and max_bytes < len(batch.records[0].value or b"")
        return Batch((), position) if large else batch


class Waiting(ShelfSource):
    """Waits for records, for ever."""

    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        batch = super().read(split, position, max_bytes)
        if not batch.records:
            threading.Event().wait(60)
        return batch


class Moody(ShelfSource):
    """Ends, or not, as it is asked for the first time or again."""

    asked = 0

    @property
    def bounded(self) -> bool:
        self.asked += 1
        return self.asked > 1


class Bound(ShelfSource):
    """Its connection is its thread's."""

    def open(self) -> None:
        super().open()
        self.thread = threading.get_ident()

    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        if threading.get_ident() != self.thread:
            raise RuntimeError("a connection can be used only in the thread that made it")
        return super().read(split, position, max_bytes)


class Careless(ShelfSource):
    """Closes what it has not opened."""

    def close(self) -> None:
        self._opened.close()


class Beyond(ShelfSource):
    """Ends where nothing ever comes."""

    def end(self, split: str) -> int:
        return super().end(split) + 1_000_000


WHOLE = "test_each_split_is_read_whole_and_in_order"
RESUMES = "test_a_restart_resumes_exactly_from_any_record"
AGAIN = "test_a_position_gives_the_same_whenever_it_is_read"
SIZE = "test_a_read_gives_about_as_much_as_it_is_asked_for"
SHARED = "test_tasks_see_the_same_splits_and_share_them"
DRAIN = "test_a_drain_stops_behind_what_is_there"
CLOSED = "test_an_object_that_was_never_opened_can_be_closed"


@pytest.mark.parametrize(
    ("plugin", "test", "said"),
    [
        (_reading(lambda b: replace(b, records=[r for r in b.records if r.position % 7])), WHOLE, "give the numbers"),
        (_reading(lambda b: replace(b, next=b.next + 1) if b.records else b), WHOLE, "give the numbers"),
        (_reading(lambda b: replace(b, then="more")), WHOLE, "says that there are more"),
        (_reading(lambda b: replace(b, then="soon")), WHOLE, "expected more, nothing yet or nothing"),  # type: ignore[arg-type]
        (_reading(lambda b: replace(b, records=iter(b.records))), WHOLE, "expected Sequence as the records"),  # type: ignore[arg-type]
        (_records(lambda r: replace(r, value=(r.value or b"").decode())), WHOLE, "as a record's value"),  # type: ignore[arg-type, union-attr]
        (_records(lambda r: replace(r, value=[r.value])), WHOLE, "as a record's value"),  # type: ignore[arg-type]
        (_records(lambda r: replace(r, value={"n": 1, "at": datetime(2026, 1, 1)})), WHOLE, "Date for instants"),  # noqa: DTZ001
        (_records(lambda r: replace(r, timestamp_ms=time.time_ns())), WHOLE, "milliseconds since 1970"),
        (_records(lambda r: replace(r, value=b'{"n":1,"t":%d}' % time.time_ns())), RESUMES, "read again from"),
        (Cursor, AGAIN, "nothing comes"),
        (Whole, SIZE, "it gives all 3000 records"),
        (Timid, WHOLE, "says that there are more"),
        (_listing(lambda s: replace(s, origin=str(time.time_ns()))), SHARED, "in two tasks"),
        (_listing(lambda s: replace(s, ordinal=hash(s.name) % 2**31)), SHARED, "another one in each process"),
        (_listing(lambda s: replace(s, name="one")), SHARED, "a name and an ordinal of its own"),
        (_listing(lambda s: replace(s, ordinal=float(s.ordinal))), SHARED, "expected Integral as ordinal"),  # type: ignore[arg-type]
        (_listing(lambda s: replace(s, origin=None)), SHARED, "expected str as the origin"),  # type: ignore[arg-type]
        (_listing(lambda s: replace(s, begin=0.0)), SHARED, "expected Integral as begin"),  # type: ignore[arg-type]
        (Moody, SHARED, "bounded, asked again"),
        (Bound, WHOLE, "in the thread that made it"),
        (Careless, CLOSED, "Tidemark opens it first"),
        (Beyond, DRAIN, "never comes to the ends"),
    ],
)
def test_the_suite_of_sources_finds(tmp_path: Path, plugin: type[ShelfSource], test: str, said: str) -> None:
    """A source with one fault fails the test of it, which says what is wrong; the example passes it."""
    _found(_FromShelf, plugin, ShelfSource, test, said, tmp_path)


def test_a_source_that_ends_is_looked_at_as_one_that_goes_on(tmp_path: Path) -> None:
    """Its splits' origins are compared, too: a restart would find another source."""
    plugin = _listing(lambda split: replace(split, origin=str(time.time_ns())))
    _found(_Ending, plugin, ShelfSource, SHARED, "in two tasks", tmp_path)


def test_a_call_that_does_not_come_back_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Instead of a run of the tests without an end."""
    monkeypatch.setattr("tidemark.services.library.hands.WAIT_S", 3.0)
    _found(_FromShelf, Waiting, ShelfSource, SIZE, "has not come back", tmp_path)


def test_a_source_whose_positions_are_bytes_passes(tmp_path: Path) -> None:
    """A job goes on at positions that the source has given, and at none between them."""

    class Tens(ShelfSource):
        def read(self, split: str, position: int, max_bytes: int) -> Batch:
            if position % 10:
                raise ValueError("no record begins here")
            found = super().read(split, position // 10, max_bytes)
            records = [replace(each, position=10 * each.position) for each in found.records]
            return Batch(records, 10 * found.next, found.then)

        def end(self, split: str) -> int:
            return 10 * super().end(split)

    suite = _FromShelf()
    suite.plugin = Tens  # type: ignore[misc]
    for number, test in enumerate((WHOLE, RESUMES, AGAIN, DRAIN)):
        folder = tmp_path / str(number)
        folder.mkdir()
        getattr(suite, test)(folder)


async def test_D11_an_ordinal_that_has_changed_is_the_plugins_mistake(tmp_path: Path) -> None:
    """A split whose ordinal is its place among those that are there: one that comes would change the rows of the others."""
    lanes = PluginLanes(tmp_path, follow=True)
    await lanes.add(0, [0])
    source = lanes.source()
    known = await open_splits(source)
    ((name, split),) = known.items()
    moved = KnownSplit(split.ordinal + 1, split.origin, Offset(0))
    with pytest.raises(PluginFailed, match=rf"split {name}: expected the ordinal {moved.ordinal}, which it had"):
        await source.check({SplitId(name): moved})


# --- sinks -----------------------------------------------------------------------------------------------------------------


class LooksFirst(ShelfSink):
    """Compares the marker, and then writes."""

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        now = self.marker(identity)
        if now != after:
            raise Overtaken
        rows = [("out", 0, json.dumps(to_json(each))) for each in documents]
        with self._opened.changed() as db:
            db.executemany("INSERT INTO documents (shelf, added_ms, document) VALUES (?, ?, ?)", rows)
            db.execute("INSERT OR REPLACE INTO markers VALUES (?, ?)", (identity, marker))


class Viewed(ShelfSink):
    """Gives its marker as some drivers give bytes."""

    def marker(self, identity: str) -> bytes | None:
        found = super().marker(identity)
        return None if found is None else memoryview(found)  # type: ignore[return-value]


class Short(ShelfSink):
    """Has columns for short identities and markers."""

    identity_max, marker_max = 1_000, 1_000

    def marker(self, identity: str) -> bytes | None:
        return super().marker(identity[: self.identity_max])

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        super().write(identity[: self.identity_max], documents, marker[: self.marker_max], after)


class ShortIdentity(Short):
    identity_max = 64


class ShortMarker(Short):
    marker_max = 255


class Raw(ShelfSink):
    """Writes documents as if they were JSON."""

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        for each in documents:
            json.dumps(each)
        super().write(identity, documents, marker, after)


class Few(ShelfSink):
    """Takes a statement's variables for as many as it likes."""

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        if len(documents) > 999:
            raise ValueError("too many variables")
        super().write(identity, documents, marker, after)


class Buffering(ShelfSink):
    """Writes when it is closed."""

    def open(self) -> None:
        super().open()
        self.held: list[tuple[str, Sequence[Document], bytes, bytes | None]] = []

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        self.held.append((identity, documents, marker, after))

    def close(self) -> None:
        for each in self.held:
            super().write(*each)
        super().close()


class BoundSink(ShelfSink):
    """Its connection is its thread's."""

    def open(self) -> None:
        super().open()
        self.thread = threading.get_ident()

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        if threading.get_ident() != self.thread:
            raise RuntimeError("a connection can be used only in the thread that made it")
        super().write(identity, documents, marker, after)


class CarelessSink(ShelfSink):
    """Closes what it has not opened."""

    def close(self) -> None:
        self._opened.close()


class Listed(ShelfSink):
    """Names places without reasons."""

    def refused(self, documents: Sequence[Document]) -> Mapping[int, str]:
        return []  # type: ignore[return-value]


class Refusing(Raw):
    """As `Raw`, and says so."""

    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        try:
            super().write(identity, documents, marker, after)
        except TypeError as error:
            raise Refused(str(error)) from error


STANDS = "test_a_writer_that_stands_still_in_a_write_does_not_write_behind_another"
DIES = "test_a_process_that_dies_in_a_write_leaves_all_or_nothing"
OUTLIVES = "test_a_marker_outlives_the_object_and_is_of_its_identity_alone"
VALUES = "test_all_values_are_written_or_refused"
MANY = "test_many_documents_are_written_at_once"
RELEASED = "test_a_commit_that_is_released_again_changes_nothing"


@pytest.mark.parametrize(
    ("plugin", "test", "said"),
    [
        (LooksFirst, STANDS, "while the first writer stood at line"),
        (Viewed, OUTLIVES, "a marker is bytes, found memoryview"),
        (ShortIdentity, OUTLIVES, "two identities of 200 letters"),
        (ShortMarker, OUTLIVES, "is not what was written"),
        (Raw, VALUES, "a document with a long|a document with a decimal|a document with a date"),
        (Few, MANY, "too many variables"),
        (Buffering, DIES, "what it wrote is gone"),
        (BoundSink, RELEASED, "in the thread that made it"),
        (CarelessSink, CLOSED, "Tidemark opens it first"),
        (Listed, RELEASED, r"expected reasons by places of documents from refused\(\)"),
    ],
)
def test_the_suite_of_sinks_finds(tmp_path: Path, plugin: type[ShelfSink], test: str, said: str) -> None:
    """As that of sources."""
    _found(_OfShelf, plugin, ShelfSink, test, said, tmp_path)


def test_a_sink_that_refuses_what_it_cannot_write_passes(tmp_path: Path) -> None:
    """Then a user knows, and no document is tried for ever."""
    suite = _OfShelf()
    suite.plugin = Refusing  # type: ignore[misc]
    getattr(suite, VALUES)(tmp_path)


# --- lookups and formats -------------------------------------------------------------------------------------------------------


class Ordered(ShelfLookup):
    """Counts what it finds."""

    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Any, ...]]) -> Sequence[Found]:
        found = sorted(super().find((), [()]), key=lambda each: str(each.document))
        return [Found(number, each.document) for number, each in enumerate(found)]


class Generating(ShelfLookup):
    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Any, ...]]) -> Sequence[Found]:
        return (each for each in super().find(fields, wanted))  # type: ignore[return-value]


class Timed(ShelfLookup):
    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Any, ...]]) -> Sequence[Found]:
        return [Found(each.place, {"at": datetime(2026, 1, 1)}) for each in super().find(fields, wanted)]  # noqa: DTZ001


class _Asked(LookupContract):
    documents = ({"id": 0}, {"id": 1}, {"id": 2}, {"id": 3})

    def given(self, folder: Path) -> Given:
        return {"shelf": "in-8"}, {"file": str(folder / "shelf.db")}

    def fill(self, folder: Path, documents: Sequence[Document]) -> None:
        _FromShelf().put(folder, 1, documents)


@pytest.mark.parametrize(
    ("plugin", "test", "said"),
    [
        (Ordered, "test_a_place_stays_when_other_documents_come", "other documents came"),
        (Generating, "test_without_fields_it_finds_all", "expected a list of Found"),
        (Timed, "test_without_fields_it_finds_all", "not a value of the language: datetime"),
    ],
)
def test_the_suite_of_lookups_finds(tmp_path: Path, plugin: type[ShelfLookup], test: str, said: str) -> None:
    """As that of sources."""
    _found(_Asked, plugin, ShelfLookup, test, said, tmp_path)


class Plain(AnyFormat[Any]):
    """JSON."""

    api = 1

    def decode(self, data: bytes) -> Document:
        return dict(from_json(json.loads(data)))

    def encode(self, document: Document) -> bytes:
        return json.dumps(to_json(document)).encode()


class Floating(Plain):
    def decode(self, data: bytes) -> Document:
        return {name: float(value) if type(value) is int else value for name, value in super().decode(data).items()}


class Emptying(Plain):
    def encode(self, document: Document) -> bytes:
        document.pop("b", None)
        return super().encode(document)


class _Written(FormatContract):
    documents = ({"a": 1, "b": "x"}, {"c": [1.5, None, {"d": True}]})


@pytest.mark.parametrize(
    ("plugin", "said"),
    [(Floating, "with values of other types"), (Emptying, r"encode\(\) has changed the document")],
)
def test_the_suite_of_formats_finds(plugin: type[Plain], said: str) -> None:
    """A number that comes back as one of another type, and a document that is gone behind its record."""
    _found(_Written, plugin, Plain, "test_what_is_written_is_read_back", said)


def test_hands_take_turns() -> None:
    """Two calls in turn are two threads', and what one raises is raised where it was asked."""
    hands = Hands()
    assert isinstance(hands, Spawner)
    first, second, third = (hands.call(threading.get_ident) for _ in range(3))
    assert first == third != second
    with pytest.raises(ZeroDivisionError):
        hands.call(lambda: 1 // 0)


def test_hands_work_in_a_fork_of_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As some runners of tests make one for each test: threads are not in it."""
    monkeypatch.setattr("tidemark.services.library.hands.WAIT_S", 5.0)
    hands = Hands()
    with ProcessPoolExecutor(1, get_context("fork"), initializer=hands.call, initargs=(int,)) as forked:
        assert forked.submit(int, "7").result(60) == 7


def _found(
    suite: type[Any], plugin: type[Any], right: type[Any], test: str, said: str, folder: Path | None = None
) -> None:
    """The suite's test fails for the plug-in, with these words; and for the one that is right it does not."""
    for kind, name in ((plugin, "wrong"), (right, "right")):
        made = suite()
        made.plugin = kind
        where = []
        if folder is not None:
            (folder / name).mkdir()
            where = [folder / name]
        if kind is right:
            getattr(made, test)(*where)
        else:
            with pytest.raises((AssertionError, PluginFailed, TargetRefused, ValueError), match=said):
                getattr(made, test)(*where)
