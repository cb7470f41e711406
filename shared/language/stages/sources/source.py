"""`$source`: its options tell which of its kinds is meant; then all of them are checked."""

from dataclasses import replace
from typing import Any, Final

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import DATE, Kind, Option, StageSpec, closed_schema, read_options
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.add_fields import AddFields
from tidemark.shared.language.stages.base import Stage
from tidemark.shared.language.stages.reading_trees import computed_tree
from tidemark.shared.language.stages.sources import (
    changes,
    changestream,
    documents,
    files,
    kafka,
    plugin,
    sample,
    schedule,
    script,
)
from tidemark.shared.language.stages.sources.base import TS_FIELD, SourceBase, SourceKind
from tidemark.shared.language.stages.sources.files import FileSource
from tidemark.shared.language.stages.sources.kafka import KafkaSource, StartAtTime
from tidemark.shared.language.stages.union import Union

_KINDS: Final[dict[str, SourceKind]] = {
    "script": script.KIND,
    "documents": documents.KIND,
    "path": files.KIND,
    "topic": kafka.KIND,
    "publication": changes.KIND,
    "plugin": plugin.KIND,
    "cron": schedule.KIND,
    "db": changestream.KIND,
    "config": changestream.CLUSTER,
    "connectionName": sample.KIND,
}
"""By the option that tells; a connection alone is a sample stream, or a whole cluster."""
_ELSEWHERE: Final = {
    "stream": "Kinesis is no source here: bring its records to a topic, and give topic",
}
"""Sources of Atlas' cloud, by an option that tells, and why there are none here."""


def _kinds_of(tree: Any, scope: Scope) -> list[str]:
    """The kinds that the options tell; a configuration is of a topic, of collections or of a cluster."""
    if type(tree) is not dict:
        return []
    plain = [name for name in ("script", "documents", "path", "topic", "publication", "plugin", "cron") if name in tree]
    if plain:
        return plain
    if {"db", "coll", "initialSync"} & tree.keys():
        return ["db"]
    if "connectionName" not in tree:
        return []
    if scope.connections.get(str(tree["connectionName"])) == "mongodb" or changestream.tells_cluster(tree):
        return ["config"]
    return ["connectionName" if tree.keys() <= {option.name for option in sample.KIND.options} else "topic"]


_SWITCH_AT: Final = Option(
    "switchAt", DATE, "the event time at which history ends: earlier records are its, all others then's", required=True
)


def _part(name: str) -> Kind:
    """One of two sources; which kind is told by its options."""

    def read(tree: Any, path: str, scope: Scope) -> SourceBase | None:
        if type(tree) is dict and not _PARTS & tree.keys():
            scope.problems.add(path, f"{name} needs topic (Kafka), path (files) or documents", accepted=_PARTS)
            return None
        if type(tree) is dict and TS_FIELD in tree:
            scope.problems.add(join(path, TS_FIELD), "is no option of a part: give an $addFields behind the source")
            return None
        return _plain(tree, path, scope)

    return Kind(read, {"type": "object"})


_PARTS: Final = frozenset(("path", "topic", "documents"))
_SWITCHED: Final = (
    Option("history", _part("history"), "a source that ends, with the options above: files, or a topic with until", required=True),
    Option("then", _part("then"), "the source that goes on: a topic, read from switchAt on unless config.startAt is given", required=True),
    _SWITCH_AT,
)  # fmt: skip


def _switched(tree: Any, path: str, scope: Scope) -> tuple[Stage, ...] | None:
    before = len(scope.problems.errors)
    found = read_options(tree, path, scope, _SWITCHED)
    if len(scope.problems.errors) > before:
        return None
    history, then, at = found["history"], found["then"], int(found["switchAt"])
    if not history.bounded:
        option = "follow: false" if isinstance(history, FileSource) else "until"
        scope.problems.add(history.path, f"history has to end: give {option}; what goes on belongs into then")
    for part in (history, then):
        if part.time_field is None and not isinstance(part, KafkaSource):
            scope.problems.add(part.path, "needs timeField: switchAt divides records by their event time")
    if isinstance(then, KafkaSource):
        config = tree["then"].get("config", {})
        if not {"startAt", "auto_offset_reset"} & config.keys():
            then = replace(then, start_at=StartAtTime(at))
        elif then.start_at == "latest":
            scope.problems.add(
                join(then.path, "config"),
                "latest would leave out what came between switchAt and the start: leave startAt away, or give earliest, a date or offsets",
            )
    if len(scope.problems.errors) > before:
        return None
    behind = Union(path=f"{path}.then.$union", pipelines=((replace(then, from_ms=at),),))
    return replace(history, before_ms=at), behind


def _read(tree: Any, path: str, scope: Scope) -> SourceBase | tuple[Stage, ...] | None:
    if type(tree) is dict and ("history" in tree or "then" in tree):
        return _switched(tree, path, scope)
    source = _plain(tree, path, scope)
    if source is None or TS_FIELD not in tree:
        return source
    fields = computed_tree({tree[TS_FIELD]: {"$meta": "stream.source.ts"}}, join(path, TS_FIELD), scope)
    return None if fields is None else (source, AddFields(path=join(path, TS_FIELD), fields=fields))


def _plain(tree: Any, path: str, scope: Scope) -> SourceBase | None:
    kinds = _kinds_of(tree, scope)
    elsewhere = [] if type(tree) is not dict or kinds not in ([], ["topic"]) or "topic" in tree else list(_ELSEWHERE)
    for name in elsewhere:
        if name in tree:
            scope.problems.add(join(path, name), _ELSEWHERE[name])
            return None
    if len(kinds) > 1:
        scope.problems.add(
            path,
            "a source is one of Kafka (topic), files (path), changes (publication; db), plugin, cron, documents or script;"
            f" found {' and '.join(kinds)}",
        )
        return None
    if not kinds:
        scope.problems.add(
            path,
            "a source needs topic (Kafka), path (files), publication or db (changes), plugin, cron, documents or script",
            accepted=_KINDS,
        )
        return None
    kind = changestream.ALONE if kinds == ["config"] else _KINDS[kinds[0]]
    return kind.read(tree, path, scope)


SPEC: Final = StageSpec(
    "Where documents come from, their event time and watermark.",
    _read,
    {"oneOf": [closed_schema(options) for options in (*(kind.options for kind in _KINDS.values()), _SWITCHED)]},
)
