"""Where expressions are interpreted for the rows of a batch, one by one."""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import cached_property, partial
from struct import Struct
from typing import Any, Final, TypeVar

import pyarrow as pa

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.values import decode_doc, decode_value
from tidemark.shared.model.values import Date, Document, Value, long
from tidemark.shared.operators.base import ARRIVAL, EVENT, META, NTH, PART, PLACE, POS, SRCKEY, TS, WEND, WSTART
from tidemark.shared.operators.context import Topics, source_place
from tidemark.shared.operators.record_keys import shown_key
from tidemark.shared.operators.window_plan import SESSION_KEY

_META: Final = (WSTART, WEND, SESSION_KEY, PART, POS, SRCKEY, TS, EVENT, META, NTH)

_PLACE_OF_ROW: Final = Struct(">iq")

T = TypeVar("T")


class Abandoned(Exception):
    """Rows are left as they are."""


_WANTED: Final[ContextVar[Callable[[], bool]]] = ContextVar("wanted", default=lambda: True)


def while_wanted(wanted: Callable[[], bool], call: Callable[..., T], *args: object) -> T:
    """The result of the call; Abandoned before the next interpreted row if it is not wanted any more.

    One document's work has a bound; a batch is the work of many, and a task that stops need not wait for it.
    """
    token = _WANTED.set(wanted)
    try:
        return call(*args)
    finally:
        _WANTED.reset(token)


def until_abandoned() -> Callable[[], None]:
    """A function that raises Abandoned as soon as the rows are not wanted any more."""
    wanted = _WANTED.get()

    def check() -> None:
        if not wanted():
            raise Abandoned

    return check


def environments(batch: pa.RecordBatch, documents: Sequence[Document], topic: Topics = None) -> list[Environment]:
    """One environment a row: `$$NOW` is the record's arrival, `$meta` comes from the engine's columns."""
    names = batch.schema.names
    arrivals = batch.column(ARRIVAL).to_pylist() if ARRIVAL in names else [None] * len(documents)
    columns = _MetaColumns(batch)
    return [
        Environment(
            document,
            now=None if arrival is None else Date(arrival),
            meta=partial(_meta, columns, number, topic),
            identity=partial(_identity, columns, number),
        )
        for number, (document, arrival) in enumerate(zip(documents, arrivals, strict=True))
    ]


def walk(
    batch: pa.RecordBatch, documents: Sequence[Document], left: Sequence[int], topic: Topics = None
) -> Iterator[Environment]:
    """As `environments`, one after the other in the same object: each stands until the next is asked for.

    left: the units that each row may still spend.
    """
    arrivals = batch.column(ARRIVAL).to_pylist() if ARRIVAL in batch.schema.names else [None] * len(documents)
    columns = _MetaColumns(batch)
    env, check = Environment({}), until_abandoned()
    for number, (document, arrival, units) in enumerate(zip(documents, arrivals, left, strict=True)):
        check()
        meta = partial(_meta, columns, number, topic)
        env.become(
            document, None if arrival is None else Date(arrival), meta, units, partial(_identity, columns, number)
        )
        yield env


class _MetaColumns:
    """The engine's columns that `$meta` reads, as lists; made when the first row is asked for."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    @cached_property
    def lists(self) -> dict[str, list[Any]]:
        names = self._batch.schema.names
        return {name: self._batch.column(name).to_pylist() for name in _META if name in names}


def _meta(columns: _MetaColumns, number: int, topic: Topics) -> Document:
    """The `$meta` of a row."""
    row = {name: cells[number] for name, cells in columns.lists.items()}
    meta: dict[str, Any] = {} if row.get(META) is None else decode_doc(row[META])
    if row.get(WSTART) is not None:
        window: dict[str, Any] = {"start": Date(row[WSTART]), "end": Date(row[WEND])}
        if row.get(SESSION_KEY) is not None:
            window["partition"] = decode_value(row[SESSION_KEY])
        meta["window"] = window
    part = row.get(PART)
    if part is not None and part >= 0:
        meta["source"] = _source(row, topic)
    return meta


def _identity(columns: _MetaColumns, number: int) -> bytes | None:
    """The bytes that no other row of a task's records has: of its split, its place and stream, and which of its record's rows it is."""
    lists = columns.lists
    part = lists[PART][number] if PART in lists else None
    if part is None or part < 0:
        return None
    nth = lists[NTH][number] if NTH in lists else None
    return _PLACE_OF_ROW.pack(part, lists[POS][number]) + (nth or b"")


def _source(row: dict[str, Any], topics: Topics) -> dict[str, Value]:
    """Where a record came from, with its key, and its event time."""
    topic, partition = source_place(topics, row[PART])
    source: dict[str, Value] = {} if topic is None else {"topic": topic}
    source["partition"], source["offset"] = partition, long(row[POS] & PLACE)
    if row.get(SRCKEY) is not None:
        source["key"] = shown_key(topics, row[SRCKEY])
    time_ms = row.get(EVENT, row.get(TS))
    if time_ms is not None:
        source["ts"] = Date(time_ms)
    return source
