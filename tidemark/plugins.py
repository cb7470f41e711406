"""For sources, sinks, lookups and formats of other packages: what they derive from, give back and raise (`docs/plugins.md`)."""

from tidemark.shared.computation.base import NoConfig
from tidemark.shared.language.values.extended_json import from_json, to_json
from tidemark.shared.model.values import Date, Document, Found, Value
from tidemark.shared.plugins.interface import (
    API,
    Away,
    Batch,
    Format,
    Lookup,
    Overtaken,
    Record,
    Refused,
    Sink,
    Source,
    Split,
)

__all__ = [
    "API",
    "Away",
    "Batch",
    "Date",
    "Document",
    "Format",
    "Found",
    "Lookup",
    "NoConfig",
    "Overtaken",
    "Record",
    "Refused",
    "Sink",
    "Source",
    "Split",
    "Value",
    "from_json",
    "to_json",
]
