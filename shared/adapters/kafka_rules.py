"""The records that a topic refuses, read from its settings."""

from collections.abc import Mapping
from typing import Final

from tidemark.shared.ports.log import TopicRules

_BYTES: Final = "max.message.bytes"
_CLEANUP: Final = "cleanup.policy"
_TIME: Final = "message.timestamp.type"
_AHEAD: Final = "message.timestamp.after.max.ms"
_BEHIND: Final = "message.timestamp.before.max.ms"
_EITHER: Final = "message.timestamp.difference.max.ms"
"""Before Kafka 3.6."""
RULES: Final = (_BYTES, _CLEANUP, _TIME, _AHEAD, _BEHIND, _EITHER)
"""The settings that `rules_of` looks at."""
_AHEAD_MS: Final = 3_600_000
"""Kafka's default since 4.0."""


def rules_of(settings: Mapping[str, str | None]) -> TopicRules:
    """The rules of a topic with these settings; one that is not told has Kafka's default."""
    if settings.get(_TIME) == "LogAppendTime":
        ahead = behind = None
    else:
        either = _number(settings.get(_EITHER))
        ahead = _least(_number(settings.get(_AHEAD)) if settings else _AHEAD_MS, either)
        behind = _least(_number(settings.get(_BEHIND)), either)
    return TopicRules(
        batch_bytes_max=_number(settings.get(_BYTES)),
        needs_key="compact" in (settings.get(_CLEANUP) or ""),
        ahead_ms_max=ahead,
        behind_ms_max=behind,
    )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)
