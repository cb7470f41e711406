"""Installations as an installation's topics tell of them, drawn: no processor, one, hundreds; of every state, size and content."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tests.harness.visits.texts import hostile
from tidemark.shared.language.documents import parse
from tidemark.shared.model.held import Hold, SplitHeld, TaskHeld, Wait
from tidemark.shared.model.ids import Epoch, Generation, JobId, Place, ProcessorName, VertexId
from tidemark.shared.model.messages import ProcessorStatus, TaskBeat
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.planning import plan_processor
from tidemark.shared.runtime.beats import LAST_REASON, WATERMARK

MANY: Final = 300
STATES: Final = ("CREATED", "STARTING", "RUNNING", "RUNNING", "RUNNING", "STOPPING", "STOPPED", "FINISHED", "FAILED")
NUMBERS: Final = (0, 1, 999, 1_000, 2**31, 2**53 + 1, 2**63 - 1)
TIMES: Final = (
    MIN_TIME,
    MIN_TIME + 5,
    -62_135_596_800_001,
    0,
    1_700_000_000_123,
    253_402_300_800_000,
    MAX_TIME - 5,
    MAX_TIME,
)
"""Of watermarks, ms: none yet, before the year 1, the first instant, a usual one, behind the year 9999, the end."""
_SOURCE: Final = {
    "connectionName": "broker",
    "topic": "clicks",
    "timeField": {"$toDate": "$at"},
    "schema": {"user": "string", "at": "long"},
}


@dataclass
class Shape:
    """What the topics and files of an installation hold."""

    title: str
    statuses: list[ProcessorStatus] = field(default_factory=list)
    beats: list[TaskBeat] = field(default_factory=list)
    letters: dict[str, list[bytes]] = field(default_factory=dict)
    """By topic."""
    lines: list[bytes] = field(default_factory=list)
    """Of a log file."""
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)


def document(*stages: dict[str, Any], topic: str = "refused") -> dict[str, Any]:
    """A processor's document with these stages between its source and its sink."""
    return {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [{"$source": _SOURCE}, *stages, {"$emit": {"connectionName": "broker", "topic": "counts"}}],
        "options": {"dlq": {"connectionName": "broker", "topic": topic}, "lateness": "split"},
    }


def window(number: int) -> dict[str, Any]:
    """A stage that is a vertex of its own."""
    group = {"$group": {"_id": "$user", f"n{number}": {"$count": {}}}}
    return {"$tumblingWindow": {"interval": {"size": 2, "unit": "second"}, "pipeline": [group]}}


def processor(
    chooser: random.Random, name: str, found: dict[str, Any], *, splits: int = 2, rude: bool = False, state: str = ""
) -> tuple[ProcessorStatus, list[TaskBeat]]:
    """With the beats of its tasks. rude: hostile texts and extreme numbers, else usual ones."""
    plan = plan_processor(parse(json.dumps(found)), engine="local")
    services: dict[VertexId, str] = {vertex.id: vertex.service for vertex in plan.vertices}
    state = state or chooser.choice(STATES)
    last = Epoch(chooser.choice(NUMBERS) if rude else chooser.randint(1, 500))
    status = ProcessorStatus(
        ProcessorName(name), JobId(f"job-{name}"[:64]), state,
        hostile(chooser) if rude or state == "FAILED" else "", Generation(1), last, Epoch(max(0, last - 1)), 1, json.dumps(found), {},
        tasks=tuple((vertex, 0, Place(f"{service}-0")) for vertex, service in services.items()),
        commits=last, services=services, checkpoints=(("before-the-change", Epoch(1)), ("k" * 100, last)),
    )  # fmt: skip
    idle = state in ("CREATED", "STOPPED", "FINISHED", "FAILED")
    return status, [] if idle else [
        _beat(chooser, status, vertex, splits if service == "source" else 0, rude=rude)
        for vertex, service in services.items()
    ]


def _beat(chooser: random.Random, status: ProcessorStatus, vertex: VertexId, splits: int, *, rude: bool) -> TaskBeat:
    def number() -> int:
        return chooser.choice(NUMBERS) if rude else chooser.randint(0, 10_000)

    def time() -> int:
        return chooser.choice(TIMES) if rude else 1_700_000_000_000 + chooser.randint(0, 100_000)

    begin, end = time(), time()
    held = TaskHeld(
        1_700_000_000_000, (Hold("$tumblingWindow", "openWindow", begin, end),) if chooser.random() < 0.5 else ()
    )
    details = {WATERMARK: msgspec.json.encode(held).decode()}
    for partition in range(splits):
        split = SplitHeld(
            number(),
            time(),
            chooser.choice(("active", "active", "idle")),
            topic="clicks",
            lastEvent=time(),
            seen=number(),
            late=0,
        )
        details[f"split:clicks-{partition}"] = msgspec.json.encode(split).decode()
    waits: tuple[Wait, ...] = ()
    if rude:
        details[LAST_REASON] = hostile(chooser)
        waits = (Wait("target", "opening", hostile(chooser, 100), 1_700_000_000_000, hostile(chooser)),)
    names = (
        "inRows",
        "outRows",
        "inBytes",
        "outBytes",
        "dlqRows",
        "lagMs",
        "stateBytes",
        "stateBytesMax",
        "busyMs",
        "heldMs",
    )
    return TaskBeat(
        status.name, status.job, status.generation, vertex, 0, "running", status.last, begin, end,
        {name: number() for name in names}, details, waiting=waits,
    )  # fmt: skip


# --- kinds ----------------------------------------------------------------------------------------------------------------


def shape(chooser: random.Random) -> Shape:
    """One of the kinds."""
    kind = chooser.choice(list(KINDS))
    return KINDS[kind](chooser, Shape(kind))


def _add(chooser: random.Random, into: Shape, name: str, *stages: dict[str, Any], **how: Any) -> None:
    status, beats = processor(chooser, name, document(*stages), **how)
    into.statuses.append(status)
    into.beats += beats


def _none(_chooser: random.Random, into: Shape) -> Shape:
    return into


def _one(chooser: random.Random, into: Shape) -> Shape:
    _add(chooser, into, "clicks", window(0), state="RUNNING")
    into.letters["refused"] = [letter("clicks", each) for each in range(20)]
    into.lines = [_line("clicks", event="worker.started", number=each) for each in range(20)]
    into.connections["broker"] = {
        "type": "kafka",
        "bootstrapServers": "memory",
        "config": {"sasl_password": "${SECRET}"},
    }
    return into


def _many(chooser: random.Random, into: Shape) -> Shape:
    for number in range(MANY):
        _add(chooser, into, f"{chooser.choice(('', 'a.', 'b.'))}p{number:03}", window(0))
    return into


def _rude(chooser: random.Random, into: Shape) -> Shape:
    for name in ("clicks", "n" * 128, f"a.{'x' * 120}", "Z.9_-"):
        _add(
            chooser,
            into,
            name,
            {"$addFields": {"text": hostile(chooser), "big": 2**62}},
            window(0),
            rude=True,
            state="RUNNING",
        )
    into.letters["refused"] = list(_rude_letters(chooser, into.statuses[0].name))
    into.lines = [
        _line("clicks", event=hostile(chooser), level=hostile(chooser, 100), **{hostile(chooser, 40): hostile(chooser)})
        for _ in range(20)
    ]
    into.lines += [
        b'{"processor": "clicks", "timestamp": 7, "level": null, "event": ["\\ud800", {"a": 1e308}]}',
        b"{}",
        b"\xff\xfe",
    ]
    into.lines.append(_line("clicks", event="long", text="<i>" * 200_000))
    into.connections = {
        "broker": {"type": "kafka", "bootstrapServers": hostile(chooser)},
        hostile(chooser, 60): {"type": hostile(chooser, 60)},
        "n" * 128: {"type": "sql", "url": f"postgresql://me:secret@host/{'d' * 300}"},
    }
    return into


def _stages(chooser: random.Random, into: Shape) -> Shape:
    _add(
        chooser,
        into,
        "clicks",
        *({"$match": {"user": {"$ne": f"u{number}"}}} for number in range(198)),
        state="RUNNING",
    )
    return into


def _vertices(chooser: random.Random, into: Shape) -> Shape:
    _add(chooser, into, "clicks", *map(window, range(64)), state="RUNNING")
    return into


def _partitions(chooser: random.Random, into: Shape) -> Shape:
    _add(chooser, into, "clicks", window(0), splits=1_000, state="RUNNING")
    return into


def _dead(chooser: random.Random, into: Shape) -> Shape:
    _add(chooser, into, "clicks", window(0))
    into.letters["refused"] = [letter("clicks", each) for each in range(10_000)]
    return into


KINDS: Final[dict[str, Callable[[random.Random, Shape], Shape]]] = {
    "no processor": _none,
    "one processor": _one,
    "many processors": _many,
    "hostile contents": _rude,
    "200 stages": _stages,
    "64 vertices": _vertices,
    "1,000 partitions": _partitions,
    "10,000 dead letters": _dead,
}


def letter(name: str, number: int) -> bytes:
    """A usual dead letter."""
    found = {
        "processorName": name,
        "operatorName": "$source",
        "dlqTime": {"$date": f"2026-01-01T00:00:{number % 60:02}.{number % 1000:03}Z"},
        "errInfo": {"code": "DocumentLate", "reason": f"it came {number} ms late"},
        "doc": {"user": f"user-{number}", "at": number},
    }
    return json.dumps(found).encode()


def _rude_letters(chooser: random.Random, name: str) -> Iterator[bytes]:
    """Of this service, and what else may stand in a topic that anyone may write to."""
    for _ in range(10):
        info = {"code": hostile(chooser, 100), "reason": hostile(chooser)}
        doc = {hostile(chooser, 40): hostile(chooser)}
        yield json.dumps(
            {"processorName": name, "operatorName": hostile(chooser, 60), "errInfo": info, "doc": doc}
        ).encode()
    odd: tuple[Any, ...] = (
        {"errInfo": "text"}, {"errInfo": None}, {"errInfo": [1]}, {"errInfo": {"code": {"a": 1}, "reason": ["x", {"y": 1}]}},
        {"dlqTime": [1]}, {"dlqTime": {"a": 1}}, {"dlqTime": None}, {"operatorName": {"<i>": 1}}, [], 1, "text", {},
        {"errInfo": {"reason": True, "code": 7}}, {"doc": {"n": {"$numberLong": "9223372036854775807"}, "d": 1.5e308}},
        {"errInfo": {"reason": "large", "code": "Large"}, "doc": "<&>" * 100_000},
    )  # fmt: skip
    yield from (json.dumps(each).encode() for each in odd)
    yield from (b"", b"{", b"\xff\xfe\x00", b'{"errInfo": {"reason": "\\ud800"}}', b'{"a": NaN}', b"[" * 5_000)


def _line(name: str, **more: Any) -> bytes:
    return json.dumps({"timestamp": "2026-01-01T00:00:00Z", "level": "info", "processor": name, **more}).encode()
