"""`format` of a topic's records: MessagePack, CSV, or a plug-in's; and `keyFormat` of their keys: a word, or a plug-in's."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import PluginFormat
from tidemark.shared.language.kinds import (
    DOCUMENT,
    STRING,
    Kind,
    Option,
    Read,
    choice,
    closed_schema,
    list_of,
    read_options,
)
from tidemark.shared.language.problems import join

_OPTIONS: Final = (
    Option("plugin", STRING, "the format's name in the package that has it", required=True),
    Option("config", DOCUMENT, "as the plug-in takes it"),
)


def _plugin(tree: Any, path: str, scope: Scope) -> PluginFormat | None:
    before = len(scope.problems.errors)
    found = read_options(tree, path, scope, _OPTIONS, "a format")
    return None if len(scope.problems.errors) > before else PluginFormat(path=path, **found.fields)


def _csv(tree: Any, path: str, scope: Scope) -> PluginFormat | None:
    before = len(scope.problems.errors)
    csv = join(path, "csv")
    for name in tree.keys() - {"csv"}:
        scope.problems.add(join(path, name), "stands within csv, or is no option of CSV")
    found = read_options(tree["csv"], csv, scope, _CSV, "CSV").fields
    check_csv(found, csv, scope)
    return None if len(scope.problems.errors) > before else PluginFormat(path, "csv", found, own=True)


def check_csv(found: Mapping[str, Any], path: str, scope: Scope) -> None:
    """`fields` and `delimiter`, of a topic's lines or of files."""
    if found.get("fields") == ():
        scope.problems.add(join(path, "fields"), "names at least one cell")
    if repeated := [name for name, times in Counter(found.get("fields") or ()).items() if times > 1]:
        scope.problems.add(join(path, "fields"), f"names {repeated[0]!r} twice")
    delimiter = found.get("delimiter") or ","
    if len(delimiter) != 1 or delimiter in _NO_DELIMITERS:
        scope.problems.add(join(path, "delimiter"), f"one character, no quote and no line end, found {delimiter!r}")


_CSV: Final = (
    Option("fields", list_of(STRING), "the names of a line's cells, in their order", required=True),
    Option("delimiter", STRING, "a character between cells (default a comma)"),
)
_NO_DELIMITERS: Final = frozenset('"\r\n\0')


def _format(tree: Any, path: str, scope: Scope) -> PluginFormat | None:
    if type(tree) is dict:
        return (_csv if "csv" in tree else _plugin)(tree, path, scope)
    return _word(tree, path, scope)


def _word(tree: Any, path: str, scope: Scope) -> PluginFormat | None:
    if type(tree) is str and (why := _NO_WORDS.get(tree.lower())):
        scope.problems.add(path, why)
        return None
    name: str | None = _OWN.read(tree, path, scope)
    return None if name is None else PluginFormat(path=path, plugin=name, own=True)


_OWN: Final = choice("messagePack")
_BY_REGISTRY: Final = "is no word here: schemaRegistry names the connection whose schemas records have"
_NO_WORDS: Final = {
    "csv": "CSV names its cells: {csv: {fields: [a, b]}}",
    "json": "records are JSON where no format stands: leave it away",
    "avro": f"Avro {_BY_REGISTRY}",
    "protobuf": f"Protobuf {_BY_REGISTRY}",
}
"""Words that are tried for a format, and what stands in their place."""
_PLUGIN: Final = Kind(_plugin, closed_schema(_OPTIONS))
_CSV_SCHEMA: Final = {
    "type": "object", "properties": {"csv": closed_schema(_CSV)}, "required": ["csv"], "additionalProperties": False,
}  # fmt: skip
FORMAT: Final = Kind(_format, {"anyOf": [_OWN.schema, _CSV_SCHEMA, _PLUGIN.schema]})
"""`format` of a topic."""


def key_format(*names: str) -> Kind:
    """`keyFormat`: a word, or a plug-in's format."""
    word = choice(*names, "messagePack")

    def read(tree: Any, path: str, scope: Scope) -> Any:
        if tree == "messagePack":
            return PluginFormat(path=path, plugin=tree, own=True)
        return (_PLUGIN if type(tree) is dict else word).read(tree, path, scope)

    return Kind(read, {"anyOf": [word.schema, _PLUGIN.schema]})


def check_format(tree: Any, found: Read, path: str, scope: Scope, *, registry_has_keys_alone: bool) -> None:
    """Note options of a topic that have no meaning beside a format, and take a plug-in's format of keys apart."""
    if "format" in found and "schemaRegistry" in tree and not registry_has_keys_alone:
        what = "values are of a schema registry, or of another format, not of both; of keys config.keyFormat has the format"
        scope.problems.add(join(path, "format"), what)
    if isinstance(form := found.fields.get("key_format"), PluginFormat):
        found.fields |= {"key_format": "plugin", "key_plugin": form}
    if "format" not in found:
        return
    config = tree.get("config")
    for name in ("outputFormat", "dateFormat"):
        if type(config) is dict and name in config:
            scope.problems.add(
                join(path, f"config.{name}"), "tells how JSON is written, and values are of another format"
            )
