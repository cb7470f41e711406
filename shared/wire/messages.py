"""Messages of the control plane, mirror rows and positions: MessagePack with a version, decoded strictly by type."""

from typing import Any, Final, TypeVar, get_args

from tidemark.shared.model.checkpoint import MirrorRow, SplitStand
from tidemark.shared.model.formats import (
    ANSWER,
    COMMAND,
    MIRROR_ROW,
    POSITIONS,
    REPORT,
    SAMPLE,
    SPLIT_STANDS,
    STATUS,
    Codec,
    FormatError,
)
from tidemark.shared.model.messages import Answered, Command, ProcessorStatus, ReadPositions, Report, Request, Sampled
from tidemark.shared.wire.limits import DEFAULT, WireError, WireLimits

_commands: Final[Codec[Command]] = Codec(COMMAND, Command)
_reports: Final[Codec[Report | Request]] = Codec(REPORT, Report | Request)
_statuses: Final[Codec[ProcessorStatus]] = Codec(STATUS, ProcessorStatus)
_mirror: Final[Codec[MirrorRow]] = Codec(MIRROR_ROW, MirrorRow)
_answers: Final[Codec[Answered]] = Codec(ANSWER, Answered)
_positions: Final[Codec[ReadPositions]] = Codec(POSITIONS, ReadPositions)
_samples: Final[Codec[Sampled]] = Codec(SAMPLE, Sampled)
_stands: Final[Codec[tuple[SplitStand, ...]]] = Codec(SPLIT_STANDS, tuple[SplitStand, ...])
_codecs: Final[dict[type, Codec[Any]]] = {
    **dict.fromkeys(get_args(Command), _commands),
    **dict.fromkeys(get_args(Report | Request), _reports),
    ProcessorStatus: _statuses,
    MirrorRow: _mirror,
    Answered: _answers,
    ReadPositions: _positions,
    Sampled: _samples,
}

T = TypeVar("T")


def encode_message(message: object, limits: WireLimits = DEFAULT) -> bytes:
    """The bytes of a message or mirror row. WireError if nobody would read them."""
    data = _codecs[type(message)].encode(message)
    if len(data) > limits.message_bytes_max:
        most = f"{limits.message_bytes_max} bytes (wire.message_bytes_max)"
        text = f"a {type(message).__name__} of {len(data)} bytes exceeds the limit of {most}"
        raise WireError(text)
    return data


def _decode(codec: Codec[T], data: bytes, limits: WireLimits) -> T:
    if len(data) > limits.message_bytes_max:
        most = f"{limits.message_bytes_max} bytes (wire.message_bytes_max)"
        text = f"expected {codec.format.name} of at most {most}, found {len(data)}"
        raise WireError(text)
    try:
        return codec.decode(data)
    except FormatError as error:
        raise WireError(str(error)) from error


def decode_command(data: bytes, limits: WireLimits = DEFAULT) -> Command:
    """A coordinator's command."""
    return _decode(_commands, data, limits)


def decode_report(data: bytes, limits: WireLimits = DEFAULT) -> Report | Request:
    """A worker's report or a user's request."""
    return _decode(_reports, data, limits)


def decode_status(data: bytes, limits: WireLimits = DEFAULT) -> ProcessorStatus:
    """A processor's status from the registry topic."""
    return _decode(_statuses, data, limits)


def decode_answer(data: bytes, limits: WireLimits = DEFAULT) -> Answered:
    """The answer to a request."""
    return _decode(_answers, data, limits)


def decode_positions(data: bytes, limits: WireLimits = DEFAULT) -> ReadPositions:
    """A worker's read positions from the flow topic."""
    return _decode(_positions, data, limits)


def decode_sample(data: bytes, limits: WireLimits = DEFAULT) -> Sampled:
    """A sink task's part of a sample."""
    return _decode(_samples, data, limits)


def decode_mirror_row(data: bytes, limits: WireLimits = DEFAULT) -> MirrorRow:
    """A row of the commit mirror."""
    return _decode(_mirror, data, limits)


def encode_stands(stands: tuple[SplitStand, ...]) -> bytes:
    """Where splits stood, as `TaskHandle.positions` has it."""
    return _stands.encode(stands)


def decode_stands(data: bytes) -> tuple[SplitStand, ...]:
    """Where a source task's splits stood at a barrier."""
    return _decode(_stands, data, DEFAULT)
