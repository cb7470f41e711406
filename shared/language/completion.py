"""Proposals for a place of a document that is being written: from its JSON Schema, and from the rest of the document.

The text is JSON up to the cursor, and may be anything behind it: unfinished, or wrong. Of a YAML text nothing is proposed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal

from tidemark.shared.language.query.parse import QUERY_OPERATORS
from tidemark.shared.language.schema_json import document_schema, documentation

PROPOSALS_MAX: Final = 60
"""Of an answer: all stages, or all options of a source, are fewer; of 170 operators a letter leaves fewer."""
DEPTH_MAX: Final = 100
"""Of arrays and objects in each other, as for documents; within deeper ones nothing is proposed."""
_VARIABLES: Final = {
    "$$ROOT": "the document",
    "$$NOW": "when it arrived",
    "$$REMOVE": "no value: the field is left out",
}
_WORD: Final = re.compile(r"[\w.+-]+")
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*')
_REST: Final = re.compile(r'([\w.$-]*)"')
"""Behind a cursor in a string: without it the quote is still to come, and what follows is no part of the string."""
Step = str | int
Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """One of the possible words."""

    label: str
    """As people read it."""
    detail: str
    """Its meaning, or its origin."""
    insert: str
    """The text that takes the place of `before` and `after`."""
    back: int
    """Where the cursor then stands: so many characters before the end of `insert`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Proposals at a place, best first."""

    before: str
    """The part of the word that is written before the cursor; `insert` takes its place."""
    after: str
    """The part behind it."""
    proposals: Sequence[Proposal]


@dataclass(slots=True)
class _Level:
    """An array or an object that is open."""

    path: Path
    is_object: bool
    index: int = 0
    key: str | None = None
    """Of an object, behind its colon; None: a key is expected."""
    strings: dict[str, str] = field(default_factory=dict)
    """Keys so far with their values, where they are strings; else ""."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the cursor is."""

    kind: Literal["key", "value"]
    path: Path
    """Of the object for a key; of the value."""
    before: str
    after: str
    quoted: bool
    """It stands in a string."""
    closed: bool
    """The string's second quote is there."""
    level: _Level
    """The innermost object or array; it fills while the text behind the cursor is read."""
    colon: bool
    """A colon follows: the key has a value."""


@dataclass(slots=True)
class _Walk:
    """A walk over the text that forgives what is unfinished."""

    text: str
    cursor: int
    levels: list[_Level] = field(default_factory=list)
    place: _Place | None = None
    connections: dict[str, str] = field(default_factory=dict)
    """Of the document: types by name."""
    fields: list[str] = field(default_factory=list)
    """Declared by its sources, with dots."""

    def run(self) -> None:
        at, text = 0, self.text
        while at < len(text):
            if at == self.cursor and self.place is None:
                self._stand("", "", at)
            sign = text[at]
            if sign == '"':
                at = self._string(at)
            elif sign in "{[":
                if len(self.levels) >= DEPTH_MAX:
                    return
                self.levels.append(_Level(self._here(), sign == "{"))
                at += 1
            elif sign in "}]":
                if self.levels:
                    self.levels.pop()
                at += 1
            elif sign == ",":
                if self.levels:
                    self.levels[-1].index += 1
                    self.levels[-1].key = None
                at += 1
            elif (word := _WORD.match(text, at)) is not None:
                if at < self.cursor <= word.end() and self.place is None:
                    self._stand(text[at : self.cursor], text[self.cursor : word.end()], word.end())
                at = word.end()
            else:
                at += 1
        if self.place is None and self.cursor >= len(text):
            self._stand("", "", at)

    def _here(self) -> Path:
        """Of the value that may begin."""
        if not self.levels:
            return ()
        level = self.levels[-1]
        return (*level.path, (level.key or "") if level.is_object else level.index)

    def _string(self, at: int) -> int:
        found = _STRING.match(self.text, at)
        begin, end = at + 1, found.end() if found is not None else at + 1
        closed = end < len(self.text) and self.text[end] == '"'
        stands = begin <= self.cursor <= end and self.place is None
        if stands:
            rest = _REST.match(self.text, self.cursor)
            closed = rest is not None
            end = self.cursor if rest is None else rest.end() - 1
        value, behind = self.text[begin:end], end + 1 if closed else end
        if stands:
            before, after = self.text[begin : self.cursor], self.text[self.cursor : end]
            self._stand(before, after, behind, quoted=True, closed=closed)
        if not self.levels:
            return behind
        level = self.levels[-1]
        if level.is_object and level.key is None:
            colon = _colon(self.text, behind)
            if colon is not None:
                level.key = value
                level.strings.setdefault(value, "")
                self._note(level.path, value)
                return colon
        elif level.is_object and level.key is not None:
            level.strings[level.key] = value
            if level.path[:1] == ("connections",) and len(level.path) == 2 and level.key == "type":  # noqa: PLR2004 - of one
                self.connections[str(level.path[1])] = value
        return behind

    def _note(self, path: Path, key: str) -> None:
        """A key that others may name."""
        if path == ("connections",):
            self.connections.setdefault(key, "")
        if "schema" in path and path[:1] == ("pipeline",) and "$source" in path:
            inside = path[path.index("schema") + 1 :]
            if all(isinstance(step, str) for step in inside):
                self.fields.append(".".join((*map(str, inside), key)))

    def _stand(self, before: str, after: str, behind: int, *, quoted: bool = False, closed: bool = False) -> None:
        if not self.levels:
            return
        level = self.levels[-1]
        is_key = level.is_object and level.key is None
        path = level.path if is_key else self._here()
        colon = is_key and _colon(self.text, behind) is not None
        self.place = _Place("key" if is_key else "value", path, before, after, quoted, closed, level, colon)


def _colon(text: str, at: int) -> int | None:
    """Behind the colon that follows, if one does."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at + 1 if at < len(text) and text[at] == ":" else None


# --- the schema -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Node:
    """A schema that a place has to keep to; `kind`: which of the three forms that schemas describe only roughly."""

    schema: Mapping[str, Any]
    kind: Literal["", "expression", "query", "condition"] = ""


_EXPRESSION: Final = _Node({}, "expression")
_QUERY: Final = _Node({}, "query")
_CONDITION: Final = _Node({}, "condition")


@lru_cache(maxsize=1)
def _schema() -> dict[str, Any]:
    return document_schema()


def _flat(schema: Mapping[str, Any]) -> Iterator[_Node]:
    """The schema and its alternatives, references followed."""
    reference = schema.get("$ref", "")
    if reference == "#/$defs/expression":
        yield _EXPRESSION
    elif reference == "#/$defs/query":
        yield _QUERY
    elif reference:
        yield from _flat(_schema()["$defs"][reference.removeprefix("#/$defs/")])
    branches = [branch for name in ("oneOf", "anyOf") for branch in schema.get(name, ())]
    for branch in branches:
        yield from _flat(branch)
    if not branches and not reference:
        yield _Node(schema)


def _below(node: _Node, step: Step) -> Iterator[_Node]:
    """The schema of a value in an object or array."""
    if node.kind == "expression":
        yield _EXPRESSION
    elif node.kind in ("query", "condition"):
        if step == "$expr":
            yield _EXPRESSION
        elif isinstance(step, int) or step in ("$and", "$or", "$nor"):
            yield _QUERY
        elif step in ("$not", "$elemMatch") or not step.startswith("$"):
            yield _CONDITION
    elif isinstance(step, int):
        yield from _flat(node.schema.get("items", {}))
    elif step in node.schema.get("properties", {}):
        yield from _flat(node.schema["properties"][step])
    elif isinstance(others := node.schema.get("additionalProperties"), dict):
        yield from _flat(others)
    elif "enum" in node.schema.get("propertyNames", {}):
        yield _EXPRESSION  # Of an accumulator.


def _nodes(path: Path) -> list[_Node]:
    found = list(_flat(_schema()))
    for step in path:
        found = [below for node in found for below in _below(node, step)]
    return found


# --- proposals ------------------------------------------------------------------------------------------------------------


def complete(before: str, after: str, connections: Mapping[str, str]) -> Completion:
    """Proposals between the two parts of a text. connections: of the registry, types by name."""
    reading = _Walk(before + after, len(before))
    reading.run()
    place = reading.place
    if place is None:
        return Completion("", "", ())
    known = {**connections, **reading.connections}
    found = _keys(place, reading.fields) if place.kind == "key" else _values(place, known, reading.fields)
    typed, unique = place.before.lower(), dict[str, Proposal]()
    for proposal in found:
        if typed in proposal.label.lower():
            unique.setdefault(proposal.label, proposal)
    ranked = sorted(unique.values(), key=lambda each: not each.label.lower().lstrip("$").startswith(typed.lstrip("$")))
    takes_quote = place.kind == "key" and place.closed and not place.colon
    return Completion(place.before, place.after + ('"' if takes_quote else ""), ranked[:PROPOSALS_MAX])


def _keys(place: _Place, fields: Sequence[str]) -> Iterator[Proposal]:
    nodes = _nodes(place.path)
    present = set(place.level.strings) - ({place.before + place.after} if place.quoted else set())
    for node in _fitting(nodes, place.level.strings, present):
        if node.kind == "expression":
            yield from (_key(place, name, text, []) for name, text in sorted(documentation().items()))
        elif node.kind:
            known = _schema()["$defs"]["query"]["propertyNames"]["anyOf"][1]["enum"]
            if node.kind == "query":
                yield from (_key(place, each, "field of the source", []) for each in fields if each not in present)
            names = known if node.kind == "query" else [name for name in QUERY_OPERATORS if name not in known]
            yield from (_key(place, name, "query operator", []) for name in names)
        elif len(present) < node.schema.get("maxProperties", len(present) + 1):
            needed = node.schema.get("required", ())
            words = node.schema.get("propertyNames", {}).get("enum", ())
            properties = {
                **node.schema.get("properties", {}),
                **{w: {"description": documentation().get(w, "")} for w in words},
            }
            for name, each in sorted(properties.items(), key=lambda item: item[0] not in needed):
                if name not in present:
                    detail = each.get("description", "") + (" (required)" if name in needed else "")
                    yield _key(place, name, detail, list(_flat(each)))


def _fitting(nodes: Sequence[_Node], strings: Mapping[str, str], present: set[str]) -> Sequence[_Node]:
    """Of alternatives those that allow all that is there, if one does."""

    def fits(node: _Node) -> bool:
        properties = node.schema.get("properties", {})
        if node.kind or not isinstance(node.schema.get("additionalProperties", True), bool):
            return True
        return present <= set(properties) and all(
            "const" not in properties[name] or strings[name] in ("", properties[name]["const"]) for name in present
        )

    return [node for node in nodes if fits(node)] or nodes


def _key(place: _Place, name: str, detail: str, values: Sequence[_Node]) -> Proposal:
    quoted = json.dumps(name)
    if place.colon:
        return Proposal(name, detail, _said(place, quoted), 0)
    opening, closing = _frame(values)
    return Proposal(name, detail, f"{quoted[1:] if place.quoted else quoted}: {opening}{closing}", len(closing))


def _said(place: _Place, quoted: str) -> str:
    """A string, without the quotes that are there."""
    return quoted[1 if place.quoted else 0 : -1 if place.closed else None]


def _frame(values: Sequence[_Node]) -> tuple[str, str]:
    """The text that a value begins and ends with, where all alternatives agree."""
    kinds = {_type(node) for node in values}
    return (
        {"object": ("{", "}"), "array": ("[", "]"), "string": ('"', '"')}.get(kinds.pop(), ("", ""))
        if len(kinds) == 1
        else ("", "")
    )


def _type(node: _Node) -> str:
    if node.kind in ("query", "condition"):
        return "object"
    words = node.schema.get("enum", [node.schema["const"]] if "const" in node.schema else [])
    if words and all(isinstance(word, str) for word in words):
        return "string"
    return str(node.schema.get("type", ""))


def _values(place: _Place, connections: Mapping[str, str], fields: Sequence[str]) -> Iterator[Proposal]:
    name = place.path[-1] if place.path else ""
    if name == "connectionName":
        yield from (
            _value(place, each, f"connection, {kind}" if kind else "connection") for each, kind in connections.items()
        )
    for node in _nodes(place.path):
        words: Sequence[Any] = ()
        if node.kind == "expression":
            yield from (_value(place, f"${each}", "field of the source") for each in fields)
            yield from (_value(place, each, detail) for each, detail in _VARIABLES.items())
        elif not node.kind:
            detail = node.schema.get("description", "")
            words = node.schema.get("enum", [node.schema["const"]] if "const" in node.schema else [])
            if node.schema.get("type") == "boolean":
                words = [True, False]
            yield from (_value(place, word, detail) for word in words)
        if not words and not place.quoted and not place.before and (frame := _frame([node])) != ("", ""):
            yield Proposal("".join(frame), f"{_type(node)}", "".join(frame), 1)


def _value(place: _Place, value: object, detail: str) -> Proposal:
    text = json.dumps(value)
    if isinstance(value, str):
        return Proposal(value, detail, _said(place, text), 0)
    return Proposal(text, detail, text, 0)
