"""What may change while a processor goes on from its checkpoint."""

from typing import Any

import pytest

from tidemark.shared.language.documents import parse, refusals

_SECOND = {"size": 1, "unit": "second"}
_DELAY = {"strategy": "boundedDisorder", "maxDelay": _SECOND}
_GROUP: dict[str, Any] = {"$group": {"_id": "$k", "n": {"$sum": "$v"}}}


def _pipeline(**change: Any) -> list[dict[str, Any]]:
    """A pipeline with each kind of state, parts of it replaced."""
    return [
        change.get("source", {"$source": {"documents": [], "timeField": {"$toDate": "$t"}}}),
        *change.get("before", []),
        change.get("window", {"$tumblingWindow": {"interval": _SECOND, "pipeline": [_GROUP]}}),
        *change.get("computations", [{"$compute": {"class": "m:A", "key": {"$toLower": "$_id"}}}]),
        *change.get("sinks", [{"$emit": {"path": "out", "format": "json"}}]),
    ]


def _refused(**change: Any) -> list[str]:
    old, new = parse({"pipeline": _pipeline()}), parse({"pipeline": _pipeline(**change)})
    return [e.message for e in refusals(old, new)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"before": [{"$match": {"a": 1}}]},
        {"sinks": []},
        {"computations": []},
        {"computations": [{"$compute": {"class": "m:B", "key": "$x"}}, {"$compute": {"class": "m:A", "key": {"$toLower": "$_id"}}}]},
        {"window": {"$tumblingWindow": {"interval": {"size": 1000, "unit": "ms"}, "pipeline": [_GROUP, {"$match": {"n": 1}}],
                                        "allowedLateness": _SECOND}}},
        {"source": {"$source": {"documents": [], "timeField": {"$toDate": "$t"}, "maxEventTimeJump": _SECOND}}},
        {"source": {"$source": {"documents": [], "timeField": {"$toDate": "$t"}, "partitionIdleTimeout": _SECOND}}},
        {"source": {"$source": {"documents": [], "timeField": {"$toDate": "$t"}, "watermark": _DELAY}}},
    ],
    ids=str,
)  # fmt: skip
def test_what_may_change(change: dict[str, Any]) -> None:
    """Stateless stages, lateness, whom a source waits for, what follows a group, sinks and further computations; places move."""
    assert _refused(**change) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"source": {"$source": {"documents": [], "timeField": {"$toDate": "$u"}}}}, "$source"),
        (
            {"window": {"$tumblingWindow": {"interval": {"size": 2, "unit": "second"}, "pipeline": [_GROUP]}}},
            "interval",
        ),
        ({"window": {"$hoppingWindow": {"interval": _SECOND, "hopSize": _SECOND, "pipeline": [_GROUP]}}}, "type"),
        (
            {
                "window": {
                    "$tumblingWindow": {
                        "interval": _SECOND,
                        "pipeline": [{"$group": {"_id": "$j", "n": {"$sum": "$v"}}}],
                    }
                }
            },
            "$group",
        ),
        ({"computations": [{"$compute": {"class": "m:B", "key": {"$toLower": "$_id"}}}]}, "class"),
        ({"computations": [{"$compute": {"class": "m:A", "key": "$_id"}}]}, "key"),
        ({"before": [{"$union": {"pipelines": [[{"$source": {"documents": []}}]]}}]}, "$union"),
    ],
    ids=str,
)
def test_what_may_not_change(change: dict[str, Any], word: str) -> None:
    """What made the state may not change; the refusal names it and the remedy."""
    found = _refused(**change)
    assert len(found) == 1
    assert word in found[0]
    assert "resumeFromCheckpoint" in found[0]
