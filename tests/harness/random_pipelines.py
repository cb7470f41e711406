"""Scripts and windows drawn at random: partitions, idleness, both kinds of time, every kind of window, chains of two.

Documents have nested, mixed, null and missing fields; stages stand in front of the windows and inside of them.
"""

import random
from typing import Any

_BASE_MS = 1_704_067_200_000
_GROUPS: list[list[dict[str, Any]]] = [
    [{"$group": {"_id": "$k", "n": {"$sum": 1}, "vs": {"$push": "$v"}, "last": {"$last": "$v"}}}],
    [{"$group": {"_id": None, "n": {"$sum": 1}, "m": {"$max": "$v"}}}],
    [{"$sort": {"v": -1}}, {"$group": {"_id": "$k", "f": {"$first": "$v"}}}],
    [{"$limit": 2}],
    [{"$skip": 1}, {"$group": {"_id": "$k", "n": {"$sum": 1}}}],
    [{"$count": "c"}],
    [{"$match": {"v": {"$gt": 2}}}, {"$group": {"_id": "$k", "a": {"$avg": "$v"}}}],
    [{"$group": {"_id": {"k": "$k", "p": "$o.p"}, "n": {"$sum": "$o.p"}, "os": {"$addToSet": "$o"}}}],
    [{"$unwind": "$l"}, {"$group": {"_id": {"$type": "$l"}, "ls": {"$push": "$l"}, "m": {"$max": "$l"}}}],
    [
        {"$addFields": {"o.q": {"$ifNull": ["$o.p", "$v"]}}},
        {"$group": {"_id": "$o", "s": {"$sum": {"$size": {"$ifNull": ["$l", []]}}}}},
    ],
]
_ODD: list[Any] = [1, 2.5, "a", None, True, [], [1, "a", None], {}, {"p": 1}, {"p": "b", "q": [1]}, {"p": None}]
"""What stands at fields that nobody declares: of any type, nested, null; or nothing."""
_BEFORE: list[dict[str, Any]] = [
    {
        "$addFields": {
            "t": {"$dateTrunc": {"date": "$ts", "unit": "minute", "timezone": "Europe/Berlin"}},
            "x": {"$type": "$o"},
        }
    },
    {"$addFields": {"k": {"$cond": [{"$isNumber": "$o"}, "$o", "$k"]}}},
    {"$project": {"k": 1, "v": 1, "ts": 1, "o": {"p": {"$ifNull": ["$o.p", "none"]}}, "l": ["$o", "$v"]}},
    {"$match": {"$or": [{"o.p": {"$exists": True}}, {"v": {"$mod": [2, 0]}}]}},
    {"$unset": ["o.q"]},
    {"$addFields": {"o": {"$add": ["$o", 1]}}},
]
_BOUNDS = {"$addFields": {"s": {"$meta": "stream.window.start"}, "e": {"$meta": "stream.window.end"}}}


def date(second: int) -> dict[str, Any]:
    """An instant so many seconds into the script."""
    return {"$date": {"$numberLong": str(_BASE_MS + second * 1000)}}


def seconds(size: int) -> dict[str, Any]:
    """A duration."""
    return {"size": size, "unit": "second"}


def case(seed: int) -> dict[str, Any]:
    """A pipeline of one or two windows over a script."""
    chooser = random.Random(seed)
    timed = chooser.random() < 0.4
    source: dict[str, Any] = {"script": _script(chooser, timed=timed), "timeField": {"$toDate": "$ts"}}
    if chooser.random() < 0.5:
        source["watermark"] = {"strategy": "boundedDisorder", "maxDelay": seconds(chooser.choice([0, 3, 8, 100_000]))}
    if chooser.random() < 0.4:
        source["schema"] = {"v": "int", "ts": "date"}
    before = chooser.sample(_BEFORE, chooser.choice([0, 1, 1, 2]))
    pipeline = [{"$source": source}, *before, _window(chooser, timed=timed)]
    if chooser.random() < 0.25:
        pipeline.append(_window(chooser, timed=timed))
    options = {"lateness": "split"} if chooser.random() < 0.3 else {}
    return {"id": f"random-{seed}", "pipeline": pipeline, "options": options}


def _script(chooser: random.Random, *, timed: bool) -> list[dict[str, Any]]:
    """Event time goes on in jumps, with documents up to 15 s behind; `timed`: processing time is set now and then."""
    partitions = chooser.choice([1, 1, 2, 3])
    steps: list[dict[str, Any]] = [{"processingTime": date(0)}] if timed else []
    event = now = 0
    for number in range(chooser.randint(5, 14)):
        drawn = chooser.random()
        partition = {"partition": chooser.randrange(partitions)}
        if timed and drawn < 0.3:
            now += chooser.randint(0, 15)
            steps.append({"processingTime": date(now)})
        elif drawn < 0.4:
            own = partition if chooser.random() < 0.5 else {}
            steps.append({"watermark": date(event + chooser.randint(-10, 10)), **own})
        elif drawn < 0.47:
            steps.append({"idle": True, **partition})
        else:
            event += chooser.randint(-2, 7)
            key = chooser.choice(["a", "b", 1, 1.0, None])
            document = {"ts": date(event + chooser.randint(-15, 3)), "k": key, "v": number}
            document |= {name: chooser.choice(_ODD) for name in ("o", "l") if chooser.random() < 0.8}
            steps.append({"data": document, **partition})
    return steps


def _window(chooser: random.Random, *, timed: bool) -> dict[str, Any]:
    stage: dict[str, Any] = {"pipeline": [*chooser.choice(_GROUPS), _BOUNDS]}
    by_processing_time = timed and chooser.random() < 0.5
    if by_processing_time:
        stage["boundary"] = "processingTime"
    else:
        stage["allowedLateness"] = seconds(chooser.choice([0, 0, 2, 5]))
    if chooser.random() < 0.3:
        stage["outputTime"] = chooser.choice(["earliest", "latest"])
    kind = chooser.choice(["$tumblingWindow", "$hoppingWindow", "$sessionWindow"])
    if kind == "$sessionWindow":
        return {kind: {**stage, "gap": seconds(chooser.choice([2, 5])), "partitionBy": "$k"}}
    stage["interval"] = seconds(chooser.choice([3, 5, 10]))
    if kind == "$hoppingWindow":
        stage["hopSize"] = seconds(chooser.choice([2, 5, 12]))
    if timed and not by_processing_time and chooser.random() < 0.5:
        stage["idleTimeout"] = seconds(chooser.choice([2, 5]))
    return {kind: stage}
