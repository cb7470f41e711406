"""Examples of all formats, made from their types; and the recorded ones, in `tests/golden/formats`.

An example has a value in every field, for each type that a format can hold. `python -m tests.harness.formats` records those that are not
there: it adds lines and changes none, for what is recorded once is read for ever.
"""

import base64
import json
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NewType, Union, get_args, get_origin, get_type_hints

import msgspec

from tidemark.services.audit.checkpoint import CHECKPOINTS, AuditCheckpoint
from tidemark.services.audit.redrive import Redriven
from tidemark.services.backup.files import Backup
from tidemark.services.backup.parts import COPIES, Copied
from tidemark.services.operator.deaths import _Said
from tidemark.services.sink.connectors.kafkamarkers import Marker
from tidemark.services.sink.connectors.manifests import Manifest, Volume, encode_manifest
from tidemark.services.sink.connectors.mergechanges import ROWS, StagedChange
from tidemark.services.sink.connectors.staging import FILES, Part, StagedFile, decode_handle, encode_handle
from tidemark.services.source.body import SplitPosition
from tidemark.shared.computation.bundle import Module
from tidemark.shared.model import formats
from tidemark.shared.model.checkpoint import CommitRow, MirrorRow, SplitStand
from tidemark.shared.model.formats import Codec, JsonCodec, VersionedFormat
from tidemark.shared.model.frames import BarrierFrame, DataFrame, EndFrame, Header, Inline, Segment, WatermarkFrame
from tidemark.shared.model.ids import Epoch, Generation, Incarnation, JobId, Seq, TaskId, VertexId
from tidemark.shared.model.messages import (
    Answered,
    Command,
    ProcessorStatus,
    ReadPositions,
    Report,
    Request,
    RunningPlan,
    Sampled,
)
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.model.verdicts import AuditWork
from tidemark.shared.operators.computation_keys import _KeySnapshot
from tidemark.shared.operators.computation_parts import StoredRows
from tidemark.shared.operators.join_runs import RowsSnapshot
from tidemark.shared.operators.remembered import StoredPart
from tidemark.shared.operators.source_front import SplitState
from tidemark.shared.operators.step_operator import StoredStep
from tidemark.shared.protocol.coordinator.record import Decisions, decode_kept, decode_plan, encode_kept, encode_plan
from tidemark.shared.runtime.state import PartList
from tidemark.shared.wire.frames import decode_frame, encode_frame
from tidemark.shared.wire.messages import (
    decode_answer,
    decode_command,
    decode_mirror_row,
    decode_positions,
    decode_report,
    decode_sample,
    decode_stands,
    decode_status,
    encode_message,
    encode_stands,
)
from tidemark.shared.wire.seals import SEALS, Seal
from tidemark.spark_stages.manifest import StageManifest

FOLDER: Final = Path("tests/golden/formats")
_INT_MAX: Final = 1000


@dataclass(frozen=True)
class Form:
    """How a format is written and read, and the types of its values."""

    kinds: tuple[Any, ...]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


@dataclass(frozen=True)
class Example:
    """A value under a name, as bytes."""

    case: str
    data: bytes
    value: Any
    """As JSON has it."""


def _coded(fmt: VersionedFormat, kind: Any) -> Form:
    codec: Codec[Any] = Codec(fmt, kind)
    return Form((kind,), codec.encode, codec.decode)


_computed: Final[Codec[list[_KeySnapshot | bytes]]] = Codec(formats.COMPUTATION_STATE, list[_KeySnapshot | bytes])
_markers: Final = JsonCodec(formats.MARKER, Marker)
_manifests: Final = JsonCodec(formats.MANIFEST, Manifest)
_volumes: Final = JsonCodec(formats.VOLUME, Volume)
_redriven: Final = JsonCodec(formats.REDRIVEN, Redriven)
_works: Final = JsonCodec(formats.WORK, AuditWork)
_backups: Final = JsonCodec(formats.BACKUP, Backup)

FORMS: Final[dict[VersionedFormat, Form]] = {
    formats.FRAME: Form((), encode_frame, decode_frame),
    formats.COMMAND: Form(get_args(Command), encode_message, decode_command),
    formats.REPORT: Form((*get_args(Report), *get_args(Request)), encode_message, decode_report),
    formats.STATUS: Form((ProcessorStatus,), encode_message, decode_status),
    formats.ANSWER: Form((Answered,), encode_message, decode_answer),
    formats.POSITIONS: Form((ReadPositions,), encode_message, decode_positions),
    formats.SAMPLE: Form((Sampled,), encode_message, decode_sample),
    formats.MIRROR_ROW: Form((MirrorRow,), encode_message, decode_mirror_row),
    formats.SEAL: Form((Seal,), SEALS.encode, SEALS.decode),
    formats.PROCESSOR_ROW: _coded(formats.PROCESSOR_ROW, ProcessorRow),
    formats.DECISIONS: Form((Decisions,), encode_kept, decode_kept),
    formats.PLAN: Form((RunningPlan,), encode_plan, decode_plan),
    formats.MODULES: _coded(formats.MODULES, list[Module]),
    formats.COMMIT_ROW: _coded(formats.COMMIT_ROW, CommitRow),
    formats.PART_LIST: _coded(formats.PART_LIST, PartList),
    formats.SPLIT_STANDS: Form((tuple[SplitStand, ...],), encode_stands, decode_stands),
    formats.SPLIT_POSITION: _coded(formats.SPLIT_POSITION, SplitPosition),
    formats.SPLIT_STATE: _coded(formats.SPLIT_STATE, SplitState),
    formats.RECORD_IDS: _coded(formats.RECORD_IDS, StoredPart),
    formats.COMPUTATION_STATE: Form((list[_KeySnapshot], list[bytes]), _computed.encode, _computed.decode),
    formats.WAITING_ROWS: _coded(formats.WAITING_ROWS, StoredRows),
    formats.JOIN_STATE: _coded(formats.JOIN_STATE, RowsSnapshot),
    formats.STEP_STATE: _coded(formats.STEP_STATE, StoredStep),
    formats.SPARK_STATE: _coded(formats.SPARK_STATE, StageManifest),
    formats.CALLS_NOTE: _coded(formats.CALLS_NOTE, _Said),
    formats.STAGED_HANDLE: Form(
        tuple(types.GenericAlias(tuple, (part, ...)) for part in get_args(Part)), encode_handle, decode_handle
    ),
    formats.STAGED_RECORDS: _coded(formats.STAGED_RECORDS, list[tuple[str, bytes]]),
    formats.STAGED_ROWS: Form((list[bytes], list[StagedChange]), ROWS.encode, ROWS.decode),
    formats.FILE_LIST: Form((tuple[StagedFile, ...],), FILES.encode, FILES.decode),
    formats.MANIFEST: Form((Manifest,), encode_manifest, _manifests.decode),
    formats.VOLUME: Form((Volume,), _volumes.encode, _volumes.decode),
    formats.MARKER: Form((Marker,), _markers.encode, _markers.decode),
    formats.REDRIVEN: Form((Redriven,), _redriven.encode, _redriven.decode),
    formats.WORK: Form((AuditWork,), _works.encode, _works.decode),
    formats.AUDIT_CHECKPOINT: Form((AuditCheckpoint,), CHECKPOINTS.encode, CHECKPOINTS.decode),
    formats.BACKUP: Form((Backup,), _backups.encode, _backups.decode),
    formats.TOPIC_COPY: Form((list[Copied],), COPIES.encode, COPIES.decode),
}


def _frames() -> Iterator[tuple[str, Any]]:
    head = Header(
        JobId("job"), Incarnation("edge"), Generation(3), TaskId(VertexId("source-1"), 1), Seq(7), Epoch(5), -12
    )
    segment = Segment("partials", "job/source-1/3/5/name", 10, 2000, "ab" * 32, 1000, 2000)
    yield "rows", DataFrame(head, (Inline("rows", 2, b"ipc"),))
    yield "partials by reference", DataFrame(head, (segment, Inline("partials", 1, b"")))
    yield "watermark", WatermarkFrame(head, idle=True)
    yield "barrier", BarrierFrame(head, Epoch(4))
    yield "end", EndFrame(head)


def made(fmt: VersionedFormat) -> Iterator[Example]:
    """Examples of the version that is written."""
    form = FORMS[fmt]
    values = _frames() if fmt is formats.FRAME else ((_named(kind), _value(kind, "", fmt)) for kind in form.kinds)
    for case, value in values:
        yield Example(case, form.encode(value), shown(value))


def shown(value: Any) -> Any:
    """A value as JSON has it."""
    return json.loads(msgspec.json.encode(value, enc_hook=str))


def recorded(fmt: VersionedFormat, version: int) -> list[Example]:
    """What is recorded of a version."""
    path = _path(fmt, version)
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [Example(line["case"], base64.b64decode(line["bytes"]), line["value"]) for line in found]


def record() -> None:
    """Add what is not recorded."""
    for fmt in formats.FORMATS:
        known = {example.data for example in recorded(fmt, fmt.version)}
        with _path(fmt, fmt.version).open("a") as out:
            for example in made(fmt):
                if example.data not in known:
                    text = base64.b64encode(example.data).decode()
                    line = {"case": example.case, "bytes": text, "value": example.value}
                    out.write(json.dumps(line) + "\n")


def _path(fmt: VersionedFormat, version: int) -> Path:
    name = next(name for name, value in vars(formats).items() if value is fmt)
    return FOLDER / f"{name.lower()}.v{version}.jsonl"


def _named(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


def _value(kind: Any, name: str, fmt: VersionedFormat) -> Any:
    """A value of a type with something in each field, told apart by the fields' names."""
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _value(next(arg for arg in args if arg is not type(None)), name, fmt)
    if origin is Literal:
        return args[0]
    if origin is list or (origin is tuple and args[-1] is Ellipsis):
        return origin([_value(args[0], name, fmt)])
    if origin is tuple:
        return tuple(_value(arg, f"{name}{number}", fmt) for number, arg in enumerate(args))
    if origin in (dict, Mapping):
        return {_value(args[0], f"{name} key", fmt): _value(args[1], name, fmt)}
    if hasattr(kind, "__struct_fields__") or hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        fields = getattr(kind, "__struct_fields__", None) or kind._fields
        return kind(**{f: fmt.version if f == "version" and name == "" else _value(hints[f], f, fmt) for f in fields})
    number = zlib.crc32(name.encode()) % _INT_MAX + 1
    plain = {str: name or "text", int: number, float: number / 4, bool: True, bytes: name.encode() or b"bytes"}
    return plain[kind]


if __name__ == "__main__":
    record()
