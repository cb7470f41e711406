"""Whatever is written into a document, reading it ends with a processor or with errors that have places."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemark.shared.language.documents import InvalidDocument, Processor, parse

_CASES = Path(__file__).parents[1] / "golden" / "language" / "cases.jsonl"
_MINUTE = {"size": 1, "unit": "minute"}
_ROOMY: dict[str, Any] = {
    "name": "all",
    "connections": {"k": {"type": "kafka", "bootstrapServers": "${H}"}, "s": {"type": "sql", "url": "sqlite:///x"}},
    "pipeline": [
        {
            "$source": {
                "connectionName": "k", "topic": ["a"], "timeField": {"$toDate": "$t"}, "schema": {"a": "int?"}, "recordId": "$id",
                "watermark": {"strategy": "percentile", "lateFraction": 0.1, "window": _MINUTE}, "until": {"0": 5},
                "config": {"startAt": {"$date": "1970-01-01T00:00:00Z"}, "keyFormat": "json"}, "recordIdHorizon": {"positions": 5},
                "recordIdScope": "split",
            }
        },
        {"$validate": {"validator": {"$jsonSchema": {"properties": {"a": {"bsonType": ["int", "long"], "minimum": 0}}}}}},
        {"$lookup": {"from": {"connectionName": "s", "table": "t"}, "localField": "a", "foreignField": "b", "as": "c"}},
        {"$join": {"from": [{"$source": {"documents": [{"a": 1}]}}], "leftKey": "$a", "rightKey": "$a",
                   "within": {"before": _MINUTE}, "as": "r"}},
        {"$hoppingWindow": {"interval": _MINUTE, "hopSize": _MINUTE, "offset": {"offsetFromUtc": 1, "unit": "ms"}, "pipeline": [
            {"$group": {"_id": {"x": "$a"}, "p": {"$percentile": {"input": "$a", "p": [0.5], "method": "approximate"}},
                        "t": {"$topN": {"output": "$a", "sortBy": {"a": -1}, "n": 2}}}},
            {"$sort": {"p": 1}}, {"$limit": 3}]}},
        {"$compute": {"class": "a.b:C", "key": "$a", "config": {"x": 1}}},
        {"$emit": {"connectionName": "k", "topic": {"$concat": ["a", "$b"]}, "config": {"key": "$a", "tombstoneWhen": False}}},
        {"$merge": {"into": {"connectionName": "s", "table": "t"}, "on": ["a"], "whenMatched": "merge"}},
    ],
    "options": {"dlq": {"path": "d"}, "checkpoint": {"interval": _MINUTE}, "lateness": "split", "streamMetaFieldName": "m"},
}  # fmt: skip
DOCUMENTS: list[dict[str, Any]] = [_ROOMY] * 40 + [
    {"pipeline": case.get("pipeline") or [{"$source": {"documents": []}}, *case.get("stages", [])]}
    for case in map(json.loads, _CASES.read_text("utf-8").splitlines())
]
_JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.sampled_from(
        ["", "$", "$$", "$a..b", "$$ROOT", "$$x", ".", "a.", "\0", "${X}", "é", "$date", "5", "second"]
    ),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["", "a", "a.b", "$a", "$date", "$numberLong", "$and", "$eq", "size", "$match", "_id"]), inner,
                      max_size=2),
    max_leaves=4,
)  # fmt: skip


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    found: list[tuple[Any, Any]] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        pairs = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        for key, item in pairs:
            found.append((node, key))
            if isinstance(item, dict | list):
                stack.append(item)
    return found


def _read(document: Any) -> tuple[Any, ...]:
    """The stages, or the errors."""
    try:
        return parse(document).pipeline
    except InvalidDocument as e:
        return e.errors


def test_the_roomy_document_is_right() -> None:
    """The document that is broken below has no error of its own."""
    assert isinstance(parse(_ROOMY), Processor)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(range(len(DOCUMENTS))), st.data())
def test_broken_documents_give_errors_with_places(index: int, data: st.DataObject) -> None:
    """One to three random changes anywhere: a processor, or errors that each have a sentence; never another exception."""
    document = copy.deepcopy(DOCUMENTS[index])
    for _ in range(data.draw(st.integers(1, 3))):
        places = _places(document)
        node, key = places[data.draw(st.integers(0, len(places) - 1))]
        what = data.draw(st.sampled_from(["replace", "remove", "rename"]))
        if what == "replace" or isinstance(node, list):
            node[key] = data.draw(_JUNK)
        elif what == "remove":
            del node[key]
        else:
            node[data.draw(st.sampled_from(["", "$x", "a", "typo"]))] = node.pop(key)
        if not _places(document):
            break
    found = _read(document)
    assert found
    assert all(getattr(item, "message", "a stage") for item in found)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="{}[]:,-&*!|>'\"$ab \n1.", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Text at random is no document, and is said to be none."""
    with pytest.raises(InvalidDocument):
        parse(text)
