"""Connections: where `${NAME}` stands for a variable or a secret (`shared/process/values.py`), so that documents carry none."""

import re
from collections.abc import Mapping
from typing import Any, Final

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import DOCUMENT, STRING, Kind, Option, choice, one_or_more, read_options
from tidemark.shared.language.problems import Problems, join
from tidemark.shared.language.stages import Connection

REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _unshown(kind: Kind, expected: str) -> Kind:
    """The same kind, but an error names only the kind of value found, not the value: a secret may stand in the wrong place, too."""

    def read(tree: object, path: str, scope: Scope) -> Any:
        if type(tree) is (str if kind is STRING else dict) and tree != "":
            return kind.read(tree, path, scope)
        named = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
        scope.problems.add(
            path, f"expected {expected}, found {named.get(type(tree), 'a number')}; it is not shown here"
        )
        return None

    return Kind(read, kind.schema)


def _one_of(*names: str) -> Kind:
    """One of some words, and an error that does not show what was found."""

    def read(tree: object, path: str, scope: Scope) -> Any:
        if type(tree) is str and tree in names:
            return tree
        scope.problems.add(path, "unknown value; it is not shown here", accepted=names)
        return None

    return Kind(read, choice(*names).schema)


_TEXT: Final = _unshown(STRING, "a non-empty string")
_TABLE: Final = _unshown(DOCUMENT, "an object")
_TYPE: Final = Option(
    "type",
    _one_of("kafka", "files", "sql", "mongodb", "gateway", "sample", "schemaRegistry", "https", "plugin"),
    "what is at the other end",
    required=True,
)
_SOME_TEXTS: Final = one_or_more(_TEXT)


def _urls(tree: object, path: str, scope: Scope) -> list[str] | None:
    """A list: settings are trees as documents have them, and who walks them knows no other sequence."""
    found = _SOME_TEXTS.read(tree, path, scope)
    return None if found is None else list(found)


_URLS: Final = Kind(_urls, _SOME_TEXTS.schema)
SETTINGS: Final = {
    "kafka": (
        Option("bootstrapServers", _TEXT, "host:port, separated by commas", required=True),
        Option("config", _TABLE, "of the client: security_protocol, sasl_mechanism, …"),
    ),
    "gateway": (
        Option("bootstrapServers", _TEXT, "of the broker that the gateway writes to", required=True),
        Option("config", _TABLE, "of the client"),
    ),
    "files": (
        Option("path", _TEXT, "the folder, or a URL such as s3://bucket/prefix", required=True),
        Option("config", _TABLE, "of the file system: endpoint, key, …"),
        Option(
            "catalog", _TABLE, "of Iceberg's tables, as PyIceberg takes it: {type: sql, uri: …}, {type: rest, uri: …}"
        ),
    ),
    "sql": (
        Option("url", _TEXT, "postgresql://… or sqlite:///…", required=True),
        Option("config", _TABLE, "of the engine"),
    ),
    "mongodb": (Option("url", _TEXT, "mongodb://… or mongodb+srv://…, with the driver's options", required=True),),
    "sample": (),
    "schemaRegistry": (
        Option(
            "schemaRegistryUrls",
            _URLS,
            "the registry's addresses, one or a list: the next is asked where one is away",
            required=True,
        ),
        Option("schemaRegistryAuthentication", _TABLE, "{type: USER_INFO, username, password}"),
        Option("provider", _one_of("CONFLUENT"), "accepted and without effect: its REST is spoken"),
    ),
    "https": (
        Option("url", _TEXT, "https://host/path, or http", required=True),
        Option("headers", _TABLE, "sent with each request: the place for keys and tokens"),
    ),
    "plugin": (
        Option("plugin", _TEXT, "the plug-in that it is for: no other is given its config", required=True),
        Option("config", _TABLE, "as the plug-in takes it: the place for addresses and passwords"),
    ),
}
"""The options of each type of connection."""


def read_connections(tree: object, path: str, scope: Scope) -> dict[str, Connection]:
    """Read `{name: {type, settings…}}`."""
    if type(tree) is not dict:
        scope.problems.add(path, "expected an object of name: {type, …}")
        return {}
    found = {}
    for name, item in tree.items():
        place = join(path, name)
        kind = item.get("type") if type(item) is dict else None
        if kind not in list(SETTINGS):
            read_options(
                item if type(item) is dict and "type" in item else {"type": kind},
                place,
                scope,
                (_TYPE,),
                "a connection",
            )
            continue
        options = read_options(item, place, scope, (_TYPE, *SETTINGS[kind]), f"a connection of type {kind}")
        settings = {key: value for key, value in options.items() if key != "type"}
        found[name] = Connection(name, kind, settings)
    return found


def types_of(tree: object, known: Mapping[str, Connection]) -> Mapping[str, str]:
    """The types of a document's connections, as they are written, and of those that are known besides, by name."""
    written = tree.items() if type(tree) is dict else ()
    types = {name: item.get("type") for name, item in written if type(item) is dict}
    return {name: each.type for name, each in known.items()} | {n: t for n, t in types.items() if type(t) is str}


def resolve(connection: Connection, environment: Mapping[str, str]) -> Connection:
    """The connection with its `${NAME}` references replaced; InvalidDocument for names that the environment lacks."""
    problems = Problems()
    path = f"connections.{connection.name}"
    settings = {
        key: _replace(value, join(path, key), environment, problems) for key, value in connection.settings.items()
    }
    problems.check()
    return Connection(connection.name, connection.type, settings)


def _replace(value: object, path: str, environment: Mapping[str, str], problems: Problems) -> Any:
    if type(value) is dict:
        return {key: _replace(item, join(path, key), environment, problems) for key, item in value.items()}
    if type(value) is list:
        return [_replace(item, f"{path}[{i}]", environment, problems) for i, item in enumerate(value)]
    if type(value) is not str:
        return value
    for name in REFERENCE.findall(value):
        if name not in environment:
            problems.add(path, f"${{{name}}} is not set in the environment")
    return REFERENCE.sub(lambda found: environment.get(found[1], ""), value)


def forbid_references(tree: object, path: str, problems: Problems) -> None:
    """Note every `${NAME}` outside connections: what a pipeline does must not depend on where it is read."""
    stack: list[tuple[Any, str]] = [(tree, path)]
    while stack:
        value, place = stack.pop()
        if type(value) is dict:
            stack.extend((item, join(place, str(key))) for key, item in value.items())
        elif type(value) is list:
            stack.extend((item, f"{place}[{i}]") for i, item in enumerate(value))
        elif type(value) is str and REFERENCE.fullmatch(value):
            problems.add(place, f"{value} may stand in the settings of connections only")
