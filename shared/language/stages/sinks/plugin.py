"""`$emit` to a sink of another package."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import PluginUse
from tidemark.shared.language.kinds import DOCUMENT, STRING, Option, closed_schema, read_options
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.sinks.base import SinkBase
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEmit(SinkBase):
    """A sink of another package, by its name there."""

    plugin: str
    config: Document = field(default_factory=dict)
    """As the plug-in takes it."""
    connection_name: str | None = None

    def target(self) -> tuple[Any, ...]:
        """As the plug-in is told."""
        return ("plugin", self.plugin, self.connection_name, self.config)

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection, if it has one."""
        if self.connection_name is not None:
            yield ConnectionNeed(self.connection_name, ("plugin",), self.path, self.plugin)

    def plugins(self) -> Iterator[PluginUse]:
        """The plug-in that writes."""
        yield PluginUse("sink", self.plugin, self.config, self.path, self.connection_name)


_PLUGIN: Final = (
    Option("plugin", STRING, "the sink's name in the package that has it", required=True),
    Option("connectionName", STRING, "a connection of type plugin, with the same plugin, if it takes one"),
    Option("config", DOCUMENT, "as the plug-in takes it"),
)


def read(tree: object, path: str, scope: Scope) -> PluginEmit | None:
    """`$emit` with a plug-in."""
    before = len(scope.problems.errors)
    o = read_options(tree, path, scope, _PLUGIN)
    return None if len(scope.problems.errors) > before else PluginEmit(path=path, **o.fields)


SCHEMA: Final = closed_schema(_PLUGIN)
