"""Jobs in whose rows the moment has a part, or whose records come late: see `SHAPES`. `judged` says what must hold of their rows."""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.harness.drawn_jobs.job import Job, Places, checkpoint
from tests.harness.drawn_scripts import document, row_of, windows
from tests.harness.drawn_world import ms
from tests.oracle.scripts import Data, Lateness, Windows

SHAPES: Final = ("clock", "late", "merged", "silent", "arrival", "timers", "union", "join", "sample")
"""Windows on processing time. Late records that their own split judges, or the merged watermark. A partition that falls silent and
comes back. Computations by arrival, and by event time, whose timers set timers. A schedule, in a union and in a join, and the sample
stream."""
STAMPED: Final = ("union", "join", "sample")
"""Whose records have the time at which they are sent."""
_KEYS: Final = ("a", "b", 1, 1.0, None)
_NO_WINDOWS: Final = Windows(1, 1)
_BEHIND: Final = (0, 3, 15, 40)
_FAR: Final = (15, 40, 80, 80)
"""How far records come behind others, ms: farther where few watermarks reach the windows between them."""
_IDLE_MS: Final = 200
_SOON_MS: Final = 300
"""When a timer of processing time is due, behind the time at which its record is sent."""
_CRON: Final = {"cron": "* * * * * *"}
_SECOND: Final = {"$dateTrunc": {"date": "$ts", "unit": "second"}}


@dataclass(frozen=True, kw_only=True)
class Timed(Job):
    """A job of these shapes: from a topic into a topic."""

    shape: str
    steps: tuple[Data, ...]
    """Its records, in the order in which they are sent: `number` is the place of each."""
    stage: Windows = _NO_WINDOWS
    lateness: Lateness = "split"
    delay_ms: int = 0
    looks: bool = False
    """Its windows look something up for each record."""
    sorts: bool = False
    """They have their records by number."""
    stamps: dict[int, int] = field(default_factory=dict)
    """The time of each record, ms, where it is that at which it was sent."""

    @property
    def others(self) -> list[dict[str, Any]]:
        """Second streams read no topic."""
        return []

    def document(self) -> dict[str, Any]:
        """As a user writes it."""
        own = {"connectionName": "c", "topic": f"{self.name}-in", "config": {"auto_offset_reset": "earliest"}}
        return {
            "connections": {"c": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
            "pipeline": [
                {"$source": {**self.pipeline[0]["$source"], **own}},
                *self.pipeline[1:],
                {"$emit": {"connectionName": "c", "topic": f"{self.name}-out"}},
            ],
            "options": {
                "checkpoint": self.checkpoint,
                "lateness": self.lateness,
                "dlq": {"connectionName": "c", "topic": f"{self.name}-dlq"},
            },
        }

    def sent(self, values: list[bytes]) -> list[bytes]:
        """As they lie in the topic; those of the clock with the present time."""
        documents, now = [json.loads(value) for value in values], time.time_ns() // 1_000_000
        for each in documents:
            if self.shape in STAMPED:
                self.stamps[each["v"]] = now
                each["ts"] = {"$date": {"$numberLong": str(now)}}
            if each["clock"] is not None:
                each["clock"] = now + _SOON_MS
        return [json.dumps(each).encode() for each in documents]

    def partition_of(self, place: int, value: bytes) -> int:
        """As drawn."""
        partition: int = json.loads(value)["p"]
        return partition


def timed(seed: int, places: Places) -> Timed:
    """The job of a seed."""
    chooser = random.Random(f"{seed} timed")
    shape = chooser.choice(SHAPES)
    partitions = 1 if shape == "merged" else chooser.choice([1, 2, 3])
    if shape == "silent":
        partitions = chooser.choice([2, 3])
    delay_ms = chooser.choice([0, 3, 8])
    silent = shape == "silent" or (shape in ("arrival", "timers") and partitions > 1 and chooser.random() < 0.3)
    steps = _steps(chooser, partitions, _FAR if shape in ("merged", "silent") else _BEHIND, silent=silent)
    if (
        shape == "timers" and chooser.random() < 0.7
    ):  # one that has passed when its record comes may fire at any time behind it
        steps = tuple(replace(step, clock_ms=None) for step in steps)
    job = Timed(
        name=f"drawn-{seed}",
        pipeline=[],
        values=[json.dumps({**row_of(step), "p": step.partition}).encode() for step in steps],
        origin="topic",
        repeats=[],
        partitions=partitions,
        outputs=chooser.choice([1, 4]),
        settings={"linger_ms": chooser.choice([0, 5, 100])},
        parallelism={service: chooser.choice([1, 2]) for service in ("source", "operator", "sink", "spark")},
        checkpoint={**checkpoint(chooser), "interval": ms(chooser.choice([100, 200, 1_000]))},
        watermark={},
        between=chooser.choices(
            ["kill", "kill", "stop", "rescale", "resize", chooser.choice(["kill", "both"])], k=chooser.randint(1, 4)
        ),
        slowly=True,
        last=chooser.choice(["", "", "kill"]),
        places=places,
        shape=shape,
        steps=steps,
        lateness="merged" if shape == "merged" else chooser.choice(["split", "merged"]) if shape != "late" else "split",
        delay_ms=delay_ms,
    )
    job = _staged(chooser, job)
    return replace(job, pipeline=[_source(job, silent=silent), *job.pipeline])


def _steps(chooser: random.Random, partitions: int, behind_ms: Sequence[int], *, silent: bool) -> tuple[Data, ...]:
    """Event time goes on in jumps, with records far behind. silent: one partition has none for a while."""
    event, behind, count = 0, chooser.choice(behind_ms), chooser.choice((40, 300, 600))
    steps = []
    for number in range(count):
        event += chooser.randint(-2, 7)
        time_ms = event + chooser.randint(-behind, 3)
        first = int(silent and count * 0.1 < number < count * 0.4)
        timers = (chooser.choice((None, time_ms - 2, time_ms, time_ms + 6)), chooser.choice((None, 0)))
        steps.append(Data(number, time_ms, chooser.choice(_KEYS), chooser.randrange(first, partitions), *timers))
    return tuple(steps)


def _source(job: Timed, *, silent: bool) -> dict[str, Any]:
    idle = {"partitionIdleTimeout": ms(_IDLE_MS)} if silent else {}
    watermark = {"strategy": "boundedDisorder", "maxDelay": ms(job.delay_ms)}
    return {"$source": {"timeField": "$ts", "watermark": watermark, **idle}}


def _staged(chooser: random.Random, job: Timed) -> Timed:
    """The job with its stages, and what they say."""
    match job.shape:
        case "arrival" | "timers":
            order = "arrival" if job.shape == "arrival" else "eventTime"
            compute = {"class": "tests.harness.computations:Remembers", "key": "$k", "order": order}
            return replace(job, pipeline=[{"$compute": compute}])
        case "join":
            join = {"leftKey": _SECOND, "rightKey": "$scheduledAt", "within": {"before": ms(1_000)}, "type": "full"}
            return replace(job, pipeline=[{"$join": {"from": [{"$source": _CRON}], **join, "as": "at"}}])
        case "union" | "sample":
            stage = Windows(chooser.choice((1_000, 2_000, 3_000)), 0)
            stage = replace(stage, hop_ms=stage.size_ms)
            other = _CRON if job.shape == "union" else {"connectionName": "sample_stream_solar"}
            told = {"$ifNull": ["$v", "$scheduledAt", "$timestamp"]}
            group = {"$group": {"_id": None, "vs": {"$push": told}}}
            bounds = {"$addFields": {name: {"$meta": f"stream.window.{name}"} for name in ("start", "end")}}
            window = {"$tumblingWindow": {"interval": ms(stage.size_ms), "pipeline": [group, bounds]}}
            return replace(job, stage=stage, pipeline=[{"$union": {"pipelines": [[{"$source": other}]]}}, window])
    stage = windows(chooser)
    while stage.by_arrival != (job.shape == "clock") or (stage.idle_ms is not None and job.shape != "silent"):
        stage = windows(chooser)
    if job.shape == "clock":
        size_ms, hop_ms = chooser.choice((200, 1_000, 3_000)), chooser.choice((100, 400))
        stage = replace(stage, size_ms=size_ms, hop_ms=stage.hop_ms and chooser.choice((size_ms, hop_ms)))
    text, looks, sorts = document(chooser, job.steps, stage, job.lateness, job.delay_ms)
    return replace(job, stage=stage, looks=looks, sorts=sorts, pipeline=text["pipeline"][1:])
