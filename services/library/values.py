"""Values of Python and of the language, one as the other."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from tidemark.shared.language.values import to_json
from tidemark.shared.model.values import Date

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
