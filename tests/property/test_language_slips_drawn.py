"""One slip drawn into a valid document: `validate` tells of it, or what comes out is the same, or it may be meant.

A slip is what fingers do: a value in quotes, in a list, without its dollar, left out. Where nothing tells of it and something else comes
out, either a class of slips has no check yet, or it is one that a document may mean (`_MEANT`).
"""

import copy
import json
import random
import re
import warnings
from collections.abc import Iterator
from typing import Any, Final

import pytest

import tidemark
from tests.harness.share import CI
from tidemark.services.library.documents import DocumentWarning

Path = tuple[str | int, ...]
_SHARE: Final = 8
"""In CI, of so many slips one: always the same."""
_ROWS: Final = [
    {
        "at": {"$date": f"2026-01-01T00:{n:02}:00Z"}, "id": n, "shop": "north" if n % 3 else "south",
        "user": f"u{n % 2}", "amount": n + 1, "note": f"hello {n}", "address": {"city": "Ulm", "zip": f"{n}"},
        "items": [{"sku": "a", "n": n}, {"sku": "b", "n": 1}],
    }
    for n in range(12)
]  # fmt: skip
_SOURCE: Final = {"$source": {"connectionName": "k", "topic": "orders", "timeField": {"$toDate": "$at"}}}
_CONNECTIONS: Final = {"k": {"type": "kafka", "bootstrapServers": "localhost:9092"}}
_BASES: Final[dict[str, list[Any]]] = {
    "expressions": [
        {"$match": {"amount": {"$gt": 2}, "shop": {"$in": ["north", "south"]}}},
        {
            "$addFields": {
                "total": {"$multiply": ["$amount", 2]},
                "city": {"$concat": ["in ", "$address.city"]},
                "cheap": {"$cond": {"if": {"$lt": ["$amount", 9]}, "then": "yes", "else": "no"}},
                "skus": {"$filter": {"input": "$items", "as": "i", "cond": {"$gt": ["$$i.n", 5]}}},
                "size": {"$switch": {"branches": [{"case": {"$gt": ["$amount", 8]}, "then": "L"}], "default": "S"}},
            }
        },
        {"$project": {"_id": 0, "id": 1, "total": 1, "city": 1, "cheap": 1, "skus": 1, "size": 1, "name": {"$toUpper": "$shop"}}},
    ],
    "documents": [
        {"$match": {"$expr": {"$and": [{"$gt": ["$amount", 2]}, {"$ne": ["$user", "u9"]}]}}},
        {"$redact": {"$cond": {"if": {"$gt": ["$amount", 3]}, "then": "$$KEEP", "else": "$$PRUNE"}}},
        {"$unwind": {"path": "$items", "includeArrayIndex": "row"}},
        {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$address", {"id": "$id", "sku": "$items.sku"}]}}},
    ],
    "windows": [
        {
            "$tumblingWindow": {
                "interval": {"size": 4, "unit": "minute"},
                "pipeline": [
                    {
                        "$group": {
                            "_id": "$shop",
                            "mean": {"$avg": "$amount"},
                            "most": {"$max": "$amount"},
                            "notes": {"$push": "$note"},
                            "large": {"$sum": {"$cond": [{"$gt": ["$amount", 5]}, 1, 0]}},
                        }
                    },
                    {"$project": {"_id": 0, "shop": "$_id", "mean": 1, "most": 1, "notes": 1, "large": 1}},
                ],
            }
        },
    ],
    "lookups": [
        {
            "$lookup": {
                "from": {"documents": [{"user": "u0", "name": "ann"}, {"user": "u1", "name": "bob"}]},
                "let": {"u": "$user"},
                "pipeline": [{"$match": {"$expr": {"$eq": ["$user", "$$u"]}}}, {"$project": {"_id": 0, "name": 1}}],
                "as": "who",
            }
        },
        {"$unset": ["items", "address"]},
    ],
}  # fmt: skip
_MEANT: Final[tuple[tuple[str, str], ...]] = (
    (r".*", "left out|twice"),  # a document may have fewer parts, and more
    (r".*\.(size|includeArrayIndex|as|unit)", ".*"),  # other windows, and other names
    (r".*\$match\.\w+", "null|without its braces"),  # what has no value; what is equal to the operator's own
    (
        r".*\$(gt|lt|ne|eq|in)(\[\d\]){0,2}",
        "in quotes|null|other number|empty",
    ),  # other constants; beside null is "is there"
    (r".*\$in\[\d\]", "in a list"),  # arrays are looked for
    (r".*\$eq\[1\]", "without its dollar"),  # a text that a variable has
    (r".*\$addFields\.\w+", ".*"),  # constants, lists and documents of all kinds are computed there
    (r".*\$project\.(shop|name)", "in a list|empty|as a list|without its braces"),  # as by $addFields
    (r".*\$project\._id", "a truth value"),
    (r".*\$(multiply|concat|toUpper)(\[\d\])?", "other number|empty"),
    (r".*(then|else|default)", ".*"),
    (r".*\$cond\[[12]\]", "other number|null"),
    (r".*\$push", "in a list|without its dollar|other number"),  # so many of them
    (r".*\$group\._id", "null"),  # one group
    (r".*\$mergeObjects\[1\].*", ".*"),  # as by $addFields
    (r".*let\.u", ".*"),  # parameters are constants, too
    (r".*\$lookup\.pipeline", "empty"),  # all that is there
)
"""Place and slip, each a pattern: such a slip may be meant."""


def _nodes(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield path, tree
    if isinstance(tree, dict | list):
        for name, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
            if name != "documents":
                yield from _nodes(item, (*path, name))


def _slips(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value becomes."""
    yield "in a list", [value]
    yield "null", None
    match value:
        case str():
            yield "empty", ""
            yield "other number", 7
            yield "an empty document", {}
            if value.startswith("$"):
                yield "without its dollar", value.lstrip("$")
                yield "with a blank", f"{value} "
        case bool() | int() | float():
            yield "in quotes", str(value)
            yield "a truth value", True
            yield "other number", -value - 1
        case dict() | list():
            yield "in quotes", json.dumps(value)
            yield "empty", type(value)()
            if isinstance(value, dict):
                yield "as a list", [{name: item} for name, item in value.items()]
                if len(value) == 1:
                    yield "without its braces", next(iter(value.values()))


def _with(tree: Any, path: Path, what: str, other: Any = None) -> Any:
    """The tree with a slip at a place of it: another value, or the place left out, or twice."""
    changed = copy.deepcopy(tree)
    parent, name = changed, path[-1]
    for each in path[:-1]:
        parent = parent[each]
    if what == "left out":
        del parent[name]
    elif what == "twice":
        parent.insert(name, copy.deepcopy(parent[name]))
    else:
        parent[name] = other
    return changed


def _drawn(stages: list[Any]) -> Iterator[tuple[str, str, list[Any]]]:
    """Each slip: its place, what it is, and the stages with it."""
    for path, value in _nodes(stages):
        if not path:
            continue
        place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
        for what, other in _slips(value):
            yield place, what, _with(stages, path, what, other)
        for what in ("left out", "twice") if isinstance(path[-1], int) else ("left out",):
            yield place, what, _with(stages, path, what)


def _document(stages: list[Any]) -> dict[str, Any]:
    emit = {"$emit": {"connectionName": "k", "topic": "out"}}
    return {"connections": _CONNECTIONS, "pipeline": [_SOURCE, *stages, emit]}


def _is_told(document: dict[str, Any]) -> bool:
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", DocumentWarning)
        return bool(tidemark.validate(document) or doubts)


def _outcome(document: dict[str, Any]) -> tuple[list[Any], int]:
    found = tidemark.try_out(document, _ROWS)
    return found.documents, len(found.dead_letters)


def _is_meant(place: str, what: str) -> bool:
    return any(re.fullmatch(where, place) and re.fullmatch(which, what) for where, which in _MEANT)


@pytest.mark.parametrize("name", _BASES)
def test_a_slip_is_told_or_changes_nothing_or_may_be_meant(name: str) -> None:
    """Each slip at each place of a document; in CI a share of them."""
    stages = _BASES[name]
    assert not _is_told(_document(stages))
    whole = _outcome(_document(stages))
    assert whole[0]
    assert not whole[1]
    slips = [slip for slip in _drawn(stages) if not _is_meant(*slip[:2])]
    chosen = random.Random(name).sample(slips, len(slips) // _SHARE) if CI else slips
    silent = [
        f"{place}: {what}"
        for place, what, changed in chosen
        if not _is_told(_document(changed)) and _outcome(_document(changed)) != whole
    ]
    assert not silent, "something else comes out, and nobody tells: " + "; ".join(silent)
