"""Documents and values as Python has them: as the language's and back; documents checked, and explained."""

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeAlias

from tidemark.services.cli.explain import phases, planned
from tidemark.services.cli.foreseen import refused_by_a_run
from tidemark.services.cli.reading import read_document
from tidemark.services.local.folders import BROKER_VARIABLE
from tidemark.shared.language.documents import InvalidDocument
from tidemark.shared.language.values import to_json
from tidemark.shared.model.values import Date
from tidemark.shared.planning import Engine, PlanError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_language(value: Any, place: str = "row", *, canonical: bool = True) -> Any:
    """Extended JSON of a value, canonical or relaxed. TypeError names the place.

    value: mappings, sequences, dates (without a zone: UTC), `Decimal`, numpy's scalars, and the language's own.
    """
    match value:
        case Date():
            return to_json(value, canonical=canonical)
        case Mapping():
            return {
                str(name): to_language(item, f"{place}.{name}", canonical=canonical) for name, item in value.items()
            }
        case str() | bytes():
            return to_json(value, canonical=canonical)
        case Sequence():
            return [to_language(item, f"{place}[{number}]", canonical=canonical) for number, item in enumerate(value)]
        case datetime():
            aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return {"$date": {"$numberLong": str((aware - _EPOCH) // timedelta(milliseconds=1))}}
        case Decimal():
            return {"$numberDecimal": str(value)}
    item = getattr(value, "item", None)  # a scalar of numpy's
    try:
        return to_json(item() if callable(item) else value, canonical=canonical)
    except TypeError as error:
        raise TypeError(f"{place}: {error}") from None


def to_python(value: Any) -> Any:
    """A value of the language with dates as `datetime` in UTC; one beyond the years that it has stays a `Date`."""
    match value:
        case Date():
            try:
                return _EPOCH + timedelta(milliseconds=int(value))
            except OverflowError:
                return value
        case dict():
            return {name: to_python(item) for name, item in value.items()}
        case list():
            return [to_python(item) for item in value]
    return value


AnyDocument: TypeAlias = Mapping[str, Any] | str | Path
"""A processor's document: as a mapping, as a text in YAML or JSON, or the path of its file."""


def text_of(document: AnyDocument) -> str:
    """The text of a document. Unreadable for a path without one; TypeError if it is no document."""
    match document:
        case Path():
            return read_document(document)
        case str():
            return document
        case Mapping():
            return json.dumps(to_language(document, "document", canonical=False))
    raise TypeError(
        f"expected a document: a mapping, a text in YAML or JSON, or the pathlib.Path of a file; found {type(document).__name__}"
    )


def validate(document: AnyDocument) -> list[str]:
    """The reasons why `tidemark run` would refuse it, each `place: reason`; [] if none. Connects to nothing. Unreadable, TypeError."""
    try:
        processor, _ = planned(text_of(document), "spark")
    except InvalidDocument as error:
        return [str(each) for each in error.errors]
    except PlanError as error:
        return [str(error)]
    return [str(each) for each in refused_by_a_run(processor, {BROKER_VARIABLE: "", **os.environ})]


def explain(document: AnyDocument, engine: Engine = "spark") -> str:
    """How it would run, as `tidemark explain` shows it. InvalidDocument, PlanError, Unreadable, TypeError."""
    return "\n".join(phases(*planned(text_of(document), engine)))
