"""The dialect as Atlas documents it: each option of each stage is read and has its effect, or is refused by name with the reason."""

from typing import Any, Final

import pytest

from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.leftout import OPTIONS_LEFT_OUT, STAGES_LEFT_OUT
from tidemark.shared.language.stages import Https, TumblingWindow
from tidemark.shared.planning import DeadLetterHead, plan_processor

SECOND: Final = {"size": 1, "unit": "second"}
CONNECTIONS: Final[dict[str, Any]] = {
    "k": {"type": "kafka", "bootstrapServers": "b:1"},
    "m": {"type": "mongodb", "url": "mongodb://h"},
    "f": {"type": "files", "path": "s3://b/p"},
    "a": {"type": "https", "url": "https://h"},
    "r": {"type": "schemaRegistry", "schemaRegistryUrls": ["http://r"]},
}
TOPIC: Final[dict[str, Any]] = {"connectionName": "k", "topic": "in"}
OUT: Final[dict[str, Any]] = {"$emit": {"connectionName": "k", "topic": "out"}}
GROUP: Final[dict[str, Any]] = {"$group": {"_id": "$a", "n": {"$sum": 1}}}
FOUND: Final[dict[str, Any]] = {"localField": "a", "foreignField": "b", "as": "x"}
LOOKUP: Final[dict[str, Any]] = {"from": {"connectionName": "m", "db": "d", "coll": "c"}, **FOUND}
ASKED: Final[dict[str, Any]] = {"connectionName": "a", "as": "x"}
INTO: Final = {"connectionName": "m", "db": "d", "coll": "c"}
BASES: Final[dict[str, dict[str, Any]]] = {
    "$source": TOPIC,
    "$lookup": LOOKUP,
    "$cachedLookup": {**LOOKUP, "ttl": SECOND},
    "$https": ASKED,
    "$tumblingWindow": {"interval": SECOND, "pipeline": [GROUP]},
    "$hoppingWindow": {"interval": SECOND, "hopSize": SECOND, "pipeline": [GROUP]},
    "$sessionWindow": {"gap": SECOND, "pipeline": [GROUP]},
    "$validate": {"validator": {"a": 1}},
    "$emit": OUT["$emit"],
    "$merge": {"into": INTO},
}
"""What a stage has besides the option that is tried."""
AVRO: Final = {
    "type": "avro",
    "schema": {"type": "record", "name": "A", "fields": []},
    "options": {"autoRegisterSchemas": True},
}
DONE: Final[dict[str, list[dict[str, Any]]]] = {
    "$source": [
        {"topic": ["a", "b"]}, {"timeField": {"$toDate": "$t"}}, {"timeField": {"$dateFromString": {"dateString": "$t"}}},
        {"partitionIdleTimeout": SECOND}, {"tsFieldName": "_ts"}, {"schemaRegistry": {"connectionName": "r"}},
        {"config": {"auto_offset_reset": "smallest", "group_id": "g", "keyFormat": "json", "keyFormatError": "passThrough"}},
        {"config": {"enable_auto_commit": True}},
    ],
    "$lookup": [
        {"let": {"v": "$a"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$$v", "$b"]}}}]}, {"partitionBy": "$a", "parallelism": 4},
    ],
    "$cachedLookup": [{"maxMemUsageBytes": 1000}, {"parallelism": 4}],
    "$https": [
        {"path": "x"}, {"path": {"$concat": ["$a"]}}, {"parameters": {"p": "$a"}}, {"headers": {"h": "$a"}}, {"onError": "Ignore"},
        {"onError": "DLQ"}, {"payload": [{"$project": {"a": 1}}]},
        *({"method": method} for method in ("GET", "POST", "PUT", "PATCH", "DELETE")),
        {"config": {"connectionTimeoutSec": 1, "requestTimeoutSec": 1, "parseJsonStrings": True}},
    ],
    **{
        window: [
            *({"boundary": each} for each in ("eventTime", "processingTime")), {"allowedLateness": SECOND}, {"idleTimeout": SECOND},
            {"offset": {"offsetFromUtc": 1, "unit": "hour"}},
            *({"interval": {"size": 1, "unit": unit}} for unit in ("ms", "second", "minute", "hour", "day")),
            *({"pipeline": [stage]} for stage in ({"$count": "n"}, {"$limit": 1}, {"$sort": {"a": 1}}, {"$match": {"a": 1}})),
            {"pipeline": [{"$lookup": LOOKUP}, GROUP]}, {"pipeline": [GROUP, {"$lookup": LOOKUP}]},
            {"pipeline": [{"$https": ASKED}, GROUP]}, {"pipeline": [GROUP, {"$https": ASKED}]},
        ]
        for window in ("$tumblingWindow", "$hoppingWindow")
    },
    "$sessionWindow": [{"partitionBy": "$a"}, {"boundary": "eventTime"}, {"allowedLateness": SECOND}],
    "$validate": [{"validator": {"$jsonSchema": {"required": ["a"]}}}, *({"validationAction": a} for a in ("discard", "dlq"))],
    "$emit": [
        {"topic": {"$concat": ["$a"]}}, {"schemaRegistry": {"connectionName": "r", "valueSchema": AVRO}},
        *({"config": {"outputFormat": each}} for each in ("relaxedJson", "canonicalJson", "basicJson")),
        *({"config": {"dateFormat": each}} for each in ("default", "ISO8601")),
        *({"config": {"compression_type": each}} for each in ("none", "gzip", "snappy", "lz4", "zstd")),
        *({"config": {"key": "$a", "keyFormat": each}} for each in ("binData", "string", "json", "int", "long")),
        {"config": {"headers": "$h"}}, {"config": {"tombstoneWhen": {"$eq": ["$a", 1]}, "key": "$a"}}, {"config": {"acks": "all"}},
    ],
    "$merge": [
        {"on": ["a", "b"]}, {"parallelism": 3}, {"into": {**INTO, "coll": {"$concat": ["$a"]}}},
        {"let": {"x": "$a"}, "whenMatched": [{"$set": {"y": "$$x"}}]}, {"whenMatched": {"$cond": ["$a", "merge", "delete"]}},
        *({"whenMatched": each} for each in ("replace", "merge", "keepExisting", "fail", "delete")),
        *({"whenNotMatched": each} for each in ("insert", "discard", "fail")),
    ],
}  # fmt: skip
"""What is done: a stage's options beside its base."""
SINKS: Final = ("$emit", "$merge")


def document(stages: list[dict[str, Any]], source: dict[str, Any] = TOPIC, **options: Any) -> dict[str, Any]:
    """A document that reads a topic; without a sink at its end it writes one."""
    end = [] if next(iter(stages[-1] if stages else {"": 0})) in SINKS else [OUT]
    return {"connections": CONNECTIONS, "pipeline": [{"$source": source}, *stages, *end], "options": options}


def with_options(stage: str, options: dict[str, Any]) -> dict[str, Any]:
    """A document with a stage that has these options."""
    found = {**BASES[stage], **options}
    return document([], found) if stage == "$source" else document([{stage: found}])


def refusals(tree: dict[str, Any]) -> list[str]:
    """The errors of a document."""
    with pytest.raises(InvalidDocument) as caught:
        parse(tree)
    return [str(error) for error in caught.value.errors]


@pytest.mark.parametrize("stage", DONE)
def test_what_is_documented_is_read(stage: str) -> None:
    """Each option, alone beside what the stage needs, makes a document that can be planned."""
    for options in DONE[stage]:
        plan_processor(parse(with_options(stage, options)), engine="local")


@pytest.mark.parametrize("name", STAGES_LEFT_OUT)
def test_a_stage_that_is_left_out_says_why(name: str) -> None:
    """At the top, inside a window and inside a lookup: one error, with the same reason."""
    inside = (
        {"$tumblingWindow": {"interval": SECOND, "pipeline": [{name: {}}]}},
        {"$lookup": {**LOOKUP, "pipeline": [{name: {}}]}},
    )
    stages: tuple[dict[str, Any], ...] = ({name: {}}, *inside)
    for stage in stages:
        (error,) = refusals(document([stage]))
        assert error.endswith(f"{name} {STAGES_LEFT_OUT[name]}")


@pytest.mark.parametrize("place", OPTIONS_LEFT_OUT)
def test_an_option_that_is_left_out_says_why(place: str) -> None:
    """One error at its place, with the reason, in place of a list of what else there is."""
    *around, name = place.split(".")
    stage, inner = (around or [""])[0], around[1:]
    tried: Any = {"x": 1}
    if stage.startswith("$"):
        tree = with_options(stage, {inner[0]: {name: tried}} if inner else {name: tried})
    else:
        tree = document([], **{name: tried}) if stage == "options" else {**document([]), name: tried}
    (error,) = refusals(tree)
    assert error.endswith(f"is left out: {OPTIONS_LEFT_OUT[place]}")


def test_requests_inside_a_window_stand_in_front_of_it_or_behind() -> None:
    """A server is asked about documents in front of the window, and about results behind it; between gathering stages it is not."""
    pipelines = ([{"$https": ASKED}, GROUP], [GROUP, {"$https": ASKED}])
    front, behind = ({"$tumblingWindow": {"interval": SECOND, "pipeline": each}} for each in pipelines)
    kinds = (Https, TumblingWindow)
    assert tuple(type(stage) for stage in parse(document([front])).pipeline[1:3]) == kinds
    assert tuple(type(stage) for stage in parse(document([behind])).pipeline[1:3]) == kinds[::-1]
    between = {"$tumblingWindow": {"interval": SECOND, "pipeline": [GROUP, {"$https": ASKED}, {"$sort": {"n": 1}}]}}
    assert "$https stands in front of" in refusals(document([between]))[0]


def test_dead_letters_go_into_a_collection() -> None:
    """As Atlas has it; of a connection of another type it is refused."""
    plan = plan_processor(parse(document([], dlq=INTO)), engine="local")
    assert [type(vertex.head) for vertex in plan.vertices if vertex.id == "dlq"] == [DeadLetterHead]
    assert "expected mongodb" in refusals(document([], dlq={**INTO, "connectionName": "k"}))[0]
    assert "a table takes none" in refusals(document([], dlq={"connectionName": "m", "table": "t"}))[0]
