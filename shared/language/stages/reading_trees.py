"""Reading the field trees of `$project`, `$addFields` and `$unset`: dotted paths and nested objects are the same."""

import json
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

from tidemark.shared.language.expressions.ast import Literal as Constant
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import EXPRESSION
from tidemark.shared.language.problems import Problems, join
from tidemark.shared.language.stages.trees import Branch, Computed, Drop, Keep, Leaf
from tidemark.shared.language.values.extended_json import SPECIAL
from tidemark.shared.language.values.types import is_number

Entry: TypeAlias = tuple[tuple[str, ...], Leaf, str]
"""A path's names, the leaf there, and the place in the document."""
Mode = Literal["inclusion", "exclusion"]
FIELDS_SCHEMA: Final = {"type": "object", "minProperties": 1, "additionalProperties": EXPRESSION.schema}
_QUOTED: Final = frozenset({"0", "1", "true", "false"})
"""Texts that would keep a field, or leave it out, without their quotes."""
_KEEP: Final = Keep()
_DROP: Final = Drop()


def _names(text: str, path: str, scope: Scope) -> tuple[str, ...] | None:
    names = tuple(text.split("."))
    if not all(names) or any(name.startswith("$") for name in names):
        scope.problems.add(path, f"{text!r} is no field path: its names must not be empty nor start with $")
        return None
    return names


def _is_nested(tree: Any) -> bool:
    """Whether an object is further fields rather than one expression or typed value."""
    return (
        type(tree) is dict
        and bool(tree)
        and not (len(tree) == 1 and next(iter(tree)) in SPECIAL)
        and not any(name.startswith("$") for name in tree)
    )


def _entries(
    tree: dict[str, Any], path: str, scope: Scope, before: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    for text, item in tree.items():
        place = join(path, text)
        names = _names(text, place, scope)
        if names is None:
            continue
        if _is_nested(item):
            yield from _entries(item, place, scope.deeper(), before + names)
        else:
            yield before + names, item, place


def _build(entries: list[Entry], scope: Scope) -> Branch:
    """The tree of the entries; a path that is also the beginning of another one is a collision."""
    root: dict[str, Any] = {}
    for names, leaf, place in entries:
        if not scope.allows(names, place):
            continue
        level = root
        for name in names[:-1]:
            below = level.setdefault(name, {})
            if type(below) is not dict:
                scope.problems.add(place, f"the path {'.'.join(names)} collides with {name}, which is given as a whole")
                break
            level = below
        else:
            if names[-1] in level:
                scope.problems.add(place, f"the path {'.'.join(names)} is given twice, or collides with a longer one")
            else:
                level[names[-1]] = leaf
    return _freeze(root)


def _freeze(tree: dict[str, Any]) -> Branch:
    return Branch(tuple((name, _freeze(item) if type(item) is dict else item) for name, item in tree.items()))


def _object(tree: Any, path: str, scope: Scope) -> bool:
    if type(tree) is dict and tree:
        return True
    scope.problems.add(path, f"{path.rpartition('.')[2]} takes an object with at least one field")
    return False


def computed_tree(tree: Any, path: str, scope: Scope) -> Branch | None:
    """The tree of `$addFields`."""
    if not _object(tree, path, scope):
        return None
    entries: list[Entry] = [
        (names, Computed(parse_expression(item, place, scope)), place)
        for names, item, place in _entries(tree, path, scope, ())
    ]
    for name, item in tree.items():
        _no_dots_within(item, join(path, name), scope)
    return _build(entries, scope)


def _no_dots_within(tree: Any, path: str, scope: Scope) -> None:
    """A dotted path of `$addFields` stands at the top alone: within an object it would be a field of that name, which no document has."""
    if not _is_nested(tree):
        return
    for name, item in tree.items():
        if "." in name:
            scope.problems.add(
                join(path, name), f"{name!r} is no field name: a path with dots stands at the top of the stage"
            )
        _no_dots_within(item, join(path, name), scope)


def drop_tree(texts: list[Any], path: str, scope: Scope) -> Branch | None:
    """The tree of `$unset`."""
    if not texts or not all(type(text) is str for text in texts):
        scope.problems.add(path, "$unset takes a field path or a list of at least one")
        return None
    entries: list[Entry] = []
    for text in texts:
        names = _names(text, path, scope)
        if names is not None:
            entries.append((names, _DROP, path))
    return _build(entries, scope)


def _leaf(item: Any, place: str, scope: Scope) -> Leaf:
    expr = parse_expression(item, place, scope)
    if not isinstance(expr, Constant) or (type(item) is dict and "$literal" in item):
        return Computed(expr)
    value = expr.value
    if type(value) is bool or is_number(value):
        if value not in (0, 1):
            scope.problems.warn(place, f"{item} keeps the field, as any number but 0 does: 1 is usual")
        return _KEEP if value else _DROP
    alone = value[0] if type(value) is list and len(value) == 1 else value
    listed = alone is not value and (type(alone) is bool or is_number(alone))
    if value is None or listed or (type(value) is str and value.strip() in _QUOTED):
        scope.problems.warn(place, f"is {json.dumps(item)} for every document: 1 keeps the field, 0 leaves it out")
    return Computed(expr)


def projection(tree: Any, path: str, scope: Scope) -> tuple[Mode, Branch] | None:
    """The mode and the tree of `$project`; `_id` may be left out of an inclusion, and is kept by one that does not name it."""
    if not _object(tree, path, scope):
        return None
    for _, item, place in _entries(tree, path, Scope(Problems()), ()):
        if type(item) is dict and not item:
            scope.problems.add(place, "an empty object keeps and leaves out nothing ($literal makes an empty document)")
    entries: list[Entry] = [
        (names, _leaf(item, place, scope), place) for names, item, place in _entries(tree, path, scope, ())
    ]
    others = [leaf for names, leaf, _ in entries if names != ("_id",)]
    drops = [leaf for leaf in others if isinstance(leaf, Drop)]
    if drops and len(drops) < len(others):
        scope.problems.add(
            path, "$project either includes (1, expressions) or excludes (0): they do not mix, except for _id"
        )
        return None
    ids = [leaf for names, leaf, _ in entries if names == ("_id",)]
    excluding = bool(drops) or (not others and bool(ids) and isinstance(ids[0], Drop))
    if excluding:
        if ids and not isinstance(ids[0], Drop):
            if isinstance(ids[0], Computed):
                scope.problems.add(path, "an exclusion cannot compute _id")
            entries = [e for e in entries if e[0] != ("_id",)]
        return "exclusion", _build(entries, scope)
    if not ids and not any(names[0] == "_id" for names, _, _ in entries):
        entries.insert(0, (("_id",), _KEEP, path))
    entries = [e for e in entries if not isinstance(e[1], Drop)]
    return "inclusion", _build(entries, scope)
