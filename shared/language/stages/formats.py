"""`format` of a topic's records: MessagePack, or a plug-in's; and `keyFormat` of their keys: a word, or a plug-in's."""

from typing import Any, Final

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import PluginFormat
from tidemark.shared.language.kinds import DOCUMENT, STRING, Kind, Option, Read, choice, closed_schema, read_options
from tidemark.shared.language.problems import join

_OPTIONS: Final = (
    Option("plugin", STRING, "the format's name in the package that has it", required=True),
    Option("config", DOCUMENT, "as the plug-in takes it"),
)


def _plugin(tree: Any, path: str, scope: Scope) -> PluginFormat | None:
    before = len(scope.problems.errors)
    found = read_options(tree, path, scope, _OPTIONS, "a format")
    return None if len(scope.problems.errors) > before else PluginFormat(path=path, **found.fields)


def _format(tree: Any, path: str, scope: Scope) -> PluginFormat | None:
    if type(tree) is dict:
        return _plugin(tree, path, scope)
    name: str | None = _OWN.read(tree, path, scope)
    return None if name is None else PluginFormat(path=path, plugin=name, own=True)


_OWN: Final = choice("messagePack")
_PLUGIN: Final = Kind(_plugin, closed_schema(_OPTIONS))
FORMAT: Final = Kind(_format, {"anyOf": [_OWN.schema, _PLUGIN.schema]})
"""`format` of a topic."""


def key_format(*names: str) -> Kind:
    """`keyFormat`: a word, or a plug-in's format."""
    word = choice(*names)

    def read(tree: Any, path: str, scope: Scope) -> Any:
        return (_PLUGIN if type(tree) is dict else word).read(tree, path, scope)

    return Kind(read, {"anyOf": [word.schema, _PLUGIN.schema]})


def check_format(tree: Any, found: Read, path: str, scope: Scope) -> None:
    """Note options of a topic that have no meaning beside a format, and take a plug-in's format of keys apart."""
    if "format" in found and "schemaRegistry" in tree:
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
