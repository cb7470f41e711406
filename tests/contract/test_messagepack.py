"""Records of MessagePack: what others write is read, what is written others read, and any bytes are a record or none."""

import contextlib
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.plugins import NoConfig
from tidemark.services.library.release_world import InlineSpawner
from tidemark.services.sink.connectors.formatted import FormattedForms
from tidemark.services.source.connectors.formatted import FormattedRecords
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.documents.model import plugin_uses
from tidemark.shared.language.forms import PluginFormat
from tidemark.shared.language.stages import KafkaEmit, KafkaSource
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.values import Binary, Date, ObjectId, long
from tidemark.shared.plugins.messagepack import MessagePack
from tidemark.shared.runtime.plugged import PluggedFormat
from tidemark.testing import FormatContract

FORM = PluginFormat("$source.format", "messagePack", own=True)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class TestMessagePack(FormatContract):
    """What others' formats have to keep."""

    plugin = MessagePack
    documents = (
        {},
        {"a": None, "b": [1, 2.5, "ü", True, {"": -(2**63)}], "c": Binary(b"\x00\xff"), "d": Date(-1)},
        {"d": Date(1_384_300_800_123), "far": Date(2**62)},
    )


def form() -> MessagePack:
    """One."""
    return MessagePack(NoConfig(), NoConfig())


def read(record: bytes) -> Any:
    """The document of a record."""
    return parse_json(form().decode(record))


@given(document=st.dictionaries(st.text(), PLAIN, max_size=5))
def test_what_others_write_is_read_and_what_is_written_others_read(document: dict[str, Any]) -> None:
    """By the reference library, both ways."""
    assert read(msgpack.packb(document)) == document
    assert msgpack.unpackb(form().encode(document)) == document


@given(data=st.binary() | st.binary().map(lambda end: b"\x81\xa1a" + end))
def test_any_bytes_are_json_or_a_value_error(data: bytes) -> None:
    """Nothing else is raised, and no length that bytes claim is reserved. JSON that is no object is told as such where it is read."""
    with contextlib.suppress(ValueError):  # these are no record
        assert json.loads(form().decode(data)) is not ...


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (2**64 - 1, float(2**64 - 1)),
        (b"\x01", Binary(b"\x01")),
        (float("inf"), float("inf")),
        (datetime(2013, 2, 9, 1, 2, 3, 456_789, UTC), Date(1_360_371_723_456)),
        (datetime(1900, 1, 1, tzinfo=UTC), Date(-2_208_988_800_000)),
    ],
)
def test_types_that_json_lacks(value: object, found: object) -> None:
    """Unsigned numbers beyond a long are doubles, as in JSON; microseconds are cut off."""
    assert read(msgpack.packb({"a": [value]}, datetime=True)) == {"a": [found]}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"\x81\x01\x01", "int is not allowed for map key"),
        (b"\x81\xc4\x01a\x01", "expected names that are texts, found b'a'"),
        (msgpack.packb({"a": msgpack.ExtType(5, b"x")}), "an extension of type 5, and only timestamps"),
        (b"\x81\xa1a\xdd\xff\xff\xff\xff", "exceeds max_array_len"),
        (msgpack.packb({"a": msgpack.Timestamp(2**62)}), "more than a date holds"),
        (b"\x80\x80", "extra data"),
        (b"\x81\xa1a\xa1\xff", "invalid start byte"),
        (b"\x81\xa1a\xc1", "not MessagePack: no value begins with the byte 0xc1"),
        (b"\x81\xa1a" * 200 + b"\xc0", "nested more than 180 deep"),
        (b"\x81\xa1a" + b"\x91" * 600 + b"\xc0", "nested more than 180 deep"),
        (b"\x81\xa1a" * 5_000 + b"\xc0", "nested more than 180 deep"),
    ],
)
def test_what_is_no_record_says_why(record: bytes, said: str) -> None:
    """A dead letter has it as its reason."""
    with pytest.raises(ValueError, match=said):
        form().decode(record)


async def test_what_messagepack_has_no_type_for_is_as_in_json() -> None:
    """It comes back as what it was; and a whole number is one, whatever its width was."""
    document = {"n": Decimal("1.20"), "o": ObjectId(b"abcdefghijkl"), "u": Binary(b"x" * 16, 4), "l": long(7)}
    assert msgpack.unpackb(form().encode(document)) == {
        "n": {"$numberDecimal": "1.20"},
        "o": {"$oid": "6162636465666768696a6b6c"},
        "u": {"$binary": {"base64": "eHh4eHh4eHh4eHh4eHh4eA==", "subType": "04"}},
        "l": 7,
    }
    places = np.zeros(1, dtype=np.int64)
    batch = RawBatch(SplitId("t-0"), 0, places, places, pa.array([form().encode(document)], pa.binary()))
    found = await FormattedRecords(PluggedFormat(form, FORM), None, InlineSpawner(), 1_000).decoded(batch)
    assert parse_json(found.values[0].as_py()) == document


async def test_a_topic_of_records_is_read_and_written() -> None:
    """Values become the JSON that sources read, tombstones stay, and what is no record keeps its bytes, with the reason."""
    plugged = PluggedFormat(form, FORM)
    sent = [msgpack.packb({"a": 1, "t": msgpack.Timestamp(1)}), None, b"\xc1"]
    places = np.arange(3, dtype=np.int64)
    batch = RawBatch(SplitId("t-0"), 0, places, places, pa.array(sent, pa.binary()))
    found = await FormattedRecords(plugged, None, InlineSpawner(), 1_000).decoded(batch)
    assert found.values.to_pylist() == [b'{"a":1,"t":{"$date":{"$numberLong":"1000"}}}', None, b"\xc1"]
    assert found.unread.keys() == {2}
    assert found.unread[2].startswith("$source.format, format messagePack: ")
    forms = FormattedForms(plugged, None, InlineSpawner())
    await forms.prepare("t")
    assert msgpack.unpackb(forms.value({"a": Date(1_000)}, lambda: b"", "t"), timestamp=0) == {
        "a": msgpack.Timestamp(1)
    }


def _parsed(source: dict[str, Any], emit: dict[str, Any]) -> Any:
    ends = {"connectionName": "k", "topic": "t"}
    pipeline = [{"$source": ends | source}, {"$emit": ends | {"topic": "u"} | emit}]
    return parse(json.dumps({"pipeline": pipeline}))


def test_documents_name_it_as_a_word() -> None:
    """It is no plug-in that an installation has to allow."""
    processor = _parsed({"format": "messagePack"}, {"format": "messagePack"})
    source, emit = processor.pipeline[0], processor.pipeline[-1]
    assert isinstance(source, KafkaSource)
    assert isinstance(emit, KafkaEmit)
    own = [(form.plugin, form.own) for form in (source.format, emit.format) if form is not None]
    assert own == [("messagePack", True), ("messagePack", True)]
    assert not list(plugin_uses(processor.pipeline))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"format": "messagepack"}, r"\$source\.format: .*messagePack"),
        ({"format": "messagePack", "schemaRegistry": {"connectionName": "k"}}, "not of both"),
    ],
)
def test_wrong_documents_are_told(source: dict[str, Any], said: str) -> None:
    """Nearest names, and what excludes each other."""
    with pytest.raises(InvalidDocument, match=said):
        _parsed(source, {})
