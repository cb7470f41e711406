"""Processor documents: what they parse to, and how they are refused."""

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.harness.process_cases import read_lines
from tidemark.shared.language.documents import FileDlq, InvalidDocument, KafkaDlq, parse, resolve
from tidemark.shared.language.documents.load import load
from tidemark.shared.language.expressions.ast import FieldPath, Literal
from tidemark.shared.language.schema import Field, Schema
from tidemark.shared.language.schema_json import document_schema
from tidemark.shared.language.stages import (
    BoundedDisorder,
    CachedLookup,
    Compute,
    Connection,
    FileEmit,
    FileSource,
    HoppingWindow,
    InlineTable,
    Join,
    KafkaEmit,
    KafkaSource,
    Merge,
    Percentile,
    Perfect,
    PositionHorizon,
    ScriptSource,
    SessionWindow,
    StartAtOffsets,
    StartAtTime,
    TimeHorizon,
    TumblingWindow,
    Union,
)

EXAMPLE = """
name: departures-zeitgeist
connections:
  flights: {type: kafka, bootstrapServers: "${KAFKA}"}
pipeline:
  - $source: {connectionName: flights, topic: departures, timeField: {$toDate: $scheduled},
              partitionIdleTimeout: {size: 5, unit: second}, schema: {origin: string, delay: "int?"}, recordId: $id}
  - $match: {origin: {$in: [JFK, LGA, EWR]}}
  - $tumblingWindow:
      interval: {size: 1, unit: hour}
      allowedLateness: {size: 0, unit: second}
      pipeline: [{$group: {_id: $origin, departures: {$sum: 1}}}]
  - $compute: {class: "tidemark.deploy.pipelines.zeitgeist:SpikeAndDip", key: $_id}
  - $emit: {connectionName: flights, topic: alerts}
options: {dlq: {connectionName: flights, topic: departures.dlq}, checkpoint: {interval: {size: 1, unit: second}}}
"""
DOCUMENTS: dict[str, Any] = {"$source": {"documents": []}}


def _only(stage: dict[str, Any]) -> Any:
    return parse({"pipeline": [DOCUMENTS, stage]}).pipeline[1]


def _source(options: dict[str, Any]) -> Any:
    return parse({"pipeline": [{"$source": options}]}).source


def _errors(document: Any) -> list[str]:
    with pytest.raises(InvalidDocument) as refused:
        parse(document)
    return [str(e) for e in refused.value.errors]


def test_example_of_the_language() -> None:
    """The example of the reference parses to typed stages."""
    processor = parse(EXAMPLE)
    source, _, window, compute, emit = processor.pipeline
    assert processor.name == "departures-zeitgeist"
    assert isinstance(source, KafkaSource)
    assert (source.topics, source.partition_idle_timeout_ms) == (("departures",), 5000)
    assert source.schema == Schema((Field("origin", "string", optional=False), Field("delay", "int", optional=True)))
    assert source.record_id == FieldPath(("id",))
    assert isinstance(window, TumblingWindow)
    assert (window.interval_ms, window.allowed_lateness_ms) == (3_600_000, 0)
    assert isinstance(compute, Compute)
    assert (compute.class_, compute.order) == ("tidemark.deploy.pipelines.zeitgeist:SpikeAndDip", "eventTime")
    assert isinstance(emit, KafkaEmit)
    assert emit.topic == Literal("alerts")
    assert processor.options.dlq == KafkaDlq("flights", "departures.dlq")
    assert processor.options.checkpoint_interval_ms == 1000
    assert processor.sinks == (emit,)


def test_json_and_yaml_and_trees_are_one() -> None:
    """The same document as YAML, as JSON and as a tree gives the same processor."""
    tree = {"pipeline": [DOCUMENTS, {"$match": {"a": {"$gt": 1}}}]}
    yaml = "pipeline:\n- $source: {documents: []}\n- $match: {a: {$gt: 1}}\n"
    assert repr(parse(tree)) == repr(parse(json.dumps(tree))) == repr(parse(yaml))


def test_yaml_has_the_types_of_json() -> None:
    """`on` and `yes` are strings, dates stay text, quoted numbers are strings, floats and nulls are themselves."""
    text = "pipeline: [{$source: {documents: [{on: yes, d: 2024-01-01, q: '1', f: 1.5, n: null, e: 1e3, i: -7}]}}]"
    (document,) = _only_documents(text)
    assert document == {"on": "yes", "d": "2024-01-01", "q": "1", "f": 1.5, "n": None, "e": 1000.0, "i": -7}


def _only_documents(text: str) -> Any:
    source: Any = parse(text).source
    return source.documents


def test_all_errors_at_once_with_lines() -> None:
    """Every error is there, each with its place, its line, and the nearest name."""
    text = EXAMPLE.replace("unit: hour", "unit: hours").replace("partitionIdleTimeout", "partitionIdelTimeout")
    found = _errors(text.replace("$compute", "$computee"))
    assert len(found) == 3
    assert found[0].startswith("pipeline[0].$source.partitionIdelTimeout (line 7): ")
    assert "did you mean partitionIdleTimeout?" in found[0]
    assert found[1].startswith("pipeline[2].$tumblingWindow.interval.unit (line 10): unknown value 'hours'")
    assert "Accepted: ms, second, minute, hour, day." in found[1]
    assert "did you mean $compute?" in found[2]


def test_sources() -> None:
    """Where a Kafka source starts and ends, files, and scripts have their options."""
    kafka = {"connectionName": "k", "topic": ["a", "b"], "until": "latest"}
    source = _source({**kafka, "config": {"startAt": {"$date": "1970-01-01T00:00:01Z"}, "keyFormat": "json"}})
    assert (source.topics, source.start_at, source.until, source.key_format) == (
        ("a", "b"), StartAtTime(1000), "latest", "json",
    )  # fmt: skip
    offsets = _source({**kafka, "config": {"startAt": {"1": 5, "0": 3}}, "until": {"0": 9}})
    assert (offsets.start_at, offsets.until) == (StartAtOffsets(((0, 3), (1, 5))), StartAtOffsets(((0, 9),)))
    files = _source({"path": "in/*.json", "format": "json", "ordered": False, "follow": True})
    assert files == FileSource(
        path="pipeline[0].$source", path_glob="in/*.json", format="json", ordered=False, follow=True
    )
    script = _source(
        {
            "script": [
                {"data": {"a": 1}, "partition": 2},
                {"idle": True},
                {"watermark": {"$date": "1970-01-01T00:00:00Z"}},
            ]
        }
    )
    assert isinstance(script, ScriptSource)
    assert len(script.script) == 3


@pytest.mark.parametrize(
    ("tree", "strategy"),
    [
        ({"strategy": "boundedDisorder", "maxDelay": {"size": 2, "unit": "second"}}, BoundedDisorder(2000)),
        (
            {"strategy": "percentile", "lateFraction": 0.01, "window": {"size": 1, "unit": "minute"}},
            Percentile(0.01, 60_000),
        ),
        ({"strategy": "perfect"}, Perfect()),
    ],
)
def test_watermark_strategies(tree: dict[str, Any], strategy: object) -> None:
    """Each strategy takes its own options."""
    assert _source({"documents": [], "watermark": tree}).watermark == strategy


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"follow": True}, ""),
        ({"connectionName": None}, "format iceberg needs connectionName"),
        ({"path": "/"}, "names the table: namespace/table"),
        ({"path": "shop/*"}, "is no glob"),
        ({"follow": True, "ordered": False}, "leave ordered away"),
    ],
)
def test_a_table_of_a_catalog_is_named(changed: dict[str, Any], reason: str) -> None:
    """D20: one table, of a connection that knows it."""
    tree = {"connectionName": "lake", "path": "shop/orders", "format": "iceberg"} | changed
    source = {name: value for name, value in tree.items() if value is not None}
    lake = {"type": "files", "path": "/srv", "catalog": {"type": "sql", "uri": "sqlite:////srv/c.db"}}
    try:
        parse({"pipeline": [{"$source": source}], "connections": {"lake": lake}})
    except InvalidDocument as refused:
        said = str(refused)
    else:
        said = ""
    assert reason in said
    assert bool(reason) == bool(said)


PAST: dict[str, Any] = {"path": "past/*.parquet", "format": "parquet", "timeField": "$at"}
LIVE: dict[str, Any] = {"connectionName": "k", "topic": "t", "timeField": "$at"}
SWITCH: dict[str, Any] = {"$date": "1970-01-01T00:01:00Z"}


def test_a_history_is_a_source_and_a_union() -> None:
    """D16: each part knows its side of the switch; the topic is read from there, or from where the document says."""
    past, union = parse(_pipeline({"history": PAST, "then": LIVE, "switchAt": SWITCH})).pipeline
    assert isinstance(past, FileSource)
    assert (past.path, past.name, past.from_ms, past.before_ms) == (
        "pipeline[0].$source.history",
        "$source",
        None,
        60_000,
    )
    assert isinstance(union, Union)
    ((live,),) = union.pipelines
    assert isinstance(live, KafkaSource)
    assert (live.path, live.from_ms, live.before_ms) == ("pipeline[0].$source.then", 60_000, None)
    assert live.start_at == StartAtTime(60_000)
    early = {**LIVE, "config": {"startAt": "earliest"}}
    _, union = parse(_pipeline({"history": {**LIVE, "until": "latest"}, "then": early, "switchAt": SWITCH})).pipeline
    assert isinstance(union, Union)
    ((live,),) = union.pipelines
    assert isinstance(live, KafkaSource)
    assert live.start_at == "earliest"


def _pipeline(source: dict[str, Any]) -> dict[str, Any]:
    return {"pipeline": [{"$source": source}], "connections": {"k": {"type": "kafka", "bootstrapServers": "x"}}}


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        ({"switchAt": None}, "", "needs switchAt"),
        ({"then": None}, "", "needs then"),
        ({"then": 7}, ".then", ""),
        ({"timeField": "$at"}, ".timeField", "unknown"),
        ({"history": {**PAST, "follow": True}}, ".history", "follow: false"),
        ({"history": LIVE}, ".history", "give until"),
        ({"history": {"path": "a", "format": "json"}}, ".history", "timeField"),
        ({"history": {"connectionName": "k"}}, ".history", "needs topic"),
        ({"then": {**LIVE, "config": {"startAt": "latest"}}}, ".then.config", "latest"),
    ],
)
def test_histories_are_refused_with_the_place(change: dict[str, Any], place: str, said: str) -> None:
    """What has no end, no event time, or would lose records between the two. A change to None takes the option away."""
    source = {"history": PAST, "then": LIVE, "switchAt": SWITCH, **change}
    found = _errors(json.dumps(_pipeline({name: value for name, value in source.items() if value is not None})))
    assert len(found) == 1, found
    assert found[0].startswith(f"pipeline[0].$source{place}")
    assert said in found[0]


def test_watermark_strategies_refuse_options_of_others() -> None:
    """An option of another strategy is an error."""
    wrong = {"strategy": "maxSeen", "maxDelay": {"size": 2, "unit": "second"}}
    assert "maxDelay" in _errors({"pipeline": [{"$source": {"documents": [], "watermark": wrong}}]})[0]


def test_horizons_of_record_ids() -> None:
    """A horizon is a duration of event time or a count of positions."""
    ids = {"documents": [], "recordId": "$id"}
    assert _source({**ids, "recordIdHorizon": {"size": 1, "unit": "day"}}).record_id_horizon == TimeHorizon(86_400_000)
    assert _source(
        {**ids, "recordIdHorizon": {"positions": 7}, "recordIdScope": "split"}
    ).record_id_horizon == PositionHorizon(7)


def test_positions_of_record_ids_are_of_one_split() -> None:
    """They say where repeats are looked for, with a warning unless the document says it; for all of a source they are an error."""
    ids = {"documents": [], "recordId": "$id", "recordIdHorizon": {"positions": 7}}
    assert _source(ids).record_id_scope == "split"
    assert _source({"documents": [], "recordId": "$id"}).record_id_scope == "source"
    assert "counted in one split" in _errors({"pipeline": [{"$source": {**ids, "recordIdScope": "source"}}]})[0]


def test_windows() -> None:
    """Hopping and session windows have their options; processing time has no lateness."""
    inner: list[Any] = [{"$group": {"_id": None, "n": {"$count": {}}}}]
    minute = {"size": 1, "unit": "minute"}
    hop = _only(
        {"$hoppingWindow": {
            "interval": minute, "hopSize": {"size": 10, "unit": "second"}, "pipeline": inner, "idleTimeout": minute,
            "offset": {"offsetFromUtc": 5, "unit": "second"}, "outputTime": "latest",
        }}
    )  # fmt: skip
    assert isinstance(hop, HoppingWindow)
    assert (hop.interval_ms, hop.hop_size_ms, hop.offset_ms, hop.idle_timeout_ms) == (60_000, 10_000, 5000, 60_000)
    assert (hop.allowed_lateness_ms, hop.output_time) == (3000, "latest")
    session = _only({"$sessionWindow": {"partitionBy": "$u", "gap": minute, "pipeline": inner, "allowedLateness": 0}})
    assert isinstance(session, SessionWindow)
    assert (session.gap_ms, session.partition_by, session.allowed_lateness_ms) == (60_000, FieldPath(("u",)), 0)
    processing = _only({"$tumblingWindow": {"interval": minute, "boundary": "processingTime", "pipeline": inner}})
    assert (processing.boundary, processing.allowed_lateness_ms) == ("processingTime", 0)


def test_joins_unions_and_lookups() -> None:
    """Inner pipelines are parsed, with their own places."""
    within = {"before": {"size": 1, "unit": "minute"}, "after": {"size": 2, "unit": "minute"}}
    join = _only(
        {
            "$join": {
                "from": [DOCUMENTS, {"$match": {"a": 1}}],
                "leftKey": "$k",
                "rightKey": "$k",
                "within": within,
                "as": "r",
            }
        }
    )
    assert isinstance(join, Join)
    assert (join.before_ms, join.after_ms, join.type, join.as_) == (60_000, 120_000, "inner", "r")
    assert join.from_[1].path == "pipeline[1].$join.from[1].$match"
    union = _only({"$union": {"pipelines": [[DOCUMENTS], [DOCUMENTS]]}})
    assert isinstance(union, Union)
    assert len(union.pipelines) == 2
    lookup = _only(
        {"$cachedLookup": {
            "ttl": {"size": 1, "unit": "minute"}, "from": {"documents": [{"a": 1}]}, "let": {"x": "$b"},
            "pipeline": [{"$match": {"$expr": {"$eq": ["$a", "$$x"]}}}], "as": "found.here",
        }}
    )  # fmt: skip
    assert isinstance(lookup, CachedLookup)
    assert (lookup.ttl_ms, lookup.from_, lookup.as_) == (60_000, InlineTable(({"a": 1},)), ("found", "here"))


def test_joins_need_a_source_first() -> None:
    """A joined pipeline begins with a source, too."""
    join = {"from": [{"$match": {}}], "leftKey": "$k", "rightKey": "$k", "within": {}, "as": "r"}
    assert "pipeline[1].$join.from[0]" in _errors({"pipeline": [DOCUMENTS, {"$join": join}]})[0]


def test_sinks_and_dead_letters() -> None:
    """Files and tables take what they need."""
    files = _only({"$emit": {"path": "out", "format": "parquet", "partitionBy": ["a.b", "c"]}})
    assert files == FileEmit(path="pipeline[1].$emit", file_path="out", format="parquet", partition_by=("a.b", "c"))
    assert _only({"$emit": {"path": "out", "format": "delta", "partitionBy": ["a.b", "c"]}}) == files
    merge = _only(
        {"$merge": {"into": {"connectionName": "s", "db": "d", "coll": "c"}, "on": "k", "whenMatched": "delete"}}
    )
    assert merge == Merge(path="pipeline[1].$merge", connection_name="s", table="d.c", on=("k",), when_matched="delete")
    several = _only({"$merge": {"into": {"connectionName": "s", "table": "t"}, "parallelism": 4}})
    assert several == Merge(path="pipeline[1].$merge", connection_name="s", table="t")
    emit = _only({"$emit": {"connectionName": "s", "db": "d", "coll": "c"}})
    assert emit == Merge(path="pipeline[1].$emit", connection_name="s", table="d.c", when_matched="replace")
    assert parse({"pipeline": [DOCUMENTS], "options": {"dlq": {"path": "dead"}}}).options.dlq == FileDlq("dead")


def test_a_table_takes_no_dead_letters() -> None:
    """No sink could write them there: it is said when the document is read, and not by a task."""
    tables = {"s": {"type": "sql", "url": "sqlite:///t.db"}}
    (error,) = _errors({"pipeline": [DOCUMENTS], "options": {"dlq": {"connectionName": "s", "table": "t"}}})
    assert "dead letters go to a topic" in error
    into = {"connectionName": "s", "db": "d", "coll": "c"}
    (error,) = _errors({"connections": tables, "pipeline": [DOCUMENTS], "options": {"dlq": into}})
    assert "the connection s is of type sql, expected mongodb" in error


@pytest.mark.parametrize(("acks", "good"), [("all", True), (-1, True), (0, True), (1, True), (2, False), (True, False)])
def test_acks_are_taken_as_atlas_has_them(acks: Any, good: bool) -> None:
    """`acks` has no effect here, and what Atlas takes is no error."""
    emit = {"$emit": {"connectionName": "k", "topic": "t", "config": {"acks": acks}}}
    if good:
        assert parse({"pipeline": [DOCUMENTS, emit]}).sinks
    else:
        assert "Accepted: all, -1, 0, 1" in _errors({"pipeline": [DOCUMENTS, emit]})[0]


def test_references_to_the_environment_stand_in_connections_only() -> None:
    """`${NAME}` elsewhere is an error; in connections it is replaced when asked for, and has to be set."""
    assert "${TOPIC}" in _errors({"pipeline": [{"$source": {"connectionName": "k", "topic": "${TOPIC}"}}]})[0]
    connection = parse(EXAMPLE).connections["flights"]
    assert resolve(connection, {"KAFKA": "h:1"}).settings == {"bootstrapServers": "h:1"}
    with pytest.raises(InvalidDocument, match=r"connections\.flights\.bootstrapServers.*KAFKA"):
        resolve(connection, {})


@pytest.mark.parametrize("urls", ["${REGISTRY}", ["${REGISTRY}"], ["http://a", "http://${REGISTRY}/b"]])
def test_references_are_replaced_in_every_form_of_a_setting(urls: Any) -> None:
    """Where an option takes one value or a list, a reference stands in either."""
    settings = {"type": "schemaRegistry", "schemaRegistryUrls": urls}
    connection = parse(
        {"connections": {"r": settings}, "pipeline": [DOCUMENTS, {"$emit": {"path": "out", "format": "json"}}]}
    ).connections["r"]
    found = resolve(connection, {"REGISTRY": "here"}).settings["schemaRegistryUrls"]
    assert found == [each.replace("${REGISTRY}", "here") for each in ([urls] if isinstance(urls, str) else urls)]
    with pytest.raises(InvalidDocument, match=r"connections\.r\.schemaRegistryUrls\[\d\].*REGISTRY"):
        resolve(connection, {})


def test_connections_are_known_and_of_the_right_type() -> None:
    """With a registry's connections given, unknown names and wrong types are errors."""
    registry = {"db": Connection("db", "sql", {"url": "sqlite:///x"})}
    with pytest.raises(InvalidDocument, match="of type sql, expected kafka"):
        parse(EXAMPLE.replace("topic: alerts", "topic: alerts").replace("{connectionName: flights, topic: alerts}",
              "{connectionName: db, topic: alerts}"), known_connections=registry)  # fmt: skip
    with pytest.raises(InvalidDocument, match="unknown connection flihgts"):
        parse(EXAMPLE.replace("{connectionName: flights, topic: alerts}", "{connectionName: flihgts, topic: alerts}"),
              known_connections=registry)  # fmt: skip
    assert parse(EXAMPLE, known_connections=registry).name == "departures-zeitgeist"


def test_own_connections_are_of_the_right_type_without_a_registry() -> None:
    """What the document says of a connection counts always, where its name stands; other names may be the registry's."""
    own = {"k": {"type": "kafka", "bootstrapServers": "x:1"}}
    table = {"connectionName": "k", "table": "t"}
    wrong = [
        DOCUMENTS,
        {"$lookup": {"from": table, "localField": "a", "foreignField": "b", "as": "c"}},
        {"$merge": {"into": table}},
    ]
    assert [error.partition(":")[0] for error in _errors({"connections": own, "pipeline": wrong})] == [
        "pipeline[1].$lookup.from.connectionName",
        "pipeline[2].$merge.into.connectionName",
    ]
    assert parse({"pipeline": wrong}).sinks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty"]),
        ("a: [", ["not YAML", "line"]),
        ("- a", ["an object"]),
        ("pipeline: !!python/object:os.system x", ["tag", "python"]),
        ("pipeline: !x [a]", ["tag"]),
        ('{"name": "a", "name": "b"}', ["name", "written twice"]),
        ("pipeline: !x y", ["tag"]),
        ("name: a\nname: b", ["written twice", "line 2"]),
        ("name: a", ["needs pipeline"]),
        ("name: 'a b'\npipeline: [{$source: {documents: []}}]", ["name", "letters"]),
        ("[" * 1000, ["line 1", "too deeply", "300 levels"]),
    ],
)
def test_unreadable_documents(text: str, words: list[str]) -> None:
    """What is no document is refused with a reason."""
    found = "\n".join(_errors(text))
    assert all(word.lower() in found.lower() for word in words), found


def test_deep_expressions_are_refused() -> None:
    """Expressions nest at most 100 deep, queries too."""
    deep: Any = "$a"
    for _ in range(120):
        deep = {"$abs": deep}
    assert "100 deep" in _errors({"pipeline": [DOCUMENTS, {"$project": {"x": deep}}]})[0]
    query: Any = {"a": 1}
    for _ in range(120):
        query = {"$and": [query]}
    assert "100 deep" in _errors({"pipeline": [DOCUMENTS, {"$match": query}]})[0]


def test_json_schema_accepts_the_example_and_refuses_misspellings() -> None:
    """The generated schema is a valid one, accepts the example, and refuses unknown stages, options and operators."""
    schema = document_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors({"pipeline": [DOCUMENTS, {"$project": {"a": {"$concat": ["$b", "c"]}}}]})) == []
    wrongs: list[dict[str, Any]] = [
        {"$projct": {"a": 1}},
        {"$project": {"a": {"$concatt": []}}},
        {"$limit": 1},
        {"$validate": {}},
    ]
    for wrong in wrongs:
        assert list(validator.iter_errors({"pipeline": [DOCUMENTS, wrong]})), wrong


def test_json_schema_accepts_every_example() -> None:
    """What runs is right for an editor, too: the example pipelines, and every case of whole pipelines that does not fail."""
    validator = jsonschema.Draft202012Validator(document_schema())
    root = Path(__file__).parents[2]
    examples = [load(path.read_text("utf-8"))[0] for path in sorted((root / "deploy" / "pipelines").glob("*/*.yaml"))]
    cases = [case for case in read_lines() if "error" not in case]
    fields = ("name", "connections", "pipeline", "options")
    trees = examples + [{name: case[name] for name in fields if name in case} for case in cases]
    assert len(examples) > 5
    assert [error.message for tree in trees for error in validator.iter_errors(tree)] == []
