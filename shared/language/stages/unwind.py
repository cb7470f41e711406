"""`$unwind`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.paths import set_path
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.kinds import BOOLEAN, Kind, Option, StageSpec, made_of, read_names
from tidemark.shared.language.schema import Schema
from tidemark.shared.language.stages.base import Outcome, Passed, Stateless, Told
from tidemark.shared.model.values import MISSING, Document, Value, long


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwind(Stateless):
    """One document for each item of an array."""

    names: tuple[str, ...]
    include_array_index: tuple[str, ...] | None = None
    preserve_null_and_empty_arrays: bool = False
    counted: bool = False
    """Whether the engine counts the items of a record, for a `$createUUID` behind."""

    def _apply(self, document: Document, env: Environment) -> Outcome:
        value = _plain_path(document, self.names)
        keep = self.preserve_null_and_empty_arrays
        if type(value) is list:
            if value:
                return Passed(tuple(_unwound(self, document, item, long(i)) for i, item in enumerate(value)))
            return Passed((_unwound(self, document, MISSING, None),) if keep else ())
        if value is None or value is MISSING:
            return Passed((_unwound(self, document, value, None),) if keep else ())
        return Passed((_unwound(self, document, value, None),))

    def reads(self) -> Fields:
        """The field with the array."""
        return frozenset(self.names[:1])

    def named(self) -> frozenset[str]:
        """The array's, and the index's."""
        return frozenset((self.names[0], *(self.include_array_index or ())[:1]))

    def written(self, names: Fields) -> Fields:
        """The fields that came in, and the index."""
        return None if names is None else names | self.named()

    def declared(self, schema: Schema) -> Schema:
        """The declared fields, without the array and the index."""
        return Schema(tuple(field for field in schema if field.name not in self.named()))

    def told(self) -> tuple[Told, ...]:
        """What `explain` tells: the path."""
        return (("path", None),)


def _plain_path(value: Value, names: Sequence[str]) -> Value:
    """The value at a path of documents alone: `$unwind` does not go through arrays."""
    for name in names:
        value = value.get(name, MISSING) if type(value) is dict else MISSING
    return value


def _unwound(stage: Unwind, document: Document, item: Value, index: int | None) -> Document:
    at = stage.include_array_index
    if at is None:
        return set_path(document, stage.names, item)
    if item is MISSING and at[: len(stage.names)] == stage.names:
        item = None  # the index stands where the array stood
    return set_path(set_path(document, stage.names, item), at, index)


def _array_path(tree: object, path: str, scope: Scope) -> tuple[str, ...] | None:
    if type(tree) is not str or not tree.startswith("$") or tree.startswith("$$"):
        scope.problems.add(path, f"expected a field path that starts with $, found {tree!r}")
        return None
    return read_names(tree[1:], path, scope)


_UNWIND: Final = made_of(
    "One document for each item of an array.",
    (
        Option(
            "path",
            Kind(_array_path, {"type": "string", "pattern": r"^\$[^$]"}),
            "the array's path, with a leading $",
            required=True,
            into="names",
        ),
        Option("includeArrayIndex", Kind(read_names, {"type": "string"}), "a field for the item's index"),
        Option("preserveNullAndEmptyArrays", BOOLEAN, "keep documents without items (default false)"),
    ),
    Unwind,
)


def _read(tree: object, path: str, scope: Scope) -> Unwind | None:
    found: Unwind | None = _UNWIND.read({"path": tree} if type(tree) is str else tree, path, scope)
    return found


SPEC: Final = StageSpec(_UNWIND.doc, _read, {"anyOf": [{"type": "string"}, dict(_UNWIND.schema)]})
