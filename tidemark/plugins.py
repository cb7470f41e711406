"""For sources, sinks, lookups and formats of other packages: what they derive from, give back and raise (`docs/plugins.md`)."""

from tidemark.shared.computation.base import NoConfig
from tidemark.shared.language.values.extended_json import from_json, to_json
from tidemark.shared.model.tables import Found
from tidemark.shared.model.values import Date, Document, Value
from tidemark.shared.plugins.base import API
from tidemark.shared.plugins.format import Format
from tidemark.shared.plugins.lookup import Lookup
from tidemark.shared.plugins.problems import Away, Overtaken, Refused
from tidemark.shared.plugins.sink import Sink
from tidemark.shared.plugins.source import Batch, Record, Source, Split

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
