"""Sizes of what travels in one message. They follow from one setting: the largest record that the brokers take.

A field made by `sized` holds the size for brokers that take a million bytes, as they do where nobody has changed them; `fitted` gives
settings for others. So nothing is made that no broker would take, and who raises the brokers' bound and `message_bytes_max` has raised all.
"""

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, replace
from typing import Any, Final, TypeVar

T = TypeVar("T")
MESSAGE_BYTES: Final = 1_000_000
"""Of a record that brokers take by themselves, a little below their default of `max.message.bytes`."""
MESSAGE_BYTES_MIN: Final = 256 * 1024
"""Below it a document of an ordinary length would not fit beside the splits that its tasks read."""
HEADER_BYTES_MAX: Final = 16 * 1024
"""Limit of a frame's header, and of the bytes that surround its rows."""
_GROWS: Final = "grows"


def sized(default: int, *, grows: bool = True) -> int:
    """A field of a dataclass of settings, in bytes: a part of the largest record.

    grows: with larger records it is larger. What is only a good size of a batch is not: it gets smaller, and never larger.
    """
    return field(default=default, metadata={_GROWS: grows})


def fitted(settings: T, message_bytes_max: int) -> T:
    """Settings for brokers that take records of so many bytes. ValueError, with both sizes, where the records are too small."""
    if message_bytes_max < MESSAGE_BYTES_MIN:
        raise ValueError(
            f"message_bytes_max={message_bytes_max} must be at least {MESSAGE_BYTES_MIN}: documents would not fit into a record"
        )
    return replace(settings, **_changed(settings, message_bytes_max))  # type: ignore[type-var]


def _changed(settings: Any, message_bytes_max: int) -> Mapping[str, Any]:
    changed: dict[str, Any] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if (grows := each.metadata.get(_GROWS)) is not None:
            part = value * (message_bytes_max - HEADER_BYTES_MAX) // (MESSAGE_BYTES - HEADER_BYTES_MAX)
            changed[each.name] = part if grows else min(part, value)
        elif is_dataclass(value) and (inner := _changed(value, message_bytes_max)):
            changed[each.name] = replace(value, **inner)  # type: ignore[type-var]
    return changed
