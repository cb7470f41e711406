"""Bounds of the local mode from the environment: TIDEMARK_LOCAL, JSON, numbers of `LocalSettings`, and of `BrokerSettings` as `broker`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.shared.model.settings import knobs_of, no_such_setting
from tidemark.shared.process.settings import ProcessSettingsError, read_table

T = TypeVar("T")
PLACE = "TIDEMARK_LOCAL"
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
    known = knobs_of(type(settings))
    for name, value in table.items():
        if name not in known:
            raise ProcessSettingsError(no_such_setting(place, name, known))
        if type(value) not in (int, known[name]) or not (value > 0 or (value == 0 and name in _FROM_ZERO)):
            what = "a positive whole number" if known[name] is int else "a positive number"
            message = f"{place}.{name}: expected {what}, found {value!r}"
            raise ProcessSettingsError(message)
    return replace(settings, **table)  # type: ignore[type-var]
