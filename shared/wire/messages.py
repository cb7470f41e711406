"""Messages of the control plane, commit rows and mirror rows: msgspec's MessagePack, decoded strictly by type."""

from typing import Any, Final, TypeVar

import msgspec

from shared.model.checkpoint import CommitRow, MirrorRow, SplitStand
from shared.model.messages import (
    Answered,
    Command,
    ProcessorStatus,
    ReadPositions,
    Report,
    Request,
    RunningPlan,
    Sampled,
)
from shared.wire.errors import WireError

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
_encoder: Final = msgspec.msgpack.Encoder()
_commands: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)
_reports: Final[msgspec.msgpack.Decoder[Report | Request]] = msgspec.msgpack.Decoder(Report | Request)
_statuses: Final = msgspec.msgpack.Decoder(ProcessorStatus)
_mirror: Final = msgspec.msgpack.Decoder(MirrorRow)
_commits: Final = msgspec.msgpack.Decoder(CommitRow)
_answers: Final = msgspec.msgpack.Decoder(Answered)
_positions: Final = msgspec.msgpack.Decoder(ReadPositions)
_samples: Final = msgspec.msgpack.Decoder(Sampled)
_stands: Final = msgspec.msgpack.Decoder(tuple[SplitStand, ...])
_plans: Final = msgspec.msgpack.Decoder(RunningPlan)

T = TypeVar("T")


def encode_message(message: Any) -> bytes:
    """The bytes of a message or row. WireError if they exceed MESSAGE_BYTES_MAX."""
    data = _encoder.encode(message)
    if len(data) > MESSAGE_BYTES_MAX:
        text = f"a {type(message).__name__} of {len(data)} bytes exceeds the limit of {MESSAGE_BYTES_MAX} bytes"
        raise WireError(text)
    return data


def _decode(decoder: "msgspec.msgpack.Decoder[T]", data: bytes, what: str) -> T:
    if len(data) > MESSAGE_BYTES_MAX:
        text = f"expected {what} of at most {MESSAGE_BYTES_MAX} bytes, found {len(data)}"
        raise WireError(text)
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        text = f"expected {what}, found {len(data)} bytes that do not decode: {error}"
        raise WireError(text) from error


def decode_command(data: bytes) -> Command:
    """A coordinator's command."""
    return _decode(_commands, data, "a command")


def decode_report(data: bytes) -> Report | Request:
    """A worker's report or a user's request."""
    return _decode(_reports, data, "a report or request")


def decode_status(data: bytes) -> ProcessorStatus:
    """A processor's status from the registry topic."""
    return _decode(_statuses, data, "a processor's status")


def decode_answer(data: bytes) -> Answered:
    """The answer to a request."""
    return _decode(_answers, data, "an answer")


def decode_positions(data: bytes) -> ReadPositions:
    """A worker's read positions from the flow topic."""
    return _decode(_positions, data, "read positions")


def decode_sample(data: bytes) -> Sampled:
    """A sink task's part of a sample."""
    return _decode(_samples, data, "a sample")


def decode_mirror_row(data: bytes) -> MirrorRow:
    """A row of the commit mirror."""
    return _decode(_mirror, data, "a mirror row")


def encode_stands(stands: tuple[SplitStand, ...]) -> bytes:
    """Where splits stood, as `TaskHandle.positions` has it."""
    return _encoder.encode(stands)


def decode_stands(data: bytes) -> tuple[SplitStand, ...]:
    """Where a source task's splits stood at a barrier."""
    return _decode(_stands, data, "positions of splits")


def decode_commit_row(data: bytes) -> CommitRow:
    """A commit row from SQL."""
    return _decode(_commits, data, "a commit row")


def decode_plan(data: bytes) -> RunningPlan:
    """A running plan from SQL."""
    return _decode(_plans, data, "a running plan")
