"""The plug-ins of the packages that are installed beside Tidemark: found by entry points, loaded when one is used."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any, Final, Literal, TypeVar, overload

from tidemark.shared.computation.entries import entry_of, said
from tidemark.shared.computation.loading import config_of
from tidemark.shared.computation.problems import ClassError, ConfigError
from tidemark.shared.language.forms import PluginKind
from tidemark.shared.plugins.interface import API, Format, Lookup, Plugin, PluginError, Sink, Source

Kind = PluginKind
GROUPS: Final[Mapping[Kind, str]] = {
    "source": "tidemark.sources",
    "sink": "tidemark.sinks",
    "format": "tidemark.formats",
    "lookup": "tidemark.lookups",
}
"""The groups of entry points."""
_SETTINGS: Final = "config of the connection"
P = TypeVar("P", bound=Plugin[Any, Any])
_BASES: Final[Mapping[Kind, type[Plugin[Any, Any]]]] = {
    "source": Source,
    "sink": Sink,
    "format": Format,
    "lookup": Lookup,
}


def find(kind: Kind, name: str) -> EntryPoint:
    """The entry point of a plug-in. PluginError, with those that are there."""
    try:
        return entry_of(GROUPS[kind], kind, name)
    except ClassError as error:
        raise PluginError(str(error)) from error


def load_plugin(kind: Kind, name: str) -> tuple[str, type[Plugin[Any, Any]]]:
    """The class of a plug-in, and how errors name it. Blocks: imports its module. PluginError."""
    entry = find(kind, name)
    where = f"{kind} {name} of {said(entry)}"
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:
        raise PluginError(f"{where}: loading {entry.value} raises {type(error).__name__}: {error}") from error
    base = _BASES[kind]
    if not isinstance(found, type) or not issubclass(found, base):
        raise PluginError(f"{where}: expected {entry.value} to be a subclass of tidemark.plugins.{base.__name__}")
    if found.api != API:
        raise PluginError(
            f"{where}: expected a plug-in of version {API} of the interface (`api = {API}` in the class), found {found.api}"
        )
    return where, found


@overload
def make_plugin(
    kind: Literal["source"], name: str, config: Mapping[str, object], settings: Mapping[str, object]
) -> Source[Any, Any]: ...


@overload
def make_plugin(
    kind: Literal["sink"], name: str, config: Mapping[str, object], settings: Mapping[str, object]
) -> Sink[Any, Any]: ...


@overload
def make_plugin(
    kind: Literal["format"], name: str, config: Mapping[str, object], settings: Mapping[str, object]
) -> Format[Any]: ...


@overload
def make_plugin(
    kind: Literal["lookup"], name: str, config: Mapping[str, object], settings: Mapping[str, object]
) -> Lookup[Any, Any]: ...


@overload
def make_plugin(
    kind: Kind, name: str, config: Mapping[str, object], settings: Mapping[str, object]
) -> Plugin[Any, Any]: ...


def make_plugin(
    kind: Kind, name: str, config: Mapping[str, object], settings: Mapping[str, object]
) -> Plugin[Any, Any]:
    """An object of a plug-in, not yet opened. PluginError as `load_plugin`, and where it does not take what it is given."""
    where, found = load_plugin(kind, name)
    return make_of(where, found, config, settings)


def make_of(where: str, kind: type[P], config: Mapping[str, object], settings: Mapping[str, object]) -> P:
    """An object of the class. PluginError where it does not take what it is given, or lacks a method."""
    _check_methods(where, kind)
    try:
        return kind(config_of(config, kind.Config, where), config_of(settings, kind.Settings, where, _SETTINGS))
    except ConfigError as error:
        raise PluginError(str(error)) from error
    except (ValueError, TypeError) as error:
        raise PluginError(f"{where}: config: {error}") from error


def _check_methods(where: str, kind: type[Any]) -> None:
    if lacking := sorted(getattr(kind, "__abstractmethods__", ())):
        raise PluginError(f"{where}: expected the class {kind.__name__} to have {', '.join(lacking)}, found none")


def check_plugin(kind: Kind, name: str, config: Mapping[str, object], settings: Mapping[str, object] | None) -> None:
    """PluginError as `make_plugin`. settings: None where they are not known here, and so are not looked at."""
    where, found = load_plugin(kind, name)
    if settings is not None:
        make_of(where, found, config, settings)
        return
    _check_methods(where, found)
    try:
        config_of(config, found.Config, where)
    except ConfigError as error:
        raise PluginError(str(error)) from error
