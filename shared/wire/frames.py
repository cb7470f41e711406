"""Frames as msgpack arrays: [version, kind, job, edge, generation, vertex, index, seq, epoch, watermark, …by kind].

DATA carries bodies ([0, content, rows, ipc] or [1, content, name, rows, bytes, digest, min, max]), WATERMARK the
idle flag, BARRIER the last committed checkpoint. Rules: F1, F6.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from tidemark.shared.model.formats import FRAME, FormatError, check_version
from tidemark.shared.model.frames import (
    BarrierFrame,
    Body,
    Content,
    DataFrame,
    EndFrame,
    Frame,
    Header,
    Inline,
    Segment,
    WatermarkFrame,
)
from tidemark.shared.model.ids import Epoch, Generation, Incarnation, JobId, Seq, TaskId, VertexId
from tidemark.shared.wire.limits import DEFAULT, WireError, WireLimits

_DATA, _WATERMARK, _BARRIER, _END = 0, 1, 2, 3
_FIELDS: Final = 11
"""Ten of the header, one by kind."""
_CONTENTS: Final[tuple[Content, ...]] = ("rows", "partials")


def encode_frame(frame: Frame, limits: WireLimits = DEFAULT) -> bytes:
    """The bytes of a frame. Raises WireError if no receiver would take them: the sender splits batches before."""
    h = frame.header
    _check_names((h.job, h.edge, h.sender.vertex), limits)
    head = [
        FRAME.version,
        0,
        h.job,
        h.edge,
        h.generation,
        h.sender.vertex,
        h.sender.index,
        h.seq,
        h.epoch,
        h.watermark_ms,
    ]
    match frame:
        case DataFrame(_, bodies):
            head[1] = _DATA
            if len(bodies) > limits.bodies_max:
                message = f"a frame of {len(bodies)} bodies exceeds the limit of {limits.bodies_max} (wire.bodies_max)"
                raise WireError(message)
            _check_names([b.name for b in bodies if isinstance(b, Segment)], limits)
            head.append([_body(b) for b in bodies])
        case WatermarkFrame(_, idle):
            head[1] = _WATERMARK
            head.append(idle)
        case BarrierFrame(_, committed):
            head[1] = _BARRIER
            head.append(committed)
        case EndFrame(_):
            head[1] = _END
            head.append(None)
    data: bytes = msgpack.packb(head)
    if len(data) > limits.frame_bytes_max:
        message = (
            f"a frame of {len(data)} bytes exceeds the limit of {limits.frame_bytes_max} bytes (wire.frame_bytes_max)"
        )
        raise WireError(message)
    return data


def _check_names(names: Sequence[str], limits: WireLimits) -> None:
    for name in names:
        if len(name.encode()) > limits.text_bytes_max:
            message = f"the name {name[:80]!r} in a frame exceeds the limit of {limits.text_bytes_max} bytes (wire.text_bytes_max)"
            raise WireError(message)


def _body(body: Body) -> list[Any]:
    match body:
        case Inline(content, rows, ipc):
            return [0, content, rows, ipc]
        case Segment(content, name, rows, size, digest, low, high):
            return [1, content, name, rows, size, digest, low, high]


def decode_frame(data: bytes, limits: WireLimits = DEFAULT) -> Frame:
    """The frame in these bytes; WireError for anything that `encode_frame` does not write."""
    if len(data) > limits.frame_bytes_max:
        message = (
            f"expected a frame of at most {limits.frame_bytes_max} bytes (wire.frame_bytes_max), found {len(data)}"
        )
        raise WireError(message)
    try:
        check_version(FRAME, data)
    except FormatError as error:
        raise WireError(str(error)) from error
    try:
        fields = msgpack.unpackb(
            data,
            strict_map_key=True,
            max_str_len=limits.text_bytes_max,
            max_bin_len=limits.frame_bytes_max,
            max_array_len=max(limits.bodies_max, _FIELDS),
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        message = f"expected a frame, found {len(data)} bytes that do not decode: {error!r}"
        raise WireError(message) from error
    if len(fields) != _FIELDS or not _well_typed(fields):
        message = f"expected the eleven fields of a frame, found {[type(f).__name__ for f in fields]}"
        raise WireError(message)
    return _frame(fields)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _well_typed(fields: list[Any]) -> bool:
    return all(isinstance(fields[i], str) for i in (2, 3, 5)) and all(_is_int(fields[i]) for i in (1, 4, 6, 7, 8, 9))


def _frame(fields: list[Any]) -> Frame:
    _, kind, job, edge, generation, vertex, index, seq, epoch, watermark, rest = fields
    sender = TaskId(VertexId(vertex), index)
    header = Header(JobId(job), Incarnation(edge), Generation(generation), sender, Seq(seq), Epoch(epoch), watermark)
    if kind == _DATA and isinstance(rest, list):
        return DataFrame(header, tuple(_decode_body(b) for b in rest))
    if kind == _WATERMARK and isinstance(rest, bool):
        return WatermarkFrame(header, rest)
    if kind == _BARRIER and _is_int(rest):
        return BarrierFrame(header, Epoch(rest))
    if kind == _END and rest is None:
        return EndFrame(header)
    message = f"expected a frame that is DATA, WATERMARK, BARRIER or END with its own field, found kind {kind} with {type(rest).__name__}"
    raise WireError(message)


def _decode_body(fields: object) -> Body:
    match fields:
        case [0, str(content), int(rows), bytes(ipc)] if content in _CONTENTS:
            return Inline(_content(content), rows, ipc)
        case [1, str(content), str(name), int(rows), int(size), str(digest), int(low), int(high)] if (
            content in _CONTENTS
        ):
            return Segment(_content(content), name, rows, size, digest, low, high)
    message = f"expected an inline batch or a segment in a frame, found {str(fields)[:80]}"
    raise WireError(message)


def _content(name: str) -> Content:
    return "rows" if name == "rows" else "partials"
