"""Messages of the control plane, commit rows and mirror rows: msgspec's MessagePack, decoded strictly by type."""

from typing import Any, Final, TypeVar

import msgspec

from tidemark.shared.model.checkpoint import CommitRow, MirrorRow, SplitStand
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
from tidemark.shared.wire.errors import WireError
from tidemark.shared.wire.limits import DEFAULT, WireLimits

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


def encode_message(message: Any, limits: WireLimits = DEFAULT) -> bytes:
    """The bytes of a message or row. WireError if nobody would read them."""
    data = _encoder.encode(message)
    if len(data) > limits.message_bytes_max:
        most = f"{limits.message_bytes_max} bytes (wire.message_bytes_max)"
        text = f"a {type(message).__name__} of {len(data)} bytes exceeds the limit of {most}"
        raise WireError(text)
    return data


def _decode(decoder: "msgspec.msgpack.Decoder[T]", data: bytes, what: str, limits: WireLimits) -> T:
    if len(data) > limits.message_bytes_max:
        text = (
            f"expected {what} of at most {limits.message_bytes_max} bytes (wire.message_bytes_max), found {len(data)}"
        )
        raise WireError(text)
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        text = f"expected {what}, found {len(data)} bytes that do not decode: {error}"
        raise WireError(text) from error


def decode_command(data: bytes, limits: WireLimits = DEFAULT) -> Command:
    """A coordinator's command."""
    return _decode(_commands, data, "a command", limits)


def decode_report(data: bytes, limits: WireLimits = DEFAULT) -> Report | Request:
    """A worker's report or a user's request."""
    return _decode(_reports, data, "a report or request", limits)


def decode_status(data: bytes, limits: WireLimits = DEFAULT) -> ProcessorStatus:
    """A processor's status from the registry topic."""
    return _decode(_statuses, data, "a processor's status", limits)


def decode_answer(data: bytes, limits: WireLimits = DEFAULT) -> Answered:
    """The answer to a request."""
    return _decode(_answers, data, "an answer", limits)


def decode_positions(data: bytes, limits: WireLimits = DEFAULT) -> ReadPositions:
    """A worker's read positions from the flow topic."""
    return _decode(_positions, data, "read positions", limits)


def decode_sample(data: bytes, limits: WireLimits = DEFAULT) -> Sampled:
    """A sink task's part of a sample."""
    return _decode(_samples, data, "a sample", limits)


def decode_mirror_row(data: bytes, limits: WireLimits = DEFAULT) -> MirrorRow:
    """A row of the commit mirror."""
    return _decode(_mirror, data, "a mirror row", limits)


def encode_stands(stands: tuple[SplitStand, ...]) -> bytes:
    """Where splits stood, as `TaskHandle.positions` has it."""
    return _encoder.encode(stands)


def decode_stands(data: bytes, limits: WireLimits = DEFAULT) -> tuple[SplitStand, ...]:
    """Where a source task's splits stood at a barrier."""
    return _decode(_stands, data, "positions of splits", limits)


def decode_commit_row(data: bytes, limits: WireLimits = DEFAULT) -> CommitRow:
    """A commit row from SQL."""
    return _decode(_commits, data, "a commit row", limits)


def decode_plan(data: bytes, limits: WireLimits = DEFAULT) -> RunningPlan:
    """A running plan from SQL."""
    return _decode(_plans, data, "a running plan", limits)
