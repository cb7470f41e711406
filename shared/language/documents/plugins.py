"""What a document names of other packages: sources and sinks, which are stages, and the formats of topics' records."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidemark.shared.language.documents.model import all_stages
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import PluginFormat
from tidemark.shared.language.kinds import DOCUMENT, STRING, Kind, Option, Read, closed_schema, read_options
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages import KafkaEmit, KafkaSource, PluginEmit, PluginSource, Stage

PluginKind = Literal["source", "sink", "format"]


@dataclass(frozen=True, slots=True)
class PluginUse:
    """A plug-in that a document names, and where."""

    kind: PluginKind
    plugin: str
    config: Mapping[str, Any]
    path: str
    connection_name: str | None = None


def plugin_uses(pipeline: Iterable[Stage]) -> Iterator[PluginUse]:
    """All of them, in the order of the stages."""
    for stage in all_stages(pipeline):
        match stage:
            case PluginSource():
                yield PluginUse("source", stage.plugin, stage.config, stage.path, stage.connection_name)
            case PluginEmit():
                yield PluginUse("sink", stage.plugin, stage.config, stage.path, stage.connection_name)
            case KafkaSource(format=PluginFormat() as form) | KafkaEmit(format=PluginFormat() as form):
                yield PluginUse("format", form.plugin, form.config, form.path)
            case _:
                pass


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
