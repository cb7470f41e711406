"""Classes of settings: numbers are positive, and an operator may change those fields that are knobs.

Each other field is fixed, and its reason stands beside it. It is a field all the same: tests and the simulation make it small.
"""

from collections.abc import Iterable
from dataclasses import field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeVar, get_type_hints


def check_positive(settings: object, what: str, *, but: frozenset[str] = frozenset()) -> None:
    """ValueError that names the first whole number of a dataclass that is below one.

    what: name of the settings' owner; "" where that is plain. but: those that may be zero.
    """
    setting = f"{what} setting" if what else "setting"
    for each in fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, each.name)
        if type(value) is int and value < (0 if each.name in but else 1):
            least = "0 or more" if each.name in but else "a positive number"
            raise ValueError(f"{setting} {each.name}: expected {least}, found {value}")


T = TypeVar("T")
_KNOB: Final = "knob"


def knob(default: T, *, shown: bool = True) -> T:
    """A field of a dataclass of settings that an operator may set. shown: in a repr; a secret is not."""
    return field(default=default, repr=shown, metadata={_KNOB: True})


def no_such_setting(place: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is none of the known ones, with the nearest."""
    near = get_close_matches(name, list(known), 1)
    return f"{place}.{name}: no such setting" + (f"; did you mean {near[0]}?" if near else "")


def knobs_of(kind: Any) -> dict[str, Any]:
    """Names and types of the settings in a dataclass that may be set: knobs, and tables of knobs."""
    hints = get_type_hints(kind)
    return {
        each.name: hints[each.name]
        for each in fields(kind)
        if each.metadata.get(_KNOB) or is_dataclass(hints[each.name])
    }
