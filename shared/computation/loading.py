"""From a computation in the document (`class`, `config`) to an object that is ready to run."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tidemark.shared.computation.base import Computation
from tidemark.shared.computation.bundle import import_from
from tidemark.shared.computation.entries import class_of
from tidemark.shared.computation.problems import ClassError, ComputationError, ConfigError
from tidemark.shared.computation.state import StateCodec


def load_computation(path: str, config: Mapping[str, object] | None = None, code: bytes = b"") -> Computation[Any, Any]:
    """The computation `module:Class`, or that of a package by its name, with this config.

    ClassError, ConfigError or ComputationError names the fault.

    code: a packed bundle (`bundle.py`); modules that it has are loaded from it.
    """
    path = class_of(path)
    module_name, colon, class_name = path.partition(":")
    if not colon or not module_name or not class_name.isidentifier():
        raise ClassError(f'class: expected "module:Class", found {path!r}')
    try:
        module = import_from(code, module_name)
    except ComputationError:
        raise
    except ImportError as e:
        raise ClassError(f"class {path!r}: module {module_name} cannot be imported ({e}); is it on PYTHONPATH?") from e
    except Exception as e:
        raise ComputationError(f"class {path!r}: loading module {module_name} raises {type(e).__name__}: {e}") from e
    kind = getattr(module, class_name, None)
    if not isinstance(kind, type) or not issubclass(kind, Computation):
        found = (
            f"nothing of that name in {getattr(module, '__file__', module_name)}"
            if kind is None
            else f"a {type(kind).__name__} that is no Computation"
        )
        raise ClassError(
            f"class {path!r}: expected a subclass of tidemark.shared.computation.Computation, found {found}"
        )
    return make_computation(kind, config)


def make_computation(
    kind: type[Computation[Any, Any]], config: Mapping[str, object] | None = None
) -> Computation[Any, Any]:
    """A computation of this class.

    ClassError where it has no `process`; ConfigError for a config that does not fit, StateError for a State that does not serve.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    method = "process" if kind.batch_schema is None else "process_batch"
    if getattr(kind, method) is getattr(Computation, method):
        why = "" if kind.batch_schema is None else ", for it has a batch_schema"
        raise ClassError(f"{name}: expected a class with the method {method}{why}, found none")
    try:
        computation = kind(config_of(config or {}, kind.Config, name))
    except ValueError as e:
        raise ConfigError(f"{name}: config: {e}") from e
    StateCodec(computation)
    return computation


def config_of(given: Mapping[str, object], kind: type[Any], name: str, setting: str = "config") -> Any:
    """A document's `setting` as an object of the class that `name` takes; ConfigError where it does not fit."""
    unknown = sorted(given.keys() - set(_fields(kind)))
    if unknown:
        known = ", ".join(_fields(kind)) or "none"
        raise ConfigError(f"{name}: {setting}.{unknown[0]} is not known; known: {known}")
    try:
        return msgspec.convert(dict(given), kind)
    except (msgspec.ValidationError, ValueError) as e:
        raise ConfigError(f"{name}: {setting}: {e}") from e


def _fields(kind: type[Any]) -> tuple[str, ...]:
    return (
        tuple(f.name for f in msgspec.structs.fields(kind))
        if issubclass(kind, msgspec.Struct)
        else tuple(getattr(kind, "__dataclass_fields__", {}))
    )
