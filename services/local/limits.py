"""Bounds of the local mode from the environment: TIDEMARK_LOCAL, JSON, numbers of `LocalSettings`, and of `BrokerSettings` as `broker`."""

from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.shared.process.settings import ProcessSettingsError, read_table

T = TypeVar("T")
PLACE = "TIDEMARK_LOCAL"
_GIVEN = frozenset({"port", "controller_port"})
"""Numbers that are no bounds: an argument of the command says them."""
_FROM_ZERO = frozenset({"niceness"})


def limited_broker(settings: BrokerSettings, environment: Mapping[str, str]) -> BrokerSettings:
    """The broker's settings with those of the environment. ProcessSettingsError."""
    found = read_table(environment, "LOCAL").get("broker", {})
    if not isinstance(found, dict):
        message = f"{PLACE}.broker: expected an object, found {type(found).__name__}"
        raise ProcessSettingsError(message)
    return _replaced(settings, found, f"{PLACE}.broker")


def limited(settings: T, environment: Mapping[str, str]) -> T:
    """The installation's settings with those of the environment. ProcessSettingsError."""
    table = read_table(environment, "LOCAL")
    return _replaced(settings, {name: value for name, value in table.items() if name != "broker"}, PLACE)


def _replaced(settings: T, table: Mapping[str, Any], place: str) -> T:
    kinds = {each.name: type(getattr(settings, each.name)) for each in fields(settings)}  # type: ignore[arg-type]
    known = {name: kind for name, kind in kinds.items() if kind in (int, float) and name not in _GIVEN}
    for name, value in table.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            message = f"{place}.{name}: no such setting" + (f"; did you mean {near[0]}?" if near else "")
            raise ProcessSettingsError(message)
        if type(value) not in (int, known[name]) or not (value > 0 or (value == 0 and name in _FROM_ZERO)):
            what = "a positive whole number" if known[name] is int else "a positive number"
            message = f"{place}.{name}: expected {what}, found {value!r}"
            raise ProcessSettingsError(message)
    return replace(settings, **table)  # type: ignore[type-var]
