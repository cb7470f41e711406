"""A request's body as records: checked whole before anything is written, the first bad line named."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidemark.shared.ports.log import NewRecord
from tidemark.shared.process.web import BAD_REQUEST, TOO_LARGE, Problem

LINES: Final = ("application/x-ndjson", "application/jsonlines", "application/jsonl")
JSON: Final = "application/json"
ID_HEADER: Final = "record-id"
"""The Kafka header that carries a record's id."""
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Shape:
    """The options that a request gives for its records."""

    content_type: str
    key_field: str = ""
    """Dotted path of the field that is the record's key; "": records have none."""
    id_field: str = ""
    """Dotted path of the field that is the record's id."""
    batch_id: str = ""
    """Without a field: a record's id is this and its number."""

    def placed_by(self, record: NewRecord) -> bytes | None:
        """The bytes that decide on a record's partition, so that a repeat goes where it was first sent; None: any partition.

        Its key; else its own id, whatever batch it comes with; else its batch's.
        """
        if record.key is not None:
            return record.key
        if self.id_field:
            return record.headers[0][1]
        return self.batch_id.encode() or None


def records_of(body: bytes, shape: Shape, record_bytes_max: int, records_max: int) -> list[NewRecord]:
    """The records in their order. Problem, with the place, for the first that is none: then none is written."""
    found: list[NewRecord] = []
    for place, data in _items(body, shape.content_type):
        if len(found) >= records_max:
            raise Problem(TOO_LARGE, place, f"at most {records_max} records in a batch", "more")
        if len(data) > record_bytes_max:
            raise Problem(TOO_LARGE, place, f"a record of at most {record_bytes_max} bytes", f"{len(data)} bytes")
        found.append(_record(place, data, shape, len(found)))
    return found


def _items(body: bytes, content_type: str) -> Iterator[tuple[str, bytes]]:
    if content_type in LINES:
        for number, line in enumerate(body.split(b"\n"), 1):
            if line.strip():
                yield f"line {number}", line.strip()
        return
    if content_type != JSON:
        raise Problem(BAD_REQUEST, "header Content-Type", f"{LINES[0]} or {JSON}", repr(content_type))
    try:
        items = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(BAD_REQUEST, "body", "a JSON array of objects", str(error)) from error
    for number, item in enumerate(items):
        yield f"[{number}]", bytes(item)


def _record(place: str, data: bytes, shape: Shape, number: int) -> NewRecord:
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(BAD_REQUEST, place, "a JSON object", str(error)) from error
    key = None
    if shape.key_field:
        key = _text(_field(place, document, shape.key_field))
    record_id = f"{shape.batch_id}-{number}".encode() if shape.batch_id else b""
    if shape.id_field:
        record_id = _text(_field(place, document, shape.id_field))
        if not record_id:
            raise Problem(BAD_REQUEST, f"{place}, field {shape.id_field}", "an id", "an empty text")
    return NewRecord(data, key, ((ID_HEADER, record_id),) if record_id else ())


def _field(place: str, document: Mapping[str, object], path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
    if value is _MISSING or value is None:
        raise Problem(BAD_REQUEST, f"{place}, field {path}", "a value", "none")
    return value


def _text(value: object) -> bytes:
    """A string's own bytes, JSON for all else."""
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
