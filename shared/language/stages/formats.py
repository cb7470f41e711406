"""`format` of a topic's records: one of a plug-in."""

from typing import Any, Final

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import PluginFormat
from tidemark.shared.language.kinds import DOCUMENT, STRING, Kind, Option, Read, closed_schema, read_options
from tidemark.shared.language.problems import join

_OPTIONS: Final = (
    Option("plugin", STRING, "the format's name in the package that has it", required=True),
    Option("config", DOCUMENT, "as the plug-in takes it"),
)


def _format(tree: Any, path: str, scope: Scope) -> PluginFormat | None:
    before = len(scope.problems.errors)
    found = read_options(tree, path, scope, _OPTIONS, "a format")
    return None if len(scope.problems.errors) > before else PluginFormat(path=path, **found.fields)


FORMAT: Final = Kind(_format, closed_schema(_OPTIONS))
"""`format` of a topic."""


def check_format(tree: Any, found: Read, path: str, scope: Scope) -> None:
    """Note options of a topic that have no meaning beside a format."""
    if "format" not in found:
        return
    if "schemaRegistry" in tree:
        scope.problems.add(
            join(path, "format"), "records are of a schema registry or of a plug-in's format, not of both"
        )
    config = tree.get("config")
    for name in ("outputFormat", "dateFormat"):
        if type(config) is dict and name in config:
            scope.problems.add(
                join(path, f"config.{name}"), "tells how JSON is written, and values are of a plug-in's format"
            )
