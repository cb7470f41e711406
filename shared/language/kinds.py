"""Kinds of options: how one is read from the tree, and its JSON Schema. Stages declare their options with these, once.

A kind's `read` notes errors in the scope's problems and then gives None. An option fills the field of the parsed stage that has its name in
snake case, of a duration with `_ms`; an option that is not written has the default that the stage declares.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, Final, TypeAlias

from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope, read_value
from tidemark.shared.language.leftout import STAGES_LEFT_OUT, why_left_out
from tidemark.shared.language.problems import join
from tidemark.shared.language.query.parse import parse_predicate
from tidemark.shared.language.values.extended_json import value_if_any
from tidemark.shared.language.values.types import is_integral
from tidemark.shared.model.values import Date

UNITS_MS: Final = {"ms": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
"""The units of durations in a document; all of fixed length."""
DURATION_MAX_MS: Final = 2**53
"""No duration is longer: sums of a few stay within 64 bits."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of option: `read(tree, path, scope)`, the JSON Schema of accepted values, and the unit that ends its fields' names."""

    read: Callable[[Any, str, Scope], Any]
    schema: dict[str, Any]
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a closed object. `into`: the field that it fills, where it has another name; None for none."""

    name: str
    kind: Kind
    doc: str
    required: bool = False
    into: str | None = ""

    def fill(self, fields: dict[str, Any], value: Any) -> None:
        """Set the field; a closed object sets its own."""
        if isinstance(value, Read):
            fields |= value.fields
        elif self.into is not None:
            name = _CAPITAL.sub(lambda found: f"_{found[0].lower()}", self.name)
            fields[self.into or name + ("_" if iskeyword(name) else self.kind.unit)] = value


_CAPITAL: Final = re.compile(r"[A-Z]")


class Read(dict[str, Any]):
    """The options that were read, by name; `get` gives None for one that was not written. `fields`: the same by the fields they fill."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, Any] = {}


def read_options(tree: Any, path: str, scope: Scope, options: Sequence[Option], what: str = "") -> Read:
    """Read a closed object: unknown, missing and wrong options are noted, valid ones are returned."""
    name = what or path.rpartition(".")[2]
    if type(tree) is not dict:
        scope.problems.add(path, f"{name} takes an object, found {_shown(tree)}", accepted=[o.name for o in options])
        return Read()
    known = {option.name: option for option in options}
    for key in tree:
        if key not in known and (why := why_left_out(join(path, key))):
            scope.problems.add(join(path, key), f"{key} of {name} is left out: {why}")
        elif key not in known:
            scope.problems.add(join(path, key), f"unknown option {key} of {name}", accepted=known, found=key)
    result = Read()
    for option in options:
        if option.name in tree:
            value = option.kind.read(tree[option.name], join(path, option.name), scope)
            if value is not None:
                result[option.name] = value
                option.fill(result.fields, value)
        elif option.required:
            scope.problems.add(path, f"{name} needs {option.name}: {option.doc}")
    return result


def _shown(tree: Any) -> str:
    text = "null" if tree is None else repr(tree)
    return text if len(text) <= 80 else text[:77] + "..."  # noqa: PLR2004 - a line's worth


def _wrong(tree: Any, path: str, scope: Scope, expected: str) -> None:
    scope.problems.add(path, f"expected {expected}, found {_shown(tree)}")


def _string(tree: Any, path: str, scope: Scope) -> str | None:
    if type(tree) is str and tree:
        return tree
    _wrong(tree, path, scope, "a non-empty string")
    return None


STRING: Final = Kind(_string, {"type": "string", "minLength": 1})


_TRUTHS: Final = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def _boolean(tree: Any, path: str, scope: Scope) -> bool | None:
    if type(tree) is bool:
        return tree
    word = _TRUTHS.get(tree.lower()) if type(tree) is str else None
    meant = "" if word is None else f": {tree} is a text here, as in YAML 1.2; write {word}"
    scope.problems.add(path, f"expected true or false, found {_shown(tree)}{meant}")
    return None


BOOLEAN: Final = Kind(_boolean, {"type": "boolean"})


def integer(least: int, most: int = 2**53) -> Kind:
    """A whole number within bounds."""

    def read(tree: Any, path: str, scope: Scope) -> int | None:
        value = tree
        if type(tree) is dict and len(tree) == 1 and set(tree) <= _NUMBERS:
            value = value_if_any(tree)
        if is_integral(value) and least <= value <= most:
            return int(value)
        _wrong(tree, path, scope, f"a whole number from {least} to {most}")
        return None

    return Kind(read, {"type": "integer", "minimum": least, "maximum": most})


_NUMBERS: Final = frozenset({"$numberInt", "$numberLong", "$numberDouble", "$numberDecimal"})


def fraction() -> Kind:
    """A number from 0 up to, but not, 1."""

    def read(tree: Any, path: str, scope: Scope) -> float | None:
        if type(tree) in (int, float) and 0 <= tree < 1:
            return float(tree)
        _wrong(tree, path, scope, "a fraction, at least 0 and below 1")
        return None

    return Kind(read, {"type": "number", "minimum": 0, "exclusiveMaximum": 1})


def choice(*names: str) -> Kind:
    """One of some words."""

    def read(tree: Any, path: str, scope: Scope) -> str | None:
        if type(tree) is str and tree in names:
            return tree
        scope.problems.add(path, f"unknown value {_shown(tree)}", accepted=names, found=str(tree))
        return None

    return Kind(read, {"enum": list(names)})


_UNIT: Final = choice(*UNITS_MS)


def duration(*, least: int, zero_alone: bool = False, size_name: str = "size") -> Kind:
    """`{size, unit}` in ms, `size` at least `least`; with `zero_alone` also the bare integer 0."""
    size = integer(least, 2**31)
    options = (
        Option(size_name, size, "how many units", required=True),
        Option("unit", _UNIT, "ms to day", required=True),
    )

    def read(tree: Any, path: str, scope: Scope) -> int | None:
        if zero_alone and type(tree) is int and tree == 0:
            return 0
        if type(tree) is not dict:
            name = path.rpartition(".")[2]
            example = _as_duration(tree, size_name)
            scope.problems.add(path, f"{name} is an object such as {example}, found {_shown(tree)}")
            return None
        found = read_options(tree, path, scope, options)
        if size_name not in found or "unit" not in found:
            return None
        total = int(found[size_name]) * UNITS_MS[found["unit"]]
        if abs(total) > DURATION_MAX_MS:
            _wrong(tree, path, scope, f"a duration of at most {DURATION_MAX_MS} ms")
            return None
        return total

    schema = closed_schema(options)
    return Kind(read, {"anyOf": [schema, {"const": 0}]} if zero_alone else schema, "_ms")


_SHORT: Final = re.compile(r"\s*([0-9]{1,9})\s*([a-z]+)\s*", re.IGNORECASE)
_UNITS_BY_WORD: Final = {
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "second"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "minute"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "hour"),
    **dict.fromkeys(("d", "day", "days"), "day"),
}


def _as_duration(tree: Any, size_name: str) -> str:
    """The object that is meant by a text such as 5m; an example where none can be told."""
    found = _SHORT.fullmatch(tree) if type(tree) is str else None
    unit = None if found is None else _UNITS_BY_WORD.get(found[2].lower())
    size = 5 if found is None or unit is None else int(found[1])
    return f"{{{size_name}: {size}, unit: {unit or 'minute'}}}"


EXPRESSION: Final = Kind(parse_expression, {"$ref": "#/$defs/expression"})
PREDICATE: Final = Kind(parse_predicate, {"$ref": "#/$defs/query"})


def _document(tree: Any, path: str, scope: Scope) -> Any:
    if type(tree) is not dict:
        _wrong(tree, path, scope, "an object")
        return None
    return read_value(tree, path, scope)[0]


DOCUMENT: Final = Kind(_document, {"type": "object"})


def _date(tree: Any, path: str, scope: Scope) -> Any:
    value = read_value(tree, path, scope)[0] if type(tree) is dict else None
    if type(value) is Date:
        return value
    _wrong(tree, path, scope, "a date, {$date: …}")
    return None


DATE: Final = Kind(_date, {"type": "object", "required": ["$date"]})


def read_names(tree: Any, path: str, scope: Scope) -> tuple[str, ...] | None:
    """A dotted field path, without a leading dollar, as its names."""
    names = tuple(tree.split(".")) if type(tree) is str else ()
    if not names or not all(names) or any(name.startswith("$") for name in names):
        _wrong(tree, path, scope, "a field path such as a.b")
        return None
    return names if scope.allows(names, path) else None


PATH: Final = Kind(read_names, {"type": "string", "minLength": 1})


def read_later(tree: Any, path: str, scope: Scope) -> Any:  # noqa: ARG001 - a kind's signature
    """For options that are read later, when those that they depend on are known: the tree as it is written."""
    return tree


def one_or_more(kind: Kind) -> Kind:
    """One value, or a list of at least one: read as a tuple."""

    def read(tree: Any, path: str, scope: Scope) -> tuple[Any, ...] | None:
        if type(tree) is not list:
            value = kind.read(tree, path, scope)
            return None if value is None else (value,)
        if not tree:
            _wrong(tree, path, scope, "at least one")
            return None
        values = [kind.read(item, f"{path}[{i}]", scope) for i, item in enumerate(tree)]
        return None if any(v is None for v in values) else tuple(values)

    return Kind(read, {"anyOf": [kind.schema, {"type": "array", "items": kind.schema, "minItems": 1}]})


def _paths(tree: Any, path: str, scope: Scope) -> tuple[str, ...] | None:
    found = _SOME_PATHS.read(tree, path, scope)
    return None if found is None else tuple(map(".".join, found))


_SOME_PATHS: Final = one_or_more(PATH)
PATHS: Final = Kind(_paths, _SOME_PATHS.schema)
"""One field path or more, with their dots."""


def list_of(kind: Kind) -> Kind:
    """A list, possibly empty: read as a tuple."""

    def read(tree: Any, path: str, scope: Scope) -> tuple[Any, ...] | None:
        if type(tree) is not list:
            _wrong(tree, path, scope, "a list")
            return None
        values = [kind.read(item, f"{path}[{i}]", scope) for i, item in enumerate(tree)]
        return None if any(v is None for v in values) else tuple(values)

    return Kind(read, {"type": "array", "items": kind.schema})


def closed(*options: Option) -> Kind:
    """A closed object of its own: read as `Read`."""

    def read(tree: Any, path: str, scope: Scope) -> Read:
        return read_options(tree, path, scope, options)

    return Kind(read, closed_schema(options))


def closed_schema(options: Sequence[Option]) -> dict[str, Any]:
    """The JSON Schema of a closed object."""
    schema: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {o.name: {"description": o.doc, **o.kind.schema} for o in options},
    }
    required = [o.name for o in options if o.required]
    return {**schema, "required": required} if required else schema


Tree: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A stage by name. `read(tree, path, scope)` gives the stage, or None after noting errors; `schema` is its JSON Schema."""

    doc: str
    read: Callable[[Tree, str, Scope], Any]
    schema: Mapping[str, Any]


def with_options(doc: str, options: tuple[Option, ...], build: Callable[[Read, str, Scope], object]) -> StageSpec:
    """A stage that takes a closed object; `build` is called only if all options were read without an error."""

    def read(tree: Tree, path: str, scope: Scope) -> Any:
        before = len(scope.problems.errors)
        found = read_options(tree, path, scope, options)
        return None if len(scope.problems.errors) > before else build(found, path, scope)

    return StageSpec(doc, read, closed_schema(options))


def made_of(doc: str, options: tuple[Option, ...], stage: Callable[..., object]) -> StageSpec:
    """A stage whose fields are filled by its options."""
    return with_options(doc, options, lambda found, path, _: stage(path=path, **found.fields))


def read_stage(
    tree: Tree,
    path: str,
    scope: Scope,
    specs: Mapping[str, StageSpec],
    elsewhere: str,
) -> Any:
    """One stage of a pipeline: an object with one key, of those in `specs`.

    elsewhere: what is said of the language's other stages.
    """
    if type(tree) is not dict or len(tree) != 1:
        found = f"{len(tree)} keys: {', '.join(map(str, list(tree)[:4]))}" if type(tree) is dict else repr(tree)[:80]
        scope.problems.add(path, f"a stage is an object with one key, such as {{$match: …}}; found {found}")
        return None
    name = next(iter(tree))
    place = join(path, name)
    spec = specs.get(name)
    if spec is None and elsewhere and name in scope.stages:
        scope.problems.add(place, f"{name} {elsewhere}")
        return None
    if spec is None and name in STAGES_LEFT_OUT:
        scope.problems.add(place, f"{name} {STAGES_LEFT_OUT[name]}")
        return None
    if spec is None:
        scope.problems.add(place, f"unknown stage {name}", accepted=sorted(specs), found=name)
        return None
    before = len(scope.problems.errors)
    stage = spec.read(tree[name], place, scope)
    return None if len(scope.problems.errors) > before else stage


def read_stages(
    tree: Tree,
    path: str,
    scope: Scope,
    specs: Mapping[str, StageSpec],
    elsewhere: str,
) -> tuple[Any, ...] | None:
    """A list of stages, without those that are wrong; None where it is no list."""
    if type(tree) is not list:
        _wrong(tree, path, scope, "a list of stages")
        return None
    found = (read_stage(item, f"{path}[{i}]", scope, specs, elsewhere) for i, item in enumerate(tree))
    return tuple(stage for stage in found if stage is not None)
