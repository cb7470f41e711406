"""Names that a document reads and nothing in front of them writes, and those that it names without their dollar: warnings.

Behind a `$group`, an inclusion or documents that stand in the text, the fields are known: another one is missing from every document.
Elsewhere others may come, and only a name that is nearly a known one is doubtful.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, get_args

from tidemark.shared.language.documents.foregone import meta_meant
from tidemark.shared.language.expressions.ast import (
    ArrayExpr,
    Call,
    Expr,
    FieldPath,
    Literal,
    ObjectExpr,
    Variable,
    constant,
    is_bare_name,
    walk,
)
from tidemark.shared.language.expressions.ast import Literal as Constant
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.problems import Problems, join, nearest_of
from tidemark.shared.language.query.ast import Compare, OnField
from tidemark.shared.language.schema import NO_SCHEMA, Schema
from tidemark.shared.language.stages import (
    DocumentsSource,
    Group,
    InlineTable,
    Join,
    Lookup,
    Merge,
    SourceBase,
    Stage,
    Union,
    WindowBase,
)
from tidemark.shared.language.stages.base import Inner
from tidemark.shared.language.stages.trees import Branch, ByFields, Computed, computed_in
from tidemark.shared.language.values.types import is_number
from tidemark.shared.model.values import Date

_SHOWN_MAX: Final = 12
"""Names that a warning lists: for readers."""
_NEAR: Final = 0.8
"""How alike two names are that may be one misspelt: one letter of five."""
_LETTERS_MIN: Final = 3
"""Of shorter names each is like many others: but one whose letters are the other way round."""
_COMPARISONS: Final = frozenset({"$eq", "$gt", "$gte", "$lt", "$lte"})


@dataclass(frozen=True, slots=True)
class _Here:
    """What the text tells of the documents at a place."""

    closed: Fields = None
    """The top-level names that they may have; None: others, too."""
    known: frozenset[str] = frozenset()
    """Names that a schema declares, or a stage in front writes."""
    schema: Schema = NO_SCHEMA


def unwritten(pipeline: tuple[Stage, ...], outside: frozenset[str], problems: Problems) -> None:
    """Note the names of a pipeline that nothing writes. outside: fields that come from elsewhere."""
    if problems.errors:  # a stage with an error is not among them
        return
    _Names(problems, outside).walk(pipeline, _Here())


class _Names:
    def __init__(self, problems: Problems, outside: frozenset[str]) -> None:
        self._problems = problems
        self._outside = outside

    def walk(self, stages: tuple[Stage, ...], here: _Here) -> _Here:
        """What is known behind the stages."""
        for stage in stages:
            if isinstance(stage, SourceBase):
                here = self._source(stage)
                self._event_time(stage, here)
            self._read(stage, here)
            for place, name in _bare_constants(stage):
                if name in (here.known if here.closed is None else here.closed):
                    self._problems.warn(place, f"is {constant(name)}")
            for place, field, value in _compared(stage):
                if field is None:
                    if is_bare_name(value) and value in (here.known if here.closed is None else here.closed):
                        self._problems.warn(place, f"compares with {constant(value)}")
                    continue
                found = here.schema.get(field)
                if found is not None and _bracket(value) not in (None, _BRACKETS[found.type]):
                    what = f"{field} is declared {found.declared}, and none is equal to, above or below {value!r}"
                    self._problems.warn(place, f"{what}, which is of another type")
            here = self._behind(stage, here)
        return here

    def _source(self, stage: SourceBase) -> _Here:
        declared_ = frozenset(stage.schema.names)
        closed = None
        if isinstance(stage, DocumentsSource) and stage.documents:
            closed = declared_.union(*(document.keys() for document in stage.documents))
        return _Here(closed, closed or declared_, stage.schema)

    def _event_time(self, source: SourceBase, here: _Here) -> None:
        """Where a schema is written, the time is hardly left out of it: a record without it is a dead letter."""
        if source.time_field is None or here.closed is not None or not here.known:
            return
        for name in sorted(_names(source.time_field) - here.known - self._outside):
            if _near(name, here.known) is None and meta_meant(name) is None and name == name.strip():
                shown = ", ".join(sorted(here.known)[:_SHOWN_MAX])
                what = f"reads {name}, which the schema does not declare (fields: {shown})"
                self._problems.warn(join(source.path, "timeField"), what)

    def _behind(self, stage: Stage, here: _Here) -> _Here:
        schema = stage.declared(here.schema)
        if isinstance(stage, SourceBase):
            return here
        if isinstance(stage, WindowBase):
            return self.walk(stage.pipeline, replace(here, schema=NO_SCHEMA))
        if isinstance(stage, Join):
            right = self.walk(stage.from_, _Here())
            for name in sorted(_names(stage.right_key)):
                self._name(join(stage.path, "rightKey"), name, right)
            return _with(replace(here, schema=schema), frozenset({stage.as_}))
        if isinstance(stage, Lookup):
            self._foreign(stage)
            return _with(replace(here, schema=schema), frozenset(stage.as_[:1]))
        if isinstance(stage, Union):
            others = [self.walk(pipeline, _Here()) for pipeline in stage.pipelines]
            closed = here.closed
            for other in others:
                closed = None if closed is None or other.closed is None else closed | other.closed
            return _Here(closed, here.known.union(*(other.known for other in others)), schema)
        closed = stage.written(here.closed)
        named = stage.named() if isinstance(stage, Inner) else frozenset()
        return _Here(closed, closed if closed is not None else here.known | named, schema)

    def _foreign(self, stage: Lookup) -> None:
        """What a lookup reads of documents that stand in the text."""
        if isinstance(stage.from_, InlineTable) and stage.from_.documents:
            names = frozenset[str]().union(*(document.keys() for document in stage.from_.documents))
            if stage.foreign_field:
                self._name(join(stage.path, "foreignField"), stage.foreign_field[0], _Here(names, names))
            self.walk(stage.pipeline, _Here(names, names))

    def _read(self, stage: Stage, here: _Here) -> None:
        for place, name in _reads(stage):
            self._name(place, name, here)
        if isinstance(stage, Merge) and here.closed is not None:
            for name in stage.on:
                top = name.partition(".")[0]
                if top not in here.closed and top != "_id":
                    there = sorted(here.closed)
                    what = f"no document has {top} here: each would become a dead letter"
                    self._problems.add(join(stage.path, "on"), what, accepted=there, found=top)

    def _name(self, place: str, name: str, here: _Here) -> None:
        if name in self._outside or name in here.known or (here.closed is not None and name in here.closed):
            return
        if meta_meant(name) is not None:  # told already
            return
        if here.closed is not None:
            shown = ", ".join(sorted(here.closed)[:_SHOWN_MAX]) or "none"
            near = nearest_of(name, sorted(here.closed))
            meant = f"; did you mean {near}?" if near else ""
            self._problems.warn(place, f"reads {name}, which no document has here (fields: {shown}){meant}")
        elif near := _near(name, here.known):
            what = f"reads {name!r}, which is neither declared nor written in front of it"
            self._problems.warn(place, f"{what}; did you mean {near}?")
        elif name != name.strip():
            self._problems.warn(place, f"reads {name!r}, a name with a blank at its end; did you mean {name.strip()}?")


def _with(here: _Here, names: frozenset[str]) -> _Here:
    return replace(here, closed=None if here.closed is None else here.closed | names, known=here.known | names)


def _near(name: str, known: frozenset[str]) -> str | None:
    """The known name that this one is, but for a slip of the fingers; None if none is. Names that differ in digits are two."""
    for other in sorted(known):
        if (
            _letters(name) == _letters(other)
            or (len(name) < _LETTERS_MIN and name == other[::-1])
            or (
                min(len(name), len(other)) >= _LETTERS_MIN
                and _digits(name) == _digits(other)
                and name.rstrip("s") != other.rstrip("s")
                and difflib.SequenceMatcher(None, name, other).ratio() >= _NEAR
            )
        ):
            return other
    return None


def _letters(name: str) -> str:
    return "".join(name.lower().split()).replace("_", "")


def _digits(name: str) -> str:
    return "".join(letter for letter in name if letter.isdigit())


def _reads(stage: Stage) -> Iterator[tuple[str, str]]:
    """The top-level fields that a stage reads, with the place; not those of pipelines inside it."""
    if isinstance(stage, Inner) and (names := stage.reads()) is not None:
        if isinstance(stage, ByFields) and "_id" not in _computed_names(stage):
            names -= {"_id"}  # kept by itself, and left out as a habit
        for name in sorted(names):
            yield stage.path, name
        return
    if isinstance(stage, Join):
        for name in sorted(_names(stage.left_key)):
            yield join(stage.path, "leftKey"), name
        return
    if isinstance(stage, Lookup) and stage.local_field:
        yield join(stage.path, "localField"), stage.local_field[0]
    for field in fields(stage):
        for expr in _outermost(getattr(stage, field.name)):
            for name in sorted(_names(expr)):
                yield stage.path, name


def _outermost(part: object) -> Iterator[Expr]:
    """The expressions in a part of a stage, but for those of stages inside it."""
    if isinstance(part, _EXPRESSIONS):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from _outermost(item)
    elif is_dataclass(part) and not isinstance(part, type) and not isinstance(part, Stage):
        for field in fields(part):
            yield from _outermost(getattr(part, field.name))


_EXPRESSIONS: Final = get_args(Expr)


def _names(expr: Expr) -> set[str]:
    return {
        node.names[0]
        for node in walk(expr)
        if (isinstance(node, FieldPath) or (isinstance(node, Variable) and node.name == "ROOT")) and node.names
    }


def _computed_names(stage: ByFields) -> set[str]:
    found: set[str] = set()
    for _, expr in computed_in(stage.fields):
        if isinstance(expr, _EXPRESSIONS):
            found |= _names(expr)
    return found


def _bare_constants(stage: Stage) -> Iterator[tuple[str, str]]:
    """Texts that are a field's whole value and read like a name, with the place."""
    if isinstance(stage, Group):
        for field in stage.fields:
            for at, name in _texts(field.accumulator.input, join(stage.path, field.name)):
                yield at, name
        return
    tree = getattr(stage, "fields", None)
    waiting = [(stage.path, tree)] if isinstance(tree, Branch) else []
    while waiting:
        path, branch = waiting.pop()
        for name, leaf in branch.fields:
            if isinstance(leaf, Branch):
                waiting.append((join(path, name), leaf))
            elif isinstance(leaf, Computed):
                yield from _texts(leaf.expr, join(path, name))


def _texts(expr: Expr, path: str) -> Iterator[tuple[str, str]]:
    match expr:
        case Constant(value) if is_bare_name(value):
            yield path, str(value)
        case Constant(value) if type(value) is dict:
            for name, inner in value.items():
                yield from _texts(Constant(inner), join(path, name))
        case Constant(value) if type(value) is list:
            for number, inner in enumerate(value):
                yield from _texts(Constant(inner), f"{path}[{number}]")
        case ObjectExpr(items):
            for name, item in items:
                yield from _texts(item, join(path, name))
        case ArrayExpr(items_):
            for number, item in enumerate(items_):
                yield from _texts(item, f"{path}[{number}]")


def _compared(stage: Stage) -> Iterator[tuple[str, str | None, Any]]:
    """Comparisons of a field, or of a variable (None), with a constant: the place, the field and the constant."""
    waiting: list[Any] = [getattr(stage, field.name) for field in fields(stage)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, OnField):
            if isinstance(part.test, Compare) and len(part.names) == 1:
                yield join(stage.path, part.names[0]), part.names[0], part.test.value
        elif isinstance(part, Call) and part.op in _COMPARISONS:
            match part.args:
                case (FieldPath((name,)), Literal(value)) | (Literal(value), FieldPath((name,))):
                    yield part.path, name, value
                case (Variable(), Literal(value)) | (Literal(value), Variable()):
                    yield part.path, None, value
        elif isinstance(part, tuple):
            waiting.extend(part)
        elif is_dataclass(part) and not isinstance(part, type | Stage):
            waiting.extend(getattr(part, field.name) for field in fields(part))


_BRACKETS: Final = {
    "string": "string", "int": "number", "long": "number", "double": "number", "decimal": "number", "bool": "bool", "date": "date",
}  # fmt: skip


def _bracket(value: object) -> str | None:
    """The types that compare with each other; None of those that nobody declares."""
    if type(value) is bool:
        return "bool"
    if is_number(value):
        return "number"
    if isinstance(value, Date):
        return "date"
    return "string" if type(value) is str else None
