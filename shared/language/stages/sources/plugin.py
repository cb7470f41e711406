"""`$source` of another package."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidemark.shared.language.forms import PluginUse
from tidemark.shared.language.kinds import DOCUMENT, STRING, Option
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.language.stages.sources.base import TIMING, SourceBase, SourceKind
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSource(SourceBase):
    """A source of another package, by its name there."""

    plugin: str
    config: Document = field(default_factory=dict)
    """As the plug-in takes it."""
    connection_name: str | None = None

    def plugins(self) -> Iterator[PluginUse]:
        """The plug-in that reads."""
        yield PluginUse("source", self.plugin, self.config, self.path, self.connection_name)

    @property
    def bounded(self) -> bool:
        """It never ends."""
        return False

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection, if it has one."""
        if self.connection_name is not None:
            yield ConnectionNeed(self.connection_name, ("plugin",), self.path, self.plugin)


_OPTIONS: Final = (
    Option("plugin", STRING, "the source's name in the package that has it", required=True),
    Option("connectionName", STRING, "a connection of type plugin, with the same plugin, if it takes one"),
    Option("config", DOCUMENT, "as the plug-in takes it"),
    *TIMING,
)
KIND: Final = SourceKind(PluginSource, _OPTIONS)
