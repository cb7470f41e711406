"""The job of a seed: a pipeline, its records, their producer, and what happens to the job."""

import json
import random
from dataclasses import replace
from typing import Any, Final

from tests.harness.bench.pipeline_cliffs import records, stages
from tests.harness.bench.readings import readings, source
from tests.harness.drawn_jobs.job import (
    ASKS,
    FORMS,
    MESSAGE,
    NULLABLE,
    Job,
    Places,
    checkpoint,
    form_of,
    message_reader,
    written,
)
from tests.harness.drawn_jobs.timed import timed
from tidemark.shared.language.values import parse_json

_ORDERED: Final = ('"$first"', '"$last"')
"""What they give depends on the order of arrival, which several partitions do not have."""
_ORIGINS: Final = ("topic", "topic", "packed", "registered", "files", "growing", "history", "changes")
_DAYS: Final = 10 * 86_400_000
"""Milliseconds, more than all records take."""
_JOINS: Final = ("inner", "left", "right", "full")
_KEYS: Final[tuple[Any, ...]] = (
    "$sensor",
    "$n",
    "$text",
    "$place",
    "$tags",
    "$nothing",
    {"$toUpper": "$unit"},
    {"a": "$value", "b": "$more"},
)
"""Of joins, sessions and computations."""
_REGISTERED: Final = ("avro", "jsonSchema", "protobuf")
_FILES: Final = ("json", "csv", "parquet")
_TARGETS: Final = ("topic", "topic", *_REGISTERED, *_FILES, "sqlite", "postgresql", "mongodb", "https")
FOCUSES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "https": ((), ("https",)),
    "mongodb": ((), ("mongodb",)),
    "registry": (("registered",), _REGISTERED),
    "history": (("history",), ()),
    "tasks": ((), ()),
    "times": ((), ()),
    "staged": (("topic", "packed", "registered", "growing"), ("postgresql", "mongodb", "sqlite", *_FILES)),
    "load": (("topic", "packed", "registered", "growing"), ()),
}
"""Origins and targets of jobs that are to have one thing; without any: all."""
_TIMED: Final = 0.2
"""So many of the jobs are of `timed`."""
_ASKED_MAX: Final = 1000
"""Records of a job that asks about each in a request of its own."""
_STEPS: Final = 1_000_000
_STEPS_MAX: Final = 50_000
"""Of expressions that go through items: in all documents of a job, and in one."""
_SUM: Final = [{"$set": {"n": {"$add": ["$n", "$$new.n"]}}}]
"""When a row is there: each row counts."""


def drawn(seed: int, places: Places, focus: str = "") -> Job:
    """The job of a seed. focus: one of `FOCUSES`, which it has to have."""
    if focus == "times" or (not focus and random.Random(f"{seed} moment").random() < _TIMED):
        return timed(seed, places)
    chooser = random.Random(seed)
    pipeline: list[Any] = []
    # What looks at the clock differs from one moment to the next.
    while not pipeline or "$$NOW" in json.dumps(pipeline):
        middle = stages(chooser)
        if chooser.random() < 0.3:
            middle += stages(chooser)
        if chooser.random() < 0.1:
            other = [source(declared=chooser.random() < 0.5), {"$match": {"n": {"$gte": 0}}}]
            middle.append({"$union": {"pipelines": [other]}})
        if chooser.random() < 0.2:
            middle.append({"$compute": {"class": "tests.harness.computations:Marks", "key": chooser.choice(_KEYS)}})
        if chooser.random() < 0.3:
            chooser.shuffle(middle)
        pipeline = [source(declared=chooser.random() < 0.5), *(_varied(chooser, stage) for stage in middle)]
    ordered = any(word in json.dumps(pipeline) for word in _ORDERED)
    values = records(chooser, chooser.choice([1, 37, 1000, 5000])).values.to_pylist()
    origin = chooser.choice(FOCUSES.get(focus, ((), ()))[0] or _ORIGINS)
    forms = tuple(chooser.sample(sorted(FORMS), chooser.randint(1, 4))) if origin == "registered" else ()
    run = chooser.choice([1, 50, 1000])
    if origin in ("changes", "registered"):
        pipeline[0] = source(declared=False)
    if origin == "registered":
        values = _registrable(chooser, len(values), forms, run)
    again = chooser.choice([0, 0, 1, 50]) if origin not in ("history", "changes") else 0
    repeats = [chooser.randrange(len(values)) for _ in range(again)]
    tasks = {"source": chooser.choice([1, 2]), "operator": chooser.choice([1, 2]), "sink": chooser.choice([1, 2])}
    tasks["spark"] = chooser.choice([1, 2])
    bounded = not ordered and (focus == "tasks" or chooser.random() < 0.3)
    bounds = {service: _bounds(chooser) for service in tasks if bounded and chooser.random() < 0.7}
    possible = sorted(ASKS) if len(values) <= _ASKED_MAX else ["mongodb"]
    asks = focus if focus in possible else chooser.choice(possible) if chooser.random() < 0.2 else ""
    job = Job(
        name=f"drawn-{seed}",
        pipeline=pipeline,
        values=values,
        origin=origin,
        repeats=repeats,
        partitions=1 if ordered else chooser.choice([1, 3, 8]),
        outputs=chooser.choice([1, 4]),
        settings={
            "compression_type": chooser.choice([None, "gzip", "snappy", "lz4", "zstd"]),
            "linger_ms": chooser.choice([0, 5, 100]),
            "max_batch_size": chooser.choice([1, 1000, 1_000_000]),
        },
        parallelism={} if ordered else tasks,
        checkpoint=checkpoint(chooser),
        # A file of a folder that grows may be found when another one has been read to its end.
        watermark=_watermark(_DAYS if origin == "growing" else chooser.choice([_DAYS, 0, 0, 70])),
        between=chooser.choices(
            ["kill", "modify", "stop", "stop" if ordered else "rescale"], k=chooser.choice([0, 1, 1, 2, 3])
        ),
        last=chooser.choice(["", "", "kill"]),
        target=chooser.choice(FOCUSES.get(focus, ((), ()))[1] or _TARGETS),
        config=_config(chooser),
        matched=chooser.choice(["replace", _SUM]),
        synced=chooser.random() < 0.7,
        forms=forms,
        run=run,
        asks=asks,
        early=chooser.random() < 0.5,
        bounds=bounds,
        places=places,
    )
    return _costly(random.Random(f"{seed} costly"), _disturbed(chooser, job, focus, ordered=ordered))


def _costly(chooser: random.Random, job: Job) -> Job:
    """Some jobs: with a stage that lets all documents through, and takes long for each: some 20 us a step on a slow machine."""
    if chooser.random() >= 0.15:
        return job
    steps = min(_STEPS_MAX, _STEPS // len(job.values))
    items = {"$range": [0, {"$cond": [{"$eq": ["$n", 0]}, steps, steps + 1]}]}
    most = {"$reduce": {"input": items, "initialValue": 0, "in": {"$max": ["$$value", "$$this"]}}}
    place = chooser.randint(1, len(job.pipeline))
    stage = {"$match": {"$expr": {"$gte": [most, 0]}}}
    return replace(job, pipeline=[*job.pipeline[:place], stage, *job.pipeline[place:]])


def _disturbed(chooser: random.Random, job: Job, focus: str, *, ordered: bool) -> Job:
    """Some jobs: with more that happens, while their records come bit by bit."""
    often = focus in ("load", "history")
    if not often and chooser.random() >= 0.3:
        return job
    kinds = ["kill", "modify", "stop", *(["kill", "stop"] if ordered else ["rescale", "resize", "both"])]
    between = chooser.choices(kinds, k=chooser.randint(3, 6) if often else len(job.between))
    # A history ends within a moment.
    return replace(job, slowly=True, between=between, pause_s=0.4 if focus == "history" else 2.0)


def _bounds(chooser: random.Random) -> dict[str, int]:
    least = chooser.choice([1, 2])
    return {"min": least, "max": chooser.randint(least, 3)}


def _registrable(chooser: random.Random, count: int, forms: tuple[str, ...], run: int) -> list[bytes]:
    """Records that a schema describes, some of whose fields are null in some of them."""
    found = readings(count, chooser.randrange(1000))
    part = chooser.choice([0.0, 0.01, 0.5])
    values = []
    for each in found:
        each |= {name: None for name in NULLABLE if chooser.random() < part}
        form = form_of(each["at"], forms, run)
        if form == "later":
            del each["unit"]
            each["extra"] = chooser.choice([None, each["at"]])
        text = json.dumps(each).encode()
        # Protobuf has no null: what is read is what a message keeps of it.
        values.append(message_reader(MESSAGE)(written(form, parse_json(text), text)) if form == "message" else text)
    return values


def _varied(chooser: random.Random, stage: Any) -> Any:
    """The stage with keys that some documents lack or have of another type, a join of any type, a window of any size and place."""
    match stage:
        case {"$join": join}:
            within = {side: _span(chooser) for side in chooser.choice([["before"], ["after"], ["before", "after"]])}
            keys = {"leftKey": chooser.choice(_KEYS), "rightKey": chooser.choice(_KEYS)}
            if chooser.random() < 0.5:
                keys = dict.fromkeys(keys, "$sensor")
            return {"$join": {**join, **keys, "within": within, "type": chooser.choice(_JOINS)}}
        case {"$sessionWindow": window}:
            return {"$sessionWindow": {**window, "partitionBy": chooser.choice(_KEYS), "gap": _span(chooser)}}
        case {"$tumblingWindow": window}:
            offset = {"offsetFromUtc": chooser.choice([-3, 0, 7]), "unit": "ms"}
            return {"$tumblingWindow": {**window, "interval": _span(chooser), "offset": offset}}
        case _:
            return stage


def _span(chooser: random.Random) -> dict[str, Any]:
    return {"size": chooser.choice([10, 70, 1000, 7000]), "unit": "ms"}


def _watermark(delay_ms: int) -> dict[str, Any]:
    return {"strategy": "boundedDisorder", "maxDelay": {"size": delay_ms, "unit": "ms"}}


def _config(chooser: random.Random) -> dict[str, Any]:
    """Of `$emit`: keys and headers that no document lacks."""
    found: dict[str, Any] = {}
    if chooser.random() < 0.5:
        found["key"] = chooser.choice(
            ["$sensor", "$place.room", {"a": "$n", "b": "$tags"}, {"$ifNull": ["$text", "$n"]}]
        )
    if chooser.random() < 0.3:
        found["headers"] = chooser.choice(
            [{"a": "$sensor", "b": "$place"}, {"a": "b"}, [{"k": "a", "v": {"$ifNull": ["$n", 0]}}]]
        )
    if chooser.random() < 0.5:
        found["outputFormat"] = chooser.choice(["canonicalJson", "relaxedJson"])
    return found
