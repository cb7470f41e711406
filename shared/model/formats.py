"""Formats: all that one process writes for another, or for a later version of Tidemark, to read. One table, a version each.

Where the version stands:
- MessagePack: [version, body]; a frame, for it is small and there are many: [version, field, field, …];
- JSON, which people read too: the field `version`.

Rules, held by `tests/golden/test_formats.py`:
- the bytes of a version never change, and each version that a reader knows has recorded examples in `tests/golden/formats`;
- a field that a reader does not know is ignored (in a frame there is none: its number of fields is fixed). So a field may be added to a
  version only where a reader that ignores it, or writes the value back without it, does nothing wrong; else the version goes up;
- a reader that meets an unknown version names format, version found and versions read (`FormatError`), and stops its work.

Bytes between a process and its own child, or in a cache that is made anew, are no format.
"""

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from tidemark.shared.model.failures import Lasting

T = TypeVar("T")


class FormatError(ValueError, Lasting):
    """Bytes that are not of the format, or of a version that is not read; names the format."""


@dataclass(frozen=True, slots=True)
class VersionedFormat:
    """A format's name, as a text that follows "expected"; the version that is written, and all that are read."""

    name: str
    version: int = 1
    reads: tuple[int, ...] = (1,)

    def check(self, found: object, size_bytes: int) -> None:
        """FormatError if this is no version that is read."""
        if found in self.reads and type(found) is int:
            return
        versions = " or ".join(map(str, self.reads))
        if isinstance(found, int) and found > self.version:
            raise FormatError(
                f"expected {self.name} of version {versions}, found {found}: a later version of Tidemark wrote it; read it with"
                " that one"
            )
        what = f"{found}" if isinstance(found, int) else "no version"
        raise FormatError(f"expected {self.name} of version {versions}, found {what} in {size_bytes} bytes")


def unknown_part(of: str, part: str, known: str) -> FormatError:
    """For a part of a snapshot with a name that this version gives to none: it is state, so it cannot be passed over."""
    return FormatError(
        f"expected {known}, the parts of {of}, found {part}: a later version of Tidemark wrote it; read it with that one"
    )


# Between tasks.
FRAME: Final = VersionedFormat("a frame")
# Between coordinator, workers and users.
COMMAND: Final = VersionedFormat("a command", 2, (1, 2))
REPORT: Final = VersionedFormat("a report or request", 2, (1, 2))
STATUS: Final = VersionedFormat("a processor's status")
ANSWER: Final = VersionedFormat("an answer")
POSITIONS: Final = VersionedFormat("read positions")
SAMPLE: Final = VersionedFormat("a sample")
MIRROR_ROW: Final = VersionedFormat("a mirror row")
SEAL: Final = VersionedFormat("a seal")
# In the store.
PROCESSOR_ROW: Final = VersionedFormat("a processor's row")
DECISIONS: Final = VersionedFormat("a processor's decisions")
PLAN: Final = VersionedFormat("a running plan")
MODULES: Final = VersionedFormat("the code of a plan")
COMMIT_ROW: Final = VersionedFormat("a commit row", 2, (1, 2))
# In a snapshot.
PART_LIST: Final = VersionedFormat("a list of state parts")
SPLIT_STANDS: Final = VersionedFormat("positions of splits")
SPLIT_POSITION: Final = VersionedFormat("the position in a split")
SPLIT_STATE: Final = VersionedFormat("the state of a split")
RECORD_IDS: Final = VersionedFormat("record ids of a split")
COMPUTATION_STATE: Final = VersionedFormat("the state of a computation", 4, (1, 2, 3, 4))
WAITING_ROWS: Final = VersionedFormat("rows that wait in a computation")
JOIN_STATE: Final = VersionedFormat("the state of a $join", 2, (1, 2))
STEP_STATE: Final = VersionedFormat("the state of a window's step")
SPARK_STATE: Final = VersionedFormat("the manifest of a Spark stage", 2, (1, 2))
CALLS_NOTE: Final = VersionedFormat("a note of callbacks")
# Of sinks.
STAGED_HANDLE: Final = VersionedFormat("a staged handle")
STAGED_RECORDS: Final = VersionedFormat("staged records")
STAGED_ROWS: Final = VersionedFormat("staged rows", 2, (1, 2))
FILE_LIST: Final = VersionedFormat("a list of staged files")
MANIFEST: Final = VersionedFormat("a manifest of files")
VOLUME: Final = VersionedFormat("a volume of manifests")
MARKER: Final = VersionedFormat("a release marker")

# Of tools.
REDRIVEN: Final = VersionedFormat("how far dead letters are redriven")
WORK: Final = VersionedFormat("the state of an audit or a redrive")
AUDIT_CHECKPOINT: Final = VersionedFormat("the checkpoint of an audit")
BACKUP: Final = VersionedFormat("the list of a backup")
TOPIC_COPY: Final = VersionedFormat("copied records of a topic")

FORMATS: Final = (
    FRAME, COMMAND, REPORT, STATUS, ANSWER, POSITIONS, SAMPLE, MIRROR_ROW, SEAL,
    PROCESSOR_ROW, DECISIONS, PLAN, MODULES, COMMIT_ROW,
    PART_LIST, SPLIT_STANDS, SPLIT_POSITION, SPLIT_STATE, RECORD_IDS, COMPUTATION_STATE, WAITING_ROWS, JOIN_STATE, STEP_STATE, SPARK_STATE,
    CALLS_NOTE, STAGED_HANDLE, STAGED_RECORDS, STAGED_ROWS, FILE_LIST, MANIFEST, VOLUME, MARKER,
    REDRIVEN, WORK, AUDIT_CHECKPOINT, BACKUP, TOPIC_COPY,
)  # fmt: skip
"""All of them."""

_ARRAY, _ARRAY_MASK, _INT_MAX = 0x90, 0xF0, 0x7F
"""MessagePack's short array and short integer: versions end at 127."""
_encode: Final = msgspec.msgpack.Encoder().encode


def check_version(fmt: VersionedFormat, data: bytes) -> None:
    """Look at the version in front of MessagePack; FormatError if it is not read, or none is there."""
    array = len(data) > 1 and data[0] & _ARRAY_MASK == _ARRAY and data[0] != _ARRAY and data[1] <= _INT_MAX
    fmt.check(data[1] if array else None, len(data))


class Codec(Generic[T]):
    """Values of one type to MessagePack and back, with their format's version in front."""

    def __init__(self, fmt: VersionedFormat, kind: Any) -> None:
        self.format = fmt
        self._decode = msgspec.msgpack.Decoder(tuple[int, kind]).decode

    def encode(self, value: T) -> bytes:
        """The bytes, of the version that is written."""
        return _encode((self.format.version, value))

    def decode(self, data: bytes) -> T:
        """The value; FormatError for anything else, of a version that is not read or damaged."""
        check_version(self.format, data)
        try:
            value: T = self._decode(data)[1]
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise FormatError(
                f"expected {self.format.name}, found {len(data)} bytes that do not decode: {error}"
            ) from error
        return value


class _Versioned(msgspec.Struct):
    version: int | None = None


class JsonCodec(Generic[T]):
    """Values of one type to JSON objects and back; a field `version` of theirs is the format's."""

    def __init__(self, fmt: VersionedFormat, kind: type[T]) -> None:
        self.format = fmt
        self._version = msgspec.json.Decoder(_Versioned).decode
        self._decode = msgspec.json.Decoder(kind).decode

    def encode(self, value: T) -> bytes:
        """A value's bytes."""
        return msgspec.json.encode(value)

    def decode(self, data: bytes | str) -> T:
        """The value; FormatError for anything else, of a version that is not read or damaged."""
        try:
            self.format.check(self._version(data).version, len(data))
            return self._decode(data)
        except FormatError:
            raise
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise FormatError(
                f"expected {self.format.name}, found {len(data)} bytes that do not decode: {error}"
            ) from error
