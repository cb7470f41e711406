"""The base of all plug-ins: the version of the interface that they are written for, and their config."""

from typing import Any, ClassVar, Final, Generic, TypeVar

from tidemark.shared.computation.base import NoConfig

__all__ = ["API", "C", "NoConfig", "Plugin", "S"]

API: Final = 1
"""The version of this interface. It rises where a plug-in that is written for the version before would do something wrong."""
C = TypeVar("C")
S = TypeVar("S")


class Plugin(Generic[C, S]):
    """A plug-in made with a stage's config and the settings of the stage's connection.

    Each object is used by one thread at a time, but not always by the same one. It may block. It is made anew after every error.
    """

    api: ClassVar[int] = 0
    """The version of the interface that the class is written for: set it to 1."""
    Config: ClassVar[type[Any]] = NoConfig
    """The stage's `config`: a dataclass; a field without a default has to be given."""
    Settings: ClassVar[type[Any]] = NoConfig
    """The `config` of the stage's connection, of type plugin, which is the place for addresses and passwords: a dataclass, too."""

    def __init__(self, config: C, settings: S) -> None:
        """Keeps both, and connects to nothing: `tidemark validate` makes an object, too. ValueError for a config that cannot work."""
        self.config = config
        self.settings = settings

    def open(self) -> None:
        """Connect. Raises Away, Refused."""

    def close(self) -> None:
        """Let go. Called once, also where `open` has failed."""
