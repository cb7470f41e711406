"""A processor's document: read, checked as a whole, typed."""

from shared.language.documents.changes import refusals
from shared.language.documents.connections import resolve
from shared.language.documents.model import FileDlq, KafkaDlq, Options, Processor, TableDlq, all_stages
from shared.language.documents.parse import parse
from shared.language.problems import DocumentError, InvalidDocument

__all__ = [
    "DocumentError",
    "FileDlq",
    "InvalidDocument",
    "KafkaDlq",
    "Options",
    "Processor",
    "TableDlq",
    "all_stages",
    "parse",
    "refusals",
    "resolve",
]
