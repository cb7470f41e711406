"""`$source` of change streams of MongoDB, in the words of Atlas."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

from tidemark.shared.language.expressions.scope import Scope, read_value
from tidemark.shared.language.kinds import (
    BOOLEAN,
    DOCUMENT,
    STRING,
    Kind,
    Option,
    Read,
    choice,
    closed,
    integer,
    list_of,
    one_or_more,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.sources.base import TIMING, SourceBase, SourceKind
from tidemark.shared.model.values import Date, Document, Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStreamSource(SourceBase):
    """A change stream of MongoDB, one split without an end: of collections; without `coll` of a database, without `db` of a cluster."""

    one_task: ClassVar[bool] = True
    connection_name: str
    db: str | None = None
    coll: tuple[str, ...] = ()
    start_after: Document | None = None
    start_at_operation_time: Timestamp | None = None
    full_document: Literal["default", "updateLookup", "required", "whenAvailable"] = "default"
    full_document_only: bool = False
    full_document_before_change: Literal["off", "required", "whenAvailable"] = "off"
    server_stages: tuple[Document, ...] = ()
    initial_sync: bool = False
    """The documents come first, if there is no state."""
    max_await_ms: int = 1000
    read_preference: Literal["primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"] = "primary"
    read_preference_tags: tuple[Document, ...] = ()

    @property
    def bounded(self) -> bool:
        """It never ends."""
        return False

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection to the server."""
        yield ConnectionNeed(self.connection_name, ("mongodb",), self.path)


_STAGES: Final = ("$addFields", "$match", "$project", "$redact", "$replaceRoot", "$replaceWith", "$set", "$unset")
"""Stages that MongoDB takes behind `$changeStream`. It has `$changeStreamSplitLargeEvent`, too, which makes fragments of events."""


def _stage(tree: Any, path: str, scope: Scope) -> Any:
    names = list(tree) if type(tree) is dict else []
    if len(names) != 1 or names[0] not in _STAGES:
        found = ", ".join(names) or f"{tree!r}"
        scope.problems.add(path, f"expected one stage of {', '.join(_STAGES)}, found {found[:100]}", accepted=_STAGES)
        return None
    return DOCUMENT.read(tree, path, scope)


def _start(tree: Any, path: str, scope: Scope) -> Timestamp | None:
    """A date has milliseconds, which an operation time has not: its whole second is read."""
    value, there = read_value(tree, path, scope)
    if not there:
        return None
    if type(value) is Date and 0 <= value < 1000 << 32:
        return Timestamp(int(value) // 1000, 0)
    if type(value) is not Timestamp:
        scope.problems.add(
            path, f"expected {{$timestamp: {{t, i}}}} or a date, {{$date: …}}, since 1970, found {tree!r}"
        )
        return None
    return value


def _token(tree: Any, path: str, scope: Scope) -> Any:
    found = DOCUMENT.read(tree, path, scope)
    if found is not None and type(found.get("_data")) is not str:
        scope.problems.add(path, "expected a resume token, {_data: text}, as the _id of a change event has it")
        return None
    return found


_CONFIG: Final = (
    Option("startAfter", Kind(_token, DOCUMENT.schema), "begin behind the event with this resume token (its _id)"),
    Option(
        "startAtOperationTime",
        Kind(_start, {"type": "object"}),
        "begin with the events of this time: a timestamp, or a date, whose whole second counts",
    ),
    Option(
        "fullDocument",
        choice("default", "updateLookup", "required", "whenAvailable"),
        "of an update: nothing (default), the document as it is now, or its image behind the update",
    ),
    Option("fullDocumentOnly", BOOLEAN, "documents are the events' fullDocument alone; an event without goes to the dead letters"),
    Option("fullDocumentBeforeChange", choice("off", "required", "whenAvailable"), "the image in front of the change (default off)"),
    Option(
        "pipeline",
        list_of(Kind(_stage, {"type": "object"})),
        "stages by which the server filters and changes events; _id stays as it is",
        into="server_stages",
    ),
    Option("maxAwaitTimeMS", integer(1), "how long the server waits for an event, ms (default 1000)", into="max_await_ms"),
)  # fmt: skip
_SYNC: Final = closed(
    Option("enable", BOOLEAN, "documents that are there come first, as inserts (default false)", into="initial_sync"),
    Option("parallelism", integer(1), "accepted and without effect: documents are read in the order of _id", into=None),
)
_CONNECTION: Final = Option("connectionName", STRING, "the connection, of type mongodb", required=True)
_READING: Final = (
    Option(
        "readPreference",
        choice("primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"),
        "which members are read (default primary)",
    ),
    Option("readPreferenceTags", list_of(DOCUMENT), "tags of members, the first set that fits counts"),
)
_COLLECTIONS: Final = (
    Option("db", STRING, "the database", required=True),
    Option("coll", one_or_more(STRING), "a collection, or a list of them; without it all of the database"),
    _CONNECTION,
    Option("config", closed(*_CONFIG), "where it begins, and what events have"),
    Option("initialSync", _SYNC, "whether a start without state reads the documents before their changes"),
    *_READING,
    *TIMING,
)
_CLUSTER: Final = (
    Option("config", closed(*_CONFIG), "where it begins, and what events have", required=True),
    _CONNECTION,
    *_READING,
    *TIMING,
)
"""As it is shown: a connection alone is a whole cluster, too, if it is one of MongoDB."""
_TELLING: Final = frozenset(option.name for option in (*_CONFIG, *_READING)) - {"pipeline"}


def tells_cluster(tree: Any) -> bool:
    """Whether options that only a change stream has stand beside a connection."""
    config = tree.get("config")
    return bool(_TELLING & tree.keys()) or (type(config) is dict and bool(_TELLING & config.keys()))


def _check(_: Any, found: Read, path: str, scope: Scope) -> None:
    """Note what does not go together."""
    config = found.get("config") or {}
    if {"startAfter", "startAtOperationTime"} <= config.keys():
        scope.problems.add(
            join(path, "config"), "startAfter and startAtOperationTime are two beginnings: give one of them"
        )
    if (found.get("initialSync") or {}).get("enable"):
        _check_sync(found, path, scope)
    if "readPreferenceTags" in found and found.get("readPreference", "primary") == "primary":
        scope.problems.add(join(path, "readPreferenceTags"), "primary takes no tags: give another readPreference")
    if config.get("fullDocumentOnly") and config.get("fullDocument", "default") == "default":
        scope.problems.warn(
            join(path, "config.fullDocumentOnly"),
            "updates have no fullDocument, and go to the dead letters: give fullDocument, too",
        )


def _check_sync(found: Read, path: str, scope: Scope) -> None:
    config = found.get("config") or {}
    if config.get("pipeline"):
        scope.problems.add(
            join(path, "config.pipeline"),
            "the server carries these stages out on changes, and not on documents that initialSync reads: put them behind $source",
        )
    for name in ("startAfter", "startAtOperationTime"):
        if name in config:
            scope.problems.add(
                join(path, f"config.{name}"),
                "initialSync begins with what is there now, and this is another beginning: give one of them",
            )
    if found["initialSync"].get("parallelism", 1) > 1:
        scope.problems.warn(
            join(path, "initialSync.parallelism"),
            "is without effect: documents are read in the order of _id, by one reader",
        )


KIND: Final = SourceKind(ChangeStreamSource, _COLLECTIONS, _check)
CLUSTER: Final = SourceKind(ChangeStreamSource, _CLUSTER, _check)
ALONE: Final = SourceKind(
    ChangeStreamSource, tuple(replace(each, required=each.name == "connectionName") for each in _CLUSTER), _check
)
"""The same of a cluster, as it is read: a connection alone is enough."""
