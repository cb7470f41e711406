"""Documents and values as Python has them: as the language's and back; documents checked, and explained."""

import json
import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from tidemark.services.cli.explain import phases, planned
from tidemark.services.cli.foreseen import refused_by_a_run
from tidemark.services.cli.reading import read_document
from tidemark.services.library.terms import own_terms
from tidemark.services.local.folders import BROKER_VARIABLE
from tidemark.shared.language.documents import InvalidDocument
from tidemark.shared.language.values import to_json
from tidemark.shared.language.values.instants import moment_of, ms_of
from tidemark.shared.language.values.numbers import DECIMAL
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, UUID_SUBTYPE, Binary, Date
from tidemark.shared.planning import Engine, PlanError


def to_language(value: object, place: str = "row") -> Any:
    """Relaxed extended JSON of a value: what is extended JSON already stays it. TypeError and ValueError name the place.

    value: mappings, sequences, dates (without a zone: UTC), bytes, `Decimal`, UUIDs, numpy's scalars and arrays, and the language's own.
    Whole numbers beyond a long are doubles, as in JSON; what pandas takes for a missing scalar is null.
    """
    match value:
        case Mapping():
            found = {_text(str(name), place): to_language(item, f"{place}.{name}") for name, item in value.items()}
            if len(found) < len(value):
                raise ValueError(f"{place}: two names are the same text")
            return found
        case str():
            return _text(str.__str__(value), place)  # of its own kind: an enumeration's member, a text of numpy's
        case np.ndarray():
            return to_language(list(value) if value.ndim else value[()], place)
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return [to_language(item, f"{place}[{number}]") for number, item in enumerate(value)]
    try:
        return to_json(_scalar(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{place}: {error}") from None


def _text(text: str, place: str) -> str:
    """The text, if it has an encoding. ValueError."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{place}: {ascii(text)[:100]} is no text: {error.reason}") from None
    return text


def _scalar(value: object) -> Any:
    """The language's value of one of Python's, numpy's or pandas', as far as it has one. ValueError, OverflowError."""
    match value:
        case bytearray() | memoryview() | bytes() if not isinstance(value, Binary):
            return Binary(bytes(value))
        case uuid.UUID():
            return Binary(value.bytes, UUID_SUBTYPE)
        case np.datetime64():
            return None if np.isnat(value) else Date(int(value.astype("datetime64[ms]").astype(np.int64)))
        case np.generic() if not isinstance(value, np.timedelta64):
            return _scalar(value.item())
        case datetime():
            if value != value:  # noqa: PLR0124 - pandas' NaT
                return None
            return Date(ms_of(value))
        case date():
            return Date(ms_of(value))
        case Decimal():
            if value.is_finite() and DECIMAL.create_decimal(value) != value:
                raise ValueError(f"a decimal has at most 34 digits, and an exponent within 6144, found {value}")
        case int() if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
            return float(value)
    return None if type(value).__name__ == "NAType" else value  # pandas' NA, which is not loaded for its sake


def to_python(value: object) -> Any:
    """A value of the language with dates as `datetime` in UTC; one beyond the years that it has stays a `Date`."""
    match value:
        case Date():
            try:
                return moment_of(value)
            except OverflowError:
                return value
        case dict():
            return {name: to_python(item) for name, item in value.items()}
        case list():
            return [to_python(item) for item in value]
    return value


AnyDocument: TypeAlias = Mapping[str, Any] | str | Path
"""A processor's document: as a mapping, as a text in YAML or JSON, or the path of its file."""


_FILES: Final = (".yaml", ".yml", ".json")


def text_of(document: AnyDocument) -> str:
    """The text of a document. Unreadable for a path without one; TypeError if it is no document."""
    match document:
        case Path():
            return read_document(document)
        case str():
            if document.endswith(_FILES) and "\n" not in document:
                raise TypeError(
                    f"expected a document, found the text {document!r}: the path of a file is a pathlib.Path"
                )
            return document
        case Mapping():
            return json.dumps(to_language(document, "document"))
    raise TypeError(
        f"expected a document: a mapping, a text in YAML or JSON, or the pathlib.Path of a file; found {type(document).__name__}"
    )


class DocumentWarning(UserWarning):
    """A part of a document that is valid, but hardly meant."""


def validate(document: AnyDocument) -> list[str]:
    """The reasons why `tidemark run` would refuse it, each `place: reason`; [] if none. Connects to nothing. Unreadable, TypeError.

    What is valid and hardly meant, such as a misspelt field, is a `DocumentWarning`.
    """
    try:
        with own_terms():
            processor, _ = planned(text_of(document), "spark")
            refused = refused_by_a_run(processor, {BROKER_VARIABLE: "", **os.environ})
    except InvalidDocument as error:
        return [str(each) for each in error.errors]
    except PlanError as error:
        return [str(error)]
    for doubt in processor.warnings:
        warnings.warn(str(doubt), DocumentWarning, stacklevel=2)
    return [str(each) for each in refused]


def explain(document: AnyDocument, engine: Engine = "spark") -> str:
    """How it would run, as `tidemark explain` shows it. InvalidDocument, PlanError, Unreadable, TypeError."""
    with own_terms():
        return "\n".join(phases(*planned(text_of(document), engine)))
