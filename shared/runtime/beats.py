"""The part of a worker's heartbeat on one task: read off its machine, its body and its meter."""

from dataclasses import replace

import msgspec

from tidemark.shared.model.held import TaskHeld, Wait
from tidemark.shared.model.ids import Epoch, VertexId
from tidemark.shared.model.messages import Assign, Heartbeat, TaskBeat
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.ports.clock import Clock
from tidemark.shared.protocol.task.machine import TaskMachine
from tidemark.shared.protocol.watermarks import combined_watermark
from tidemark.shared.runtime.driver import TaskDriver
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.wire.limits import WireError
from tidemark.shared.wire.messages import encode_message

WATERMARK = "watermark"
"""The detail that has `TaskHeld`."""
LAST_REASON = "deadLetter"
"""The detail that says why the last dead letter is one; it is not there before any."""
Markers = tuple[tuple[VertexId, int, Epoch], ...]


def beat_of(
    assign: Assign, driver: TaskDriver | None, phase: str, released: Markers, clock: Clock, waiting: tuple[Wait, ...]
) -> TaskBeat:
    """Of a task that this worker has taken; `driver` is None while it is built."""
    beat = TaskBeat(
        name=assign.name,
        job=assign.job,
        generation=assign.generation,
        vertex=assign.vertex,
        index=assign.index,
        phase=phase,
        epoch=assign.last,
        input_watermark_ms=MIN_TIME,
        output_watermark_ms=MIN_TIME,
        released=released,
        waiting=waiting,
    )
    if driver is None:
        return beat
    machine = driver.machine
    counted = driver.meter.counters(clock.monotonic_ms(), clock.now_ms())
    details = {**driver.body.details(), WATERMARK: msgspec.json.encode(_held(driver, clock)).decode()}
    if reason := driver.meter.last_reason():
        details[LAST_REASON] = reason
    return msgspec.structs.replace(
        beat,
        phase="ended" if machine.ended else phase,
        epoch=machine.last_snapshot,
        input_watermark_ms=machine.input_watermark_ms,
        output_watermark_ms=machine.sender.watermark_ms,
        counters={
            **driver.body.counters(),
            **machine.drops,
            **counted,
            **(driver.source.counters() if driver.source else {}),
        },
        details=details,
    )


def encoded(beat: Heartbeat, settings: RuntimeSettings) -> bytes:
    """A heartbeat's bytes, without the details of its tasks where it would be larger than a heartbeat may be."""
    few = replace(settings.wire, message_bytes_max=min(settings.heartbeat_bytes_max, settings.wire.message_bytes_max))
    try:
        return encode_message(beat, few)
    except WireError:
        tasks = tuple(msgspec.structs.replace(task, details={}, waiting=_bare(task.waiting)) for task in beat.tasks)
        return encode_message(msgspec.structs.replace(beat, tasks=tasks), settings.wire)


def _bare(waiting: tuple[Wait, ...]) -> tuple[Wait, ...]:
    """Waits without their reasons: the coordinator must learn that a task waits, and for which system (C10)."""
    return tuple(msgspec.structs.replace(wait, reason="") for wait in waiting)


def _held(driver: TaskDriver, clock: Clock) -> TaskHeld:
    machine = driver.machine
    return TaskHeld(
        since_ms=driver.meter.stands(machine.sender.watermark_ms, clock.now_ms()),
        holds=tuple(driver.body.holds()),
        sender=_slowest(machine),
        held_back="receivers"
        if machine.sender.held_back_by_receivers()
        else "commits"
        if machine.is_source and machine.sender.held_back_by_commits()
        else "quota"
        if driver.source is not None and driver.source.held_by_quota
        else "",
        aligning=machine.receiver.aligning or 0,
    )


def _slowest(machine: TaskMachine) -> tuple[str, int, int] | None:
    """The channel that gives the input watermark (W3): the lowest of those neither idle nor ended, else the idle one that counts."""
    channels = [c for c in machine.receiver.channels() if not c.progress.ended and c.progress.watermark_ms < MAX_TIME]
    if not channels:
        return None
    reached_ms = combined_watermark(c.progress for c in channels)
    found = min((c for c in channels if c.progress.watermark_ms == reached_ms), key=lambda c: c.progress.idle)
    return found.sender.vertex, found.sender.index, found.progress.watermark_ms
