"""Atlas' dialect: what published pipelines write is read, or refused by name with the reason."""

from typing import Any

import pytest

from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.documents.model import connection_needs
from tidemark.shared.language.expressions.ast import Call, FieldPath, Literal, Variable
from tidemark.shared.language.stages import (
    AddFields,
    CachedLookup,
    ChangeStreamSource,
    Connection,
    FileEmit,
    KafkaSource,
    Lookup,
    Match,
    Merge,
    SampleSource,
    Stage,
    TumblingWindow,
    Unset,
)
from tidemark.shared.model.values import Timestamp

TOPIC = {"$source": {"connectionName": "k", "topic": "t"}}
INLINE: dict[str, Any] = {
    "from": {"documents": [{"d": 1, "name": "one"}]},
    "localField": "d",
    "foreignField": "d",
    "as": "m",
}
SECOND = {"size": 1, "unit": "second"}


def stages_of(*trees: Any) -> tuple[Stage, ...]:
    """The parsed stages of a pipeline."""
    return parse({"pipeline": list(trees)}).pipeline


def errors_of(*trees: Any) -> list[str]:
    """Its errors, a text each."""
    with pytest.raises(InvalidDocument) as caught:
        parse({"pipeline": list(trees)})
    return [str(error) for error in caught.value.errors]


TOKEN = {"_data": "826553F100000000032B0429296E04"}


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ({"db": "shop", "coll": "orders"}, {"db": "shop", "coll": ("orders",)}),
        ({"db": "shop", "coll": ["a", "b"], "initialSync": {"enable": False}}, {"coll": ("a", "b")}),
        ({"db": "shop", "initialSync": {"enable": True}}, {"coll": (), "initial_sync": True}),
        ({"db": "shop", "config": {"fullDocument": "whenAvailable"}}, {"coll": (), "full_document": "whenAvailable"}),
        ({"config": {"fullDocumentBeforeChange": "required"}}, {"db": None, "full_document_before_change": "required"}),
        (
            {"readPreference": "nearest", "readPreferenceTags": [{"dc": "a"}]},
            {"db": None, "read_preference": "nearest"},
        ),
        ({"config": {"startAfter": TOKEN, "maxAwaitTimeMS": 5}}, {"start_after": TOKEN, "max_await_ms": 5}),
        (
            {"config": {"startAtOperationTime": {"$timestamp": {"t": 5, "i": 2}}}},
            {"start_at_operation_time": Timestamp(5, 2)},
        ),
        (
            {"config": {"startAtOperationTime": {"$date": "1970-01-01T00:00:07.900Z"}}},
            {"start_at_operation_time": Timestamp(7, 0)},
        ),
        (
            {"db": "shop", "config": {"pipeline": [{"$match": {"fullDocument.n": {"$gt": {"$numberLong": "5"}}}}]}},
            {"server_stages": ({"$match": {"fullDocument.n": {"$gt": 5}}},)},
        ),
    ],
)
def test_a_change_stream_has_the_words_of_atlas(source: dict[str, Any], meant: dict[str, Any]) -> None:
    """A collection, a list of them, a database, a cluster; where it begins; what events have."""
    (stage,) = stages_of({"$source": {"connectionName": "a", **source}})
    assert isinstance(stage, ChangeStreamSource)
    assert {name: getattr(stage, name) for name in meant} == meant


@pytest.mark.parametrize("given", [{}, {"config": {}}, {"config": {"pipeline": []}}, {"timeField": "$wallTime"}])
def test_a_connection_of_mongodb_alone_is_a_cluster(given: dict[str, Any]) -> None:
    """The connection's type tells, whether it stands in the document or in the registry."""
    pipeline = [{"$source": {"connectionName": "m", **given}}]
    connections = {"m": {"type": "mongodb", "url": "mongodb://h/"}}
    kept = {"m": Connection("m", "mongodb", {"url": "mongodb://h/"})}
    for processor in (
        parse({"pipeline": pipeline, "connections": connections}),
        parse({"pipeline": pipeline}, known_connections=kept),
    ):
        (stage,) = processor.pipeline
        assert isinstance(stage, ChangeStreamSource)
        assert stage.db is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"coll": "orders"}, "$source needs db"),
        ({"db": "shop", "coll": []}, "$source.coll: expected at least one"),
        ({"initialSync": {"enable": True}}, "$source needs db"),
        (
            {"db": "shop", "initialSync": {"enable": True}, "config": {"pipeline": [{"$match": {}}]}},
            "$source.config.pipeline: the server carries these stages out on changes, and not on documents",
        ),
        (
            {"db": "shop", "initialSync": {"enable": True}, "config": {"startAfter": TOKEN}},
            "$source.config.startAfter: initialSync begins with what is there now",
        ),
        (
            {"db": "shop", "initialSync": {"enable": True}, "config": {"startAtOperationTime": {"$date": 5000}}},
            "$source.config.startAtOperationTime: initialSync begins with what is there now",
        ),
        (
            {"db": "shop", "config": {"resumeAfter": TOKEN}},
            "resumeAfter of config is left out: startAfter does the same",
        ),
        ({"config": {"startAfter": TOKEN, "startAtOperationTime": {"$timestamp": {"t": 5, "i": 2}}}}, "two beginnings"),
        (
            {"config": {"startAfter": {"data": "x"}}},
            "$source.config.startAfter: expected a resume token, {_data: text}",
        ),
        ({"config": {"startAtOperationTime": 5}}, "startAtOperationTime: expected {$timestamp: {t, i}} or a date"),
        (
            {"db": "shop", "config": {"pipeline": [{"$group": {}}]}},
            "pipeline[0]: expected one stage of $addFields, $match",
        ),
        ({"db": "shop", "readPreferenceTags": [{"dc": "a"}]}, "readPreferenceTags: primary takes no tags"),
        ({"db": "shop", "topic": "t", "path": "p"}, "a source is one of Kafka (topic)"),
    ],
)
def test_what_a_change_stream_does_not_take(source: dict[str, Any], reason: str) -> None:
    """One error, at its place."""
    assert reason in errors_of({"$source": {"connectionName": "a", **source}})[0]


def test_full_documents_alone_of_updates_without_are_warned_of() -> None:
    """They would all be dead letters."""
    source = {"connectionName": "a", "db": "shop", "config": {"fullDocumentOnly": True}}
    assert "updates have no fullDocument" in str(parse({"pipeline": [{"$source": source}]}).warnings[0])


def test_parallelism_of_a_sync_warns() -> None:
    """It is taken, and one reader reads."""
    source = {"connectionName": "a", "db": "shop", "initialSync": {"enable": True, "parallelism": 4}}
    (warning,) = parse({"pipeline": [{"$source": source}]}).warnings
    assert "$source.initialSync.parallelism: is without effect" in str(warning)
    source["initialSync"] = {"enable": False, "parallelism": 4}
    assert parse({"pipeline": [{"$source": source}]}).warnings == ()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"initialSync": {"enabled": True}}, "unknown option enabled of initialSync"),
        ({"db": "shop"}, "db of $source is left out: a publication has its tables"),
        ({"coll": ["orders"]}, "coll of $source is left out: a publication has its tables"),
    ],
)
def test_options_of_change_streams_are_refused_with_a_publication(options: dict[str, Any], reason: str) -> None:
    """Who comes with a change stream learns what PostgreSQL's changes do in its place."""
    (error,) = errors_of({"$source": {"connectionName": "a", "publication": "p", "slot": "s", **options}})
    assert reason in error


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        ({"$source": {"connectionName": "a", "stream": "clicks"}}, "$source.stream: Kinesis is no source here"),
        ({"$emit": {"connectionName": "a", "db": "d", "coll": "c", "timeseries": {}}}, "$emit.timeseries: a time series"),
        ({"$emit": {"connectionName": "a", "stream": "clicks"}}, "$emit.stream: Kinesis is no target here"),
        ({"$iceberg": {"connectionName": "a"}}, "$iceberg is not supported: use $emit with path and format iceberg"),
        ({"$externalFunction": {}}, "$externalFunction is not supported: write a $compute"),
    ],
)  # fmt: skip
def test_what_stays_out_is_refused_by_name(stage: dict[str, Any], reason: str) -> None:
    """The first error names the stage or option, and the reason or what to use."""
    trees = [stage] if "$source" in stage else [TOPIC, stage]
    assert reason in errors_of(*trees)[0]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({}, "takes an object with at least one field"),
        ({"kind": 1}, "expected stream. and a name or a path, such as stream.kind, found 'kind'"),
        ({"stream.": 1}, "expected stream. and a name"),
        ({"stream.a..b": 1}, "expected stream. and a name"),
        ({"stream.a.$b": 1}, "expected stream. and a name"),
        ({"stream.a": 1, "stream.a.b": 1}, "stream.a.b: the stage sets this, or what is around it, already"),
        ({"stream.a.b.c": 1, "stream.a.b": 1}, "stream.a.b: the stage sets this, or what is around it, already"),
        ({"stream.source.topic": 1}, "stream.source.topic is what the engine tells of a document"),
        ({"stream" + ".a" * 21: 1}, "a path has at most 20 names, found 21"),
        ({"stream.source": 1}, "stream.source is what the engine tells of a document"),
        ({"stream.window": 1}, "stream.window is what the engine tells of a document"),
        ({"stream.a": {"$nope": 1}}, "unknown expression operator $nope"),
    ],
)
def test_metadata_that_cannot_be_set_is_refused(told: dict[str, Any], reason: str) -> None:
    """The error names what a name has to be, or what to do."""
    assert reason in errors_of(TOPIC, {"$setStreamMeta": told})[0]


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        ({"$set": {"a": {"$createUUID": {"x": 1}}}}, "$createUUID takes no arguments"),
        ({"$set": {"a": {"$map": {"input": "$b", "in": {"$createUUID": {}}}}}}, "makes one id for a document"),
        ({"$set": {"a.b": {"$createUUID": {}}}}, "makes one id for a document"),
        ({"$project": {"a": {"b": {"$createUUID": {}}}}}, "makes one id for a document"),
        ({"$redact": {"$cond": [{"$createUUID": {}}, "$$KEEP", "$$PRUNE"]}}, "here is none"),
        ({"$compute": {"class": "a:B", "key": {"$createUUID": {}}}}, "here is none"),
        ({"$tumblingWindow": {"interval": {"size": 1, "unit": "day"}, "pipeline": [{"$group": {"_id": {"$createUUID": {}}}}]}}, "is none"),
        ({"$lookup": {"from": {"documents": []}, "as": "b", "pipeline": [{"$set": {"a": {"$createUUID": {}}}}]}}, "here is none"),
    ],
)  # fmt: skip
def test_an_id_is_refused_where_it_would_not_be_of_one_record(stage: dict[str, Any], reason: str) -> None:
    """Several documents would share it, or a replay would change it."""
    assert reason in errors_of(TOPIC, stage)[0]


SECOND = {"size": 1, "unit": "second"}
OTHER = {"$source": {"connectionName": "a", "topic": "u"}}


@pytest.mark.parametrize(
    "between",
    [
        {"$tumblingWindow": {"interval": SECOND, "pipeline": [{"$count": "n"}]}},
        {"$join": {"from": [OTHER], "leftKey": "$k", "rightKey": "$k", "as": "o", "within": {"before": SECOND, "after": SECOND}}},
        {"$match": {"k": 1}},
    ],
)  # fmt: skip
def test_metadata_is_known_up_to_what_makes_new_documents(between: dict[str, Any]) -> None:
    """It would be missing for ever, without a word; behind a stage that passes documents on it is known."""
    told = {"$setStreamMeta": {"stream.kind": "$kind"}}, between, {"$set": {"a": {"$meta": "stream.kind"}}}
    if "$match" in between:
        stages_of(TOPIC, *told)
        return
    (error,) = errors_of(TOPIC, *told)
    assert "unknown metadata 'stream.kind': no $setStreamMeta sets it" in error


def test_metadata_of_change_streams_is_refused_by_name() -> None:
    """It would be missing for ever, without a word."""
    (error,) = errors_of(TOPIC, {"$set": {"a": {"$meta": "stream.source.operationType"}}})
    assert "is a field of change events: use $operationType, $ns.db and $ns.coll" in error


def test_a_connection_alone_is_a_sample_stream() -> None:
    """Atlas' built-in connection needs no entry; another one has to be of type sample."""
    (stage,) = stages_of({"$source": {"connectionName": "sample_stream_solar"}})
    assert isinstance(stage, SampleSource)
    pipeline = [{"$source": {"connectionName": "mine", "timeField": {"$toDate": "$timestamp"}}}]
    parse({"pipeline": pipeline, "connections": {"mine": {"type": "sample"}}})
    with pytest.raises(InvalidDocument, match="the connection mine is of type files, expected sample"):
        parse({"pipeline": pipeline, "connections": {"mine": {"type": "files", "path": "x"}}})


def test_a_source_with_an_option_of_a_topic_still_lacks_the_topic() -> None:
    """A forgotten topic is no sample stream."""
    assert "$source needs topic" in errors_of({"$source": {"connectionName": "k", "config": {"startAt": "latest"}}})[0]


@pytest.mark.parametrize(
    ("word", "meant"),
    [("smallest", "earliest"), ("beginning", "earliest"), ("largest", "latest"), ("end", "latest"), ("latest", "latest")],
)  # fmt: skip
def test_words_of_clients_for_where_to_begin(word: str, meant: str) -> None:
    """auto_offset_reset takes the words that Kafka's clients take."""
    (stage,) = stages_of({"$source": {"connectionName": "k", "topic": "t", "config": {"auto_offset_reset": word}}})
    assert isinstance(stage, KafkaSource)
    assert stage.start_at == meant


def test_current_date_and_expr_are_expressions() -> None:
    """$currentDate is the record's arrival, which a repeat does not change; $expr is what it holds."""
    stage = stages_of(TOPIC, {"$set": {"a": {"$currentDate": {}}, "b": {"$expr": {"$gt": ["$x", 1]}}}})[1]
    assert isinstance(stage, AddFields)
    (_, a), (_, b) = stage.fields.fields
    assert a.expr == Variable("NOW", ())  # type: ignore[union-attr]
    assert isinstance(b.expr, Call)  # type: ignore[union-attr]
    assert "$currentDate takes no arguments" in errors_of(TOPIC, {"$set": {"a": {"$currentDate": 1}}})[0]


def merge_of(**options: Any) -> Merge:
    """The parsed $merge."""
    stage = stages_of(TOPIC, {"$merge": {"into": {"connectionName": "s", "coll": "c"}, **options}})[1]
    assert isinstance(stage, Merge)
    return stage


def test_merge_into_what_expressions_name() -> None:
    """Db and coll may be expressions, a field's path alone too; what is constant stays a name."""
    assert merge_of(into={"connectionName": "s", "db": "d", "coll": "$kind"}).table == Call(
        "$concat", (Literal("d"), Literal("."), FieldPath(("kind",))), "pipeline[1].$merge.into"
    )
    assert merge_of(into={"connectionName": "s", "table": {"$concat": ["a_", "$kind"]}}).is_constant is False
    assert merge_of(into={"connectionName": "s", "db": "d", "coll": "c"}).table == "d.c"


def test_merge_by_expressions_and_pipelines() -> None:
    """WhenMatched takes a word, an expression or a pipeline with variables; without let it is $$new."""
    assert merge_of(whenMatched={"$literal": "delete"}).when_matched == "delete"
    assert merge_of(whenMatched={"$cond": ["$gone", "delete", "merge"]}).is_constant is False
    assert merge_of(whenNotMatched={"$cond": ["$gone", "discard", "insert"]}).is_constant is False
    piped = merge_of(whenMatched=[{"$set": {"n": {"$add": ["$n", "$$new.n"]}}}, {"$unset": "x"}])
    assert isinstance(piped.when_matched, tuple)
    assert [type(stage) for stage in piped.when_matched] == [AddFields, Unset]
    assert piped.let == (("new", Variable("ROOT", ())),)
    assert merge_of(let={"v": "$n"}, whenMatched=[{"$set": {"n": "$$v"}}]).let == (("v", FieldPath(("n",))),)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"whenMatched": "burn"}, "$merge.whenMatched: unknown value 'burn'"),
        ({"whenMatched": {"$literal": "burn"}}, "$merge.whenMatched: unknown value 'burn'"),
        ({"whenMatched": [{"$match": {}}]}, "$merge.whenMatched[0].$match: unknown stage $match"),
        ({"whenMatched": [{"$set": {"a": "$$new"}}], "let": {"v": 1}}, "undefined variable $$new"),
        ({"let": {"v": 1}}, "$merge.let: are variables of a pipeline in whenMatched, and there is none"),
        ({"whenNotMatched": [{"$set": {"a": 1}}]}, "$merge.whenNotMatched"),
    ],
)
def test_what_a_merge_cannot_do_is_an_error(options: dict[str, Any], reason: str) -> None:
    """Each names its place."""
    error = errors_of(TOPIC, {"$merge": {"into": {"connectionName": "s", "coll": "c"}, **options}})[0]
    assert reason in error


def window(*pipeline: Any) -> dict[str, Any]:
    """A window with this pipeline."""
    return {"$tumblingWindow": {"interval": SECOND, "pipeline": list(pipeline)}}


GROUP = {"$group": {"_id": "$d", "n": {"$sum": 1}}}


def test_a_lookup_in_front_of_what_gathers_stands_in_front_of_the_window() -> None:
    """With the stages before it, whose places in the document stay what they were."""
    stages = stages_of(TOPIC, window({"$match": {"a": 1}}, {"$lookup": INLINE}, {"$set": {"b": 1}}, GROUP))[1:]
    looked, behind = stages[1:]
    assert isinstance(stages[0], Match)
    assert isinstance(looked, Lookup)
    assert isinstance(behind, TumblingWindow)
    assert looked.path == "pipeline[1].$tumblingWindow.pipeline[1].$lookup"
    assert [stage.name for stage in behind.pipeline] == ["$set", "$group"]


def test_a_lookup_behind_what_gathers_stands_behind_the_window() -> None:
    """With the stages after it."""
    cached = {"$cachedLookup": {**INLINE, "ttl": SECOND, "maxMemUsageBytes": 1 << 20}}
    stages = stages_of(TOPIC, window(GROUP, {"$set": {"b": 1}}, cached, {"$unset": "b"}))[1:]
    assert [type(stage) for stage in stages] == [TumblingWindow, CachedLookup, Unset]


def test_a_lookup_between_gathering_stages_is_refused() -> None:
    """It would ask a table in the middle of a window's step."""
    (error,) = errors_of(TOPIC, window(GROUP, {"$lookup": INLINE}, {"$sort": {"n": 1}}))
    assert (
        "$lookup stands in front of the window's first $group, $sort, $limit, $skip or $count, or behind its last"
        in error
    )


def test_a_lookup_that_sees_the_window_cannot_stand_in_front_of_it() -> None:
    """Metadata of the window, and the key of a session, are what they would be inside, or it is an error."""
    (error,) = errors_of(TOPIC, window({"$set": {"s": {"$meta": "stream.window.start"}}}, {"$lookup": INLINE}, GROUP))
    assert "$lookup stands behind what reads the window's metadata; put it in front of the window" in error
    session = {"$sessionWindow": {"gap": SECOND, "partitionBy": "$k", "pipeline": [{"$lookup": INLINE}, GROUP]}}
    assert "would change documents before partitionBy sees them" in errors_of(TOPIC, session)[0]


def test_files_as_atlas_writes_them() -> None:
    """`bucket`, `region`, a path by an expression and `config` stand as Atlas' documents have them; json is its format."""
    emit = {
        "connectionName": "s3", "bucket": "b", "region": "us-east-1", "path": {"$concat": ["days/", "$day"]},
        "config": {"writeOptions": {"interval": {"size": 60, "unit": "second"}}, "delimiter": "\n",
                   "outputFormat": "basicJson", "dateFormat": "ISO8601"},
    }  # fmt: skip
    (_, stage) = stages_of(TOPIC, {"$emit": emit})
    assert isinstance(stage, FileEmit)
    assert isinstance(stage.folder, Call)
    assert (stage.format, stage.output_format, stage.date_format) == ("json", "basicJson", "ISO8601")


TABLE: dict[str, Any] = {"format": "parquet", "path": "p"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"connectionName": None}, "a path that an expression gives is below that of a connection"),
        ({"format": "parquet"}, "a table is one folder"),
        ({"format": "parquet", "path": "p", "config": {}}, "tells how JSON is written, and format is parquet"),
        ({"format": None}, "$emit needs format"),
        ({"format": "iceberg", "path": "p", "partitionBy": "a.b"}, "divided by its columns"),
        ({"format": "iceberg", "path": "p", "connectionName": None}, "format iceberg needs connectionName"),
        (TABLE | {"writeOptions": {"compresion": "gzip"}}, "compresion"),
        (TABLE | {"writeOptions": {"compression": "lzo"}}, "unknown value 'lzo'"),
        (TABLE | {"writeOptions": {"compression_level": 23}}, "whole number from 1 to 22"),
        (TABLE | {"writeOptions": {"compression": "gzip", "compression_level": 10}}, "gzip has levels from 1 to 9"),
        (TABLE | {"writeOptions": {"compression": "snappy", "compression_level": 1}}, "snappy has no levels"),
        (TABLE | {"writeOptions": {"row_group_size": 0}}, "whole number from 1"),
        (TABLE | {"writeOptions": {"fields": ["a"]}}, "format parquet has compression"),
        ({"writeOptions": {"delimiter": ";"}}, "format json has no writeOptions"),
        ({"format": "csv", "writeOptions": {"compression": "gzip"}}, "format csv has fields, delimiter"),
        ({"format": "csv", "writeOptions": {"delimiter": "::"}}, "one character"),
        ({"format": "csv", "writeOptions": {"fields": ["a", "a"]}}, "names 'a' twice"),
        ({"format": "csv", "writeOptions": {"fields": []}}, "at least one"),
    ],
)
def test_files_that_cannot_be_written_so_are_refused(changed: dict[str, Any], reason: str) -> None:
    """Each with what to write instead."""
    emit = {"connectionName": "s3", "path": "$day", "format": "json"} | changed
    errors = errors_of(TOPIC, {"$emit": {name: value for name, value in emit.items() if value is not None}})
    assert any(reason in error for error in errors), errors


def test_lookups_nest_four_deep_and_name_their_connections() -> None:
    """The fifth is refused by its place; a connection that only a nested one names is among those that the document needs."""

    def nested(depth: int) -> dict[str, Any]:
        inner = [nested(depth - 1)] if depth > 1 else []
        table: dict[str, Any] = {"connectionName": "deep", "table": "t"} if depth == 1 else {"documents": []}
        return {"$lookup": {"from": table, "localField": "a", "foreignField": "b", "as": "c", "pipeline": inner}}

    place = ".pipeline[0].$lookup"
    needs = [(need.connection, need.path) for need in connection_needs(stages_of(TOPIC, nested(4)), None)]
    assert ("deep", f"pipeline[1].$lookup{3 * place}.from") in needs
    assert errors_of(TOPIC, nested(5)) == [
        f"pipeline[1].$lookup{4 * place}: lookups stand at most 4 deep in one another"
    ]
