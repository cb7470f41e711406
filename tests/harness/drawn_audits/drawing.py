"""The story of a seed: a document, its records, and what happens meanwhile."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

BEGIN_MS: Final = 1_000_000
IDLE_MS: Final = 400
COUNT: Final = 100
"""Records of a story."""
TABLE: Final = "kept"
LOOKED: Final = "looked"
Stages = list[dict[str, Any]]
SUMS: Final[Stages] = [
    {"$group": {"_id": "$k", "n": {"$sum": 1}, "v": {"$sum": "$v"}, "k": {"$first": "$k"}, "id": {"$max": "$id"}}}
]
_GATHERED: Final[list[Stages]] = [
    SUMS,
    SUMS,
    [{"$group": {"_id": "$k", "v": {"$push": "$v"}, "k": {"$first": "$k"}, "id": {"$max": "$id"}}}],
    [
        {"$sort": {"id": 1}},
        {"$group": {"_id": "$k", "v": {"$last": "$v"}, "k": {"$first": "$k"}, "id": {"$max": "$id"}}},
    ],
    [{"$sort": {"id": -1}}, {"$limit": 3}, {"$project": {"id": 1, "k": 1, "v": 1}}],
]


def ms(size: int) -> dict[str, Any]:
    """A duration."""
    return {"size": size, "unit": "ms"}


@dataclass
class Story:
    """What is run, and how."""

    seed: int
    document: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    """Partitions of the sources' topics."""
    feed: list[tuple[str, int, dict[str, Any], int]] = field(default_factory=list)
    """Topic, partition, record, and the wait before it, ms."""
    acts: dict[int, str] = field(default_factory=dict)
    """What happens in front of a record, by its number."""
    tasks: dict[str, int] = field(default_factory=dict)
    shows: bool = False
    """Each record is in some output: in a result, or in a dead letter."""
    traits: dict[str, str] = field(default_factory=dict)
    """What was drawn, for the tables."""


def drawn(seed: int, out: Path) -> Story:
    """The story of a seed; `out`: where its files and tables lie."""
    rng = random.Random(seed)
    story = Story(seed)
    two = rng.random() < 0.25
    story.parts = {"a": rng.randint(1, 4)} | ({"b": rng.randint(1, 2)} if two else {})
    idles = rng.random() < 0.3
    stages = _meeting(rng, idles=idles) if two else [_source(rng, "a", idles=idles)]
    targets = rng.choice((["topic"], ["topic"], ["topic", "files"], ["topic", "table"]))
    middle = _middle(rng, story, two=two)
    if "files" in targets:
        stages.append({"$emit": {"connectionName": "out", "path": "raw", "format": "json"}})
    stages += middle
    if "table" in targets:
        into = {"connectionName": "table", "table": TABLE}
        stages.append({"$merge": {"into": into, "on": "id", "whenMatched": "replace"}})
        shown = {"$toString": {"$cond": [{"$isArray": "$v"}, {"$sum": "$v"}, "$v"]}}
        stages[-1:-1] = [{"$project": {"_id": 0, "id": {"$ifNull": ["$id", -1]}, "v": shown}}]
    stages.append({"$emit": {"connectionName": "broker", "topic": "results"}})
    lateness, queue = rng.choice(("merged", "merged", "split")), rng.random() < 0.8
    checkpoint: dict[str, Any] = {"interval": ms(rng.choice((100, 300, 1_000, 3_000)))}
    if rng.random() < 0.08:
        checkpoint["alignmentTimeout"] = ms(1)
    story.document = {
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "memory"},
            "out": {"type": "files", "path": str(out)},
            "table": {"type": "sql", "url": f"sqlite:///{out}/{TABLE}.db"},
        },
        "pipeline": stages,
        "options": {
            **({"dlq": {"connectionName": "broker", "topic": "late"}} if queue else {}),
            "checkpoint": checkpoint,
            "lateness": lateness,
        },
    }
    story.tasks = {
        "source": rng.randint(1, story.parts["a"]),
        "operator": rng.choice((1, 2)),
        "sink": 1 if "table" in targets else rng.choice((1, 2)),
    }
    story.feed = list(_records(rng, story.parts))
    for _ in range(rng.choice((0, 0, 1, 2))):
        acts = ("fail", "restart", "rescale", "widen") + (("modify",) if rng.random() < 0.2 else ())
        story.acts[rng.randrange(10, COUNT - 10)] = rng.choice(acts)
    text = json.dumps(stages)
    hidden = (
        "$limit",
        "$last",
        "inner",
        "left",
        "right",
        "$match",
        "recordId",
        "Ticks",
        "$merge",
        '"size": 2000, "unit": "ms"}, "pipeline',
    )
    story.shows = queue and not any(word in text for word in hidden)
    story.traits |= {
        "lateness": lateness,
        "queue": str(queue),
        "idle": str(idles),
        "targets": "+".join(targets),
        "acts": "+".join(sorted(story.acts.values())) or "none",
        "aligned": str("alignmentTimeout" not in checkpoint),
        "streams": str(1 + two),
    }
    return story


def _source(rng: random.Random, topic: str, *, idles: bool) -> dict[str, Any]:
    more: dict[str, Any] = {"recordId": "$id"} if rng.random() < 0.15 else {}
    if idles:
        more["partitionIdleTimeout"] = ms(IDLE_MS)
    if rng.random() < 0.5:
        more["watermark"] = {"strategy": "boundedDisorder", "maxDelay": ms(rng.choice((0, 100, 1_000)))}
    return {
        "$source": {
            "connectionName": "broker",
            "topic": topic,
            "config": {"auto_offset_reset": "earliest"},
            "timeField": {"$toDate": {"$toLong": {"$cond": ["$bad", "no time", "$at"]}}},
            **more,
        }
    }


def _meeting(rng: random.Random, *, idles: bool) -> Stages:
    """Two streams that meet, the second one perhaps behind a window."""
    left, right = (_source(rng, topic, idles=idles) for topic in "ab")
    between = [window(rng)[1]] if rng.random() < 0.3 else []
    if rng.random() < 0.4:
        return [left, {"$union": {"pipelines": [[right, *between]]}}]
    join = {
        "from": [right, *between],
        "leftKey": "$k",
        "rightKey": "$k",
        "type": rng.choice(["inner", "left", "right", "full"]),
        "within": {"before": ms(rng.choice((1_000, 3_000))), "after": ms(rng.choice((1_000, 2_000)))},
        "as": "r",
    }
    lifted = {"$addFields": {name: {"$ifNull": [f"${name}", f"$r.{name}"]} for name in ("k", "id", "v")}}
    return [left, {"$join": join}, lifted]


def window(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A window of some kind, and the kind."""
    kind = rng.choice(("tumbling", "hopping", "hopping", "session", "session"))
    more: dict[str, Any] = {"pipeline": rng.choice(_GATHERED)}
    if rng.random() < 0.8:
        more["allowedLateness"] = ms(rng.choice((0, 0, 500, 2_000)))
    if rng.random() < 0.15:
        more["outputTime"] = rng.choice(("earliest", "latest", "end"))
    if kind == "session":
        return kind, {"$sessionWindow": {"gap": ms(rng.choice((500, 1_000))), "partitionBy": "$k", **more}}
    if rng.random() < 0.04:
        more = {"pipeline": more["pipeline"], "boundary": "processingTime"}
    elif rng.random() < 0.04:
        more["idleTimeout"] = ms(500)
    if kind == "hopping":
        size, hop = rng.choice(((4_000, 1_000), (3_000, 1_000), (2_000, 500), (1_000, 2_000)))
        return kind, {"$hoppingWindow": {"interval": ms(size), "hopSize": ms(hop), **more}}
    return kind, {"$tumblingWindow": {"interval": ms(rng.choice((500, 1_000, 5_000))), **more}}


def _middle(rng: random.Random, story: Story, *, two: bool) -> Stages:
    """What stands behind the source, or the meeting of two."""
    stages: Stages = []
    kinds = []
    if rng.random() < 0.3:
        stages.append({"$match": {"$expr": {"$ne": [{"$mod": [{"$ifNull": ["$id", 0]}, 7]}, 1]}}})
    if rng.random() < 0.06:
        stages.append({"$lookup": {"from": {"connectionName": "table", "table": LOOKED}, "localField": "id", "foreignField": "id",
                                   "as": "found"}})  # fmt: skip
        kinds.append("lookup")
    for _ in range(rng.choice((0, 1) if two else (0, 1, 1, 1, 2))):
        if rng.random() < 0.2:
            order = rng.choice(({}, {}, {"order": "arrival"}))
            timers = rng.random() < 0.4
            config: dict[str, Any] = (
                {"config": {"domain": rng.choice(("event", "event", "processing"))}} if timers else {}
            )
            name = "Ticks" if timers else "Marks"
            stages.append({"$compute": {"class": f"tests.harness.computations:{name}", "key": "$k", **order, **config}})
            kinds.append(f"{name} {order.get('order', 'eventTime')}")
            if timers:
                break
        else:
            kind, stage = window(rng)
            stages.append(stage)
            kinds.append(kind)
            if rng.random() < 0.1:
                stages.append({"$addFields": {"v": {"$toInt": {"$cond": [{"$eq": ["$k", "z"]}, "odd", "1"]}}}})
    story.traits["stages"] = "+".join([*(["two streams"] if two else []), *kinds]) or "none"
    return stages


def _records(rng: random.Random, parts: dict[str, int]) -> Iterator[tuple[str, int, dict[str, Any], int]]:
    """Partitions pause and come back at their own time or at the others'; some records are late behind their own partition."""
    places = [(topic, part) for topic, count in parts.items() for part in range(count)]
    apart_ms, late_share = rng.choice((0, 500, 4_000)), rng.choice((0, 0.1, 0.3))
    times = {place: BEGIN_MS + rng.randint(0, apart_ms) for place in places}
    away = dict.fromkeys(places, 0)
    for number in range(COUNT):
        place = rng.choice([each for each in places if away[each] <= 0] or places)
        for other in places:
            away[other] -= 1
        if rng.random() < 0.08:
            away[place] = rng.randint(5, 30)
            if rng.random() < 0.5:
                times[place] = max(times.values())
        times[place] += rng.randint(0, 600)
        late_ms = rng.randint(0, 4_000) if rng.random() < late_share else 0
        wait_ms = rng.choice((0, 10, 50, 50, 130, 3 * IDLE_MS if rng.random() < 0.1 else 50))
        known = number if rng.random() < 0.95 else rng.randrange(number + 1)
        record = {"id": known, "k": rng.choice("xyz"), "v": number + 1, "at": times[place] - late_ms}
        yield (*place, {**record, "bad": rng.random() < 0.03}, wait_ms)
