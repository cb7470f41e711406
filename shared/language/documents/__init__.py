"""A processor's document: read, checked as a whole, typed."""

from tidemark.shared.language.documents.changes import refusals
from tidemark.shared.language.documents.connections import resolve
from tidemark.shared.language.documents.model import (
    CollectionDlq,
    Dlq,
    FileDlq,
    KafkaDlq,
    Options,
    Processor,
    all_stages,
)
from tidemark.shared.language.documents.parse import parse
from tidemark.shared.language.problems import DocumentError, InvalidDocument

__all__ = [
    "CollectionDlq",
    "Dlq",
    "DocumentError",
    "FileDlq",
    "InvalidDocument",
    "KafkaDlq",
    "Options",
    "Processor",
    "all_stages",
    "parse",
    "refusals",
    "resolve",
]
