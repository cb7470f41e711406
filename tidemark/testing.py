"""For tests of a user's own.

`Harness` runs a computation with records, watermarks, time and restarts, `Chain` several. `SinkContract`, `SourceContract`,
`LookupContract`, `FormatContract` and `ComputationContract` are the tests that plug-ins have to pass (`docs/plugins.md`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidemark.shared.computation.harness import Chain, Harness

if TYPE_CHECKING:
    from tidemark.services.library.certifying import FormatContract, LookupContract, SourceContract
    from tidemark.services.library.certifying_computations import ComputationContract
    from tidemark.services.library.certifying_sinks import SinkContract

__all__ = [
    "Chain",
    "ComputationContract",
    "FormatContract",
    "Harness",
    "LookupContract",
    "SinkContract",
    "SourceContract",
]


_CONTRACTS = {
    "ComputationContract": "certifying_computations",
    "FormatContract": "certifying",
    "LookupContract": "certifying",
    "SinkContract": "certifying_sinks",
    "SourceContract": "certifying",
}


def __getattr__(name: str) -> Any:
    # They load connectors, which tests of computations do not need.
    if name not in _CONTRACTS:
        raise AttributeError(f"module 'tidemark.testing' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"tidemark.services.library.{_CONTRACTS[name]}"), name)
