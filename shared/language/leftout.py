"""Atlas' features that this language leaves out, with the reasons: stages by name, options by stage and option."""

from typing import Final

_STORED: Final = "reads stored collections, and a stream is none: use $lookup, or a $source"
_SEARCH: Final = "needs an index of stored collections"
_WINDOWED: Final = "is not a stage of streams: inside a window use $group"
STAGES_LEFT_OUT: Final[dict[str, str]] = {
    "$out": "is not a stage of streams: use $merge or $emit",
    "$facet": "is not a stage of streams: use several processors",
    "$externalFunction": "is not supported: write a $compute, or ask a server by $https",
    "$iceberg": "is not supported: use $emit with path and format iceberg",
    "$function": "is not supported: write a $compute",
    "$sample": "is not supported: a replay would not give the same answer",
    "$unionWith": f"{_STORED}; $union brings further streams in",
    **dict.fromkeys(("$bucket", "$bucketAuto", "$sortByCount"), _WINDOWED),
    **dict.fromkeys(("$setWindowFields", "$densify", "$fill"), "is not supported: write a $compute, which has state by key"),
    **dict.fromkeys(("$graphLookup", "$documents"), _STORED),
    **dict.fromkeys(
        ("$geoNear", "$search", "$searchMeta", "$vectorSearch", "$rankFusion", "$scoreFusion", "$listSearchIndexes"), _SEARCH
    ),
    **dict.fromkeys(
        (
            "$changeStream", "$changeStreamSplitLargeEvent", "$collStats", "$currentOp", "$indexStats", "$listClusterCatalog",
            "$listLocalSessions", "$listSampledQueries", "$listSessions", "$planCacheStats", "$querySettings", "$queryStats",
            "$shardedDataDistribution",
        ),
        "is about a server of MongoDB, not about a stream",
    ),
}  # fmt: skip
"""By name: what follows the name in the error."""

_AT_SOURCE: Final = "is an option of $source"
_TIER: Final = (
    "belongs to Atlas' cloud: options.tasks, `tidemark rescale` and the workers of an installation decide this"
)
_BATCHES: Final = "records of a part are sent together when their epoch is released"
_COMPRESSED: Final = "files are written uncompressed; format parquet compresses"
OPTIONS_LEFT_OUT: Final[dict[str, str]] = {
    "$source.allowedLateness": "is an option of windows",
    "$source.partitions": "all partitions are read: they are divided among the tasks of a processor",
    "$source.workspaceName": "an installation is one workspace: name the connection alone",
    "$source.bucket": "the connection's path names the bucket: give path and format",
    "$source.region": "the connection has it",
    "$source.subscription": "Pub/Sub is no source here: bring its messages to a topic, and give topic",
    "$source.queue": "a queue is no source here: bring its messages to a topic, and give topic",
    "$source.schedule": "a schedule is no source here: let what keeps the schedule write to a topic, and give topic",
    **dict.fromkeys(("$source.db", "$source.coll"), "a publication has its tables: CREATE PUBLICATION … FOR TABLE …"),
    "$source.config.resumeAfter": "startAfter does the same, and behind an event that has invalidated a stream, too",
    "$source.interval": "a schedule is no source here: let what keeps the schedule write to a topic, and give topic",
    "$emit.workspaceName": "an installation is one workspace: name the connection alone",
    "$emit.config.compression": _COMPRESSED,
    "$emit.config.compressionLevel": _COMPRESSED,
    "$emit.config.batch_size": _BATCHES,
    "$emit.config.client_id": "clients are named after their worker and their connection",
    "$emit.config.linger_ms": _BATCHES,
    "$emit.config.max_request_size": "message_bytes_max of the connection's config bounds a record",
    "$emit.config.retries": "a release is repeated until it is done",
    "$emit.config.partitioner": "records go by Kafka's hash of the key, in turn without one",
    "$merge.partitionBy": "rows of one key reach one task, and so stay in order",
    "$lookup.maxTimeMS": "lookup.wait_ms_max of the installation bounds how long is waited",
    "$sessionWindow.idleTimeout": "a session ends by its gap; partitionIdleTimeout of $source is for silent partitions",
    "$sessionWindow.offset": "a session begins with its first document",
    **{
        f"{window}.{name}": why
        for window in ("$tumblingWindow", "$hoppingWindow")
        for name, why in (
            ("partitionBy", "all keys share windows: $group divides what is in them"),
            ("tsFieldName", _AT_SOURCE),
        )
    },
    **dict.fromkeys(("options.tier", "options.maxTierSize", "options.autoScaling", "options.failover"), _TIER),
    "options.resumeFromCheckpoint": "is no part of the document: `tidemark modify` and `tidemark start` take --without-state",
    "options.enableUserFunction": "is not needed: $compute runs users' code",
    "options.workspaceName": "an installation is one workspace",
    "workspaceName": "an installation is one workspace",
}
"""By the stage and the option below it; of the document by the place alone."""


def why_left_out(place: str) -> str | None:
    """The reason for an option at a place of a document, such as `pipeline[0].$source.tsFieldName`; None for one that nobody documents."""
    return OPTIONS_LEFT_OUT.get(place[max(place.rfind("$"), 0) :])
