"""Bytes on the wire: what goes in comes out, and everything else is refused with what was expected and found (F6)."""
# ruff: noqa: N802 - tests are named after the protocol's rules

from collections.abc import Callable
from contextlib import suppress

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.shared.model.checkpoint import MirrorRow, ReleaseHandle
from tidemark.shared.model.frames import (
    BarrierFrame,
    DataFrame,
    EndFrame,
    Frame,
    Header,
    Inline,
    Segment,
    WatermarkFrame,
)
from tidemark.shared.model.ids import Epoch, Generation, Incarnation, JobId, Seq, TaskId, VertexId
from tidemark.shared.model.messages import StartCheckpoint
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.wire.arrow import decode_batch, divide_batch, encode_batch, split_batch
from tidemark.shared.wire.frames import decode_frame, encode_frame
from tidemark.shared.wire.limits import WireError, WireLimits
from tidemark.shared.wire.messages import (
    decode_command,
    decode_mirror_row,
    decode_report,
    encode_message,
)

times = st.one_of(st.sampled_from([MIN_TIME, MAX_TIME]), st.integers(MIN_TIME, MAX_TIME))
contents = st.sampled_from(["rows", "partials"])
headers = st.builds(
    Header,
    job=st.just(JobId("j" * 32)),
    edge=st.just(Incarnation("e" * 32)),
    generation=st.integers(1, 2**40).map(Generation),
    sender=st.builds(
        TaskId, vertex=st.sampled_from([VertexId("source-1"), VertexId("window-1")]), index=st.integers(0, 127)
    ),
    seq=st.integers(0, 2**60).map(Seq),
    epoch=st.integers(0, 2**40).map(Epoch),
    watermark_ms=times,
)
bodies = st.one_of(
    st.builds(Inline, content=contents, rows=st.integers(0, 10), ipc=st.binary(max_size=50)),
    st.builds(
        Segment,
        content=contents,
        name=st.just("job/edge/1/2/name"),
        rows=st.integers(0, 10),
        size_bytes=st.integers(0, 2**40),
        digest=st.just("0" * 64),
        min_event_ms=times,
        max_event_ms=times,
    ),
)
any_frame = st.one_of(
    st.builds(DataFrame, headers, st.lists(bodies, max_size=3).map(tuple)),
    st.builds(WatermarkFrame, headers, st.booleans()),
    st.builds(BarrierFrame, headers, st.integers(0, 2**40).map(Epoch)),
    st.builds(EndFrame, headers),
)
HEADER = Header(JobId("j"), Incarnation("e"), Generation(1), TaskId(VertexId("v"), 0), Seq(0), Epoch(1), 0)


@given(any_frame)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    """Every frame, markers and both kinds of bodies, survives its bytes."""
    assert decode_frame(encode_frame(frame)) == frame


@given(st.binary(max_size=200))
def test_F6_any_bytes_are_a_frame_or_a_wire_error(data: bytes) -> None:
    """No bytes raise anything but WireError."""
    with suppress(WireError):  # the only thing that may be raised
        decode_frame(data)


@given(any_frame, st.data())
def test_F6_a_frame_cut_or_changed_is_a_frame_or_a_wire_error(frame: Frame, data: st.DataObject) -> None:
    """A frame with one byte changed, or cut short, never raises anything but WireError."""
    whole = encode_frame(frame)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    for damaged in (changed, whole[:at]):
        with suppress(WireError):  # the only thing that may be raised
            decode_frame(damaged)


def _fields(change: Callable[[list[object]], object]) -> bytes:
    fields = msgpack.unpackb(encode_frame(WatermarkFrame(HEADER, idle=False)))
    change(fields)
    packed: bytes = msgpack.packb(fields)
    return packed


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda f: f.__setitem__(0, 2), "version 1, found 2"),
        (lambda f: f.__setitem__(1, 9), "kind 9"),
        (lambda f: f.__setitem__(7, "0"), "eleven fields"),
        (lambda f: f.pop(), "eleven fields"),
        (lambda f: f.__setitem__(2, "x" * 5000), "do not decode"),
        (lambda f: f.__setitem__(10, {"a": 1}), "do not decode"),
        (lambda f: f.__setitem__(10, msgpack.ExtType(1, b"x")), "do not decode"),
    ],
)
def test_F6_what_is_no_frame_is_named(change: Callable[[list[object]], object], word: str) -> None:
    """Version, kind, types, sizes, maps and extension types are each refused with what was found."""
    with pytest.raises(WireError, match=word):
        decode_frame(_fields(change))


def test_F6_a_frame_above_the_limit_is_refused_on_both_sides() -> None:
    """Neither written nor read."""
    frame, limits = DataFrame(HEADER, (Inline("rows", 1, b"x" * 2000),)), WireLimits(frame_bytes_max=1000)
    data = encode_frame(frame)
    with pytest.raises(WireError, match="exceeds the limit of 1000"):
        encode_frame(frame, limits)
    with pytest.raises(WireError, match="at most 1000"):
        decode_frame(data, limits)


@pytest.mark.parametrize(
    ("frame", "limits", "written"),
    [
        (DataFrame(HEADER, (Inline("rows", 1, b"x"),) * 20), WireLimits(bodies_max=19), "20 bodies .* limit of 19"),
        (
            DataFrame(HEADER, (Segment("rows", "n" * 600, 1, 2, "d", 0, 0),)),
            WireLimits(text_bytes_max=599),
            "limit of 599",
        ),
    ],
)
def test_F6_what_no_receiver_would_take_is_not_sent(frame: DataFrame, limits: WireLimits, written: str) -> None:
    """Neither too many bodies nor names that are too long; at the limits themselves both are sent and read."""
    with pytest.raises(WireError, match=written):
        encode_frame(frame, limits)
    with pytest.raises(WireError, match="do not decode"):
        decode_frame(encode_frame(frame), limits)
    allowed = WireLimits(bodies_max=20, text_bytes_max=600)
    assert decode_frame(encode_frame(frame, allowed), allowed) == frame


def test_F6_a_batch_above_the_limit_is_refused_and_can_be_divided() -> None:
    """Its memory counts, not its bytes on the wire."""
    batch = pa.RecordBatch.from_pydict({"n": list(range(10_000))})
    limits = WireLimits(batch_bytes_max=30_000)
    with pytest.raises(WireError, match=r"at most 30000 bytes \(wire.batch_bytes_max\), found 80000"):
        decode_batch(encode_batch(batch), limits)
    parts = list(divide_batch(batch, limits.batch_bytes_max))
    assert [part.nbytes for part in parts] == [20_000] * 4
    assert [n for part in parts for n in part.column("n").to_pylist()] == list(range(10_000))
    assert len(list(divide_batch(batch.slice(0, 1), 1))) == 1, "a row cannot be divided"


def test_F6_a_large_batch_is_split_in_order() -> None:
    """Slices stay within the limit and are together the batch."""
    batch = pa.RecordBatch.from_pydict({"n": list(range(10_000))})
    parts = list(split_batch(batch, 20_000))
    assert len(parts) > 1
    assert all(len(data) <= 20_000 for _, data in parts)
    assert [n for _, data in parts for n in decode_batch(data).column("n").to_pylist()] == list(range(10_000))


@given(st.binary(max_size=100))
def test_F6_any_bytes_are_a_batch_or_a_wire_error(data: bytes) -> None:
    """What is no Arrow IPC stream is a WireError; so is a stream that was cut."""
    whole = encode_batch(pa.RecordBatch.from_pydict({"n": [1, 2, 3]}))
    for damaged in (data, whole[: len(data)]):
        with pytest.raises(WireError, match="Arrow IPC"):
            decode_batch(damaged)


def test_messages_are_decoded_by_type() -> None:
    """A command is not a report, and a mirror row is neither; the error says what was expected."""
    command = StartCheckpoint(JobId("j"), Generation(1), Epoch(2), Epoch(1))
    row = MirrorRow(JobId("j"), Epoch(2), Epoch(1), Generation(1), (ReleaseHandle(VertexId("emit-1"), 0, b"", "0"),))
    assert decode_command(encode_message(command)) == command
    assert decode_mirror_row(encode_message(row)) == row
    with pytest.raises(WireError, match="a report or request"):
        decode_report(encode_message(command))
    with pytest.raises(WireError, match="a command"):
        decode_command(b"\xc1")
    size = len(encode_message(command))
    assert decode_command(encode_message(command, WireLimits(message_bytes_max=size))) == command
    few = WireLimits(message_bytes_max=size - 1)
    with pytest.raises(WireError, match=f"at most {size - 1} bytes"):
        decode_command(encode_message(command), few)
    with pytest.raises(WireError, match=rf"StartCheckpoint of {size} bytes exceeds .*message_bytes_max"):
        encode_message(command, few)


def test_F6_a_batch_is_split_by_what_it_takes_encoded() -> None:
    """Many columns with long names take far more in a frame than in memory."""
    names = [f"a_column_with_a_long_name_{number}" * 4 for number in range(60)]
    batch = pa.RecordBatch.from_arrays([pa.array([1] * 4096, pa.int8())] * 60, names=names)
    assert batch.nbytes < 250_000 < len(encode_batch(batch))
    parts = list(split_batch(batch, 250_000))
    assert all(len(data) <= 250_000 for _, data in parts)
    assert pa.concat_batches([part for part, _ in parts]).equals(batch)
