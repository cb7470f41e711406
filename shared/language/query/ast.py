"""The typed form of query predicates (`$match`, `$validate`): frozen nodes, made by `parse`, given meaning by `match`."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.model.values import Regex, Value


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """The keywords of one schema object; None or empty for those that are not there. All must hold."""

    types: tuple[str, ...] | None = None
    """BSON aliases, from `bsonType` or `type`."""
    enum: tuple[Value, ...] | None = None
    minimum: Any = None
    maximum: Any = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    multiple_of: Any = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: Any = None
    required: tuple[str, ...] = ()
    properties: tuple[tuple[str, "SchemaNode"], ...] = ()
    pattern_properties: tuple[tuple[Any, "SchemaNode"], ...] = ()
    additional_properties: "bool | SchemaNode" = True
    min_properties: int | None = None
    max_properties: int | None = None
    dependencies: tuple[tuple[str, "tuple[str, ...] | SchemaNode"], ...] = ()
    items: "SchemaNode | tuple[SchemaNode, ...] | None" = None
    additional_items: "bool | SchemaNode" = True
    min_items: int | None = None
    max_items: int | None = None
    unique_items: bool = False
    all_of: tuple["SchemaNode", ...] = ()
    any_of: tuple["SchemaNode", ...] = ()
    one_of: tuple["SchemaNode", ...] = ()
    negated: "SchemaNode | None" = None


Comparison = Literal["$eq", "$gt", "$gte", "$lt", "$lte"]
BitTest = Literal["$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear"]


@dataclass(frozen=True, slots=True)
class Always:
    """Every document (`{}`), or none."""

    answer: bool


@dataclass(frozen=True, slots=True)
class All:
    """`$and`, and the fields of one query document."""

    parts: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """`$or`: at least one part holds."""

    parts: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """`$nor` of one part, `$ne`, `$nin`, `$not`."""

    part: "Predicate"


@dataclass(frozen=True, slots=True)
class ExprTrue:
    """`$expr`: an aggregation expression whose value is true."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class MatchesSchema:
    """`$jsonSchema` on the whole document."""

    schema: SchemaNode


@dataclass(frozen=True, slots=True)
class OnField:
    """A test of the values at a dotted path, with MongoDB's reach into arrays."""

    names: tuple[str, ...]
    test: "Test"


@dataclass(frozen=True, slots=True)
class Compare:
    """One comparison with a constant, within the constant's type bracket."""

    op: Comparison
    value: Value


@dataclass(frozen=True, slots=True)
class OneOf:
    """`$in`: equal to one of the constants, or matched by one of the regular expressions."""

    values: tuple[Value, ...]
    patterns: tuple["RegexTest", ...]
    keys: frozenset[bytes] = field(init=False, repr=False, compare=False)
    """Canonical bytes of the values."""

    def __post_init__(self) -> None:
        """Made once: a document's values are looked up."""
        object.__setattr__(self, "keys", frozenset(map(canonical_key, self.values)))


@dataclass(frozen=True, slots=True)
class Exists:
    """`$exists: true`; its opposite is a `Not` around it."""


@dataclass(frozen=True, slots=True)
class TypeIs:
    """`$type`: one of these BSON aliases."""

    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegexTest:
    """`$regex`, on strings; `compiled` is the linear-time engine's program."""

    regex: Regex
    compiled: Any


@dataclass(frozen=True, slots=True)
class ModTest:
    """`$mod`: the value, cut to a whole number, leaves `remainder` when divided by `divisor`."""

    divisor: int
    remainder: int


@dataclass(frozen=True, slots=True)
class SizeIs:
    """`$size`: an array of this many items."""

    size: int


@dataclass(frozen=True, slots=True)
class ElemMatch:
    """`$elemMatch`: an array with one item that meets the predicate (`document`) or all the tests."""

    predicate: "Predicate | None"
    tests: tuple["Test", ...]


@dataclass(frozen=True, slots=True)
class Bits:
    """`$bitsAllSet` and its kin, on whole numbers and binary data; positions count from the least significant bit."""

    op: BitTest
    positions: tuple[int, ...]


Test: TypeAlias = (
    Compare
    | OneOf
    | Exists
    | TypeIs
    | RegexTest
    | ModTest
    | SizeIs
    | ElemMatch
    | Bits
    | MatchesSchema
    | Not
    | All
    | AnyOf
)
"""A test of one field's values. All, AnyOf and Not stand here around tests inside `$elemMatch` and `$not`."""

Predicate: TypeAlias = Always | All | AnyOf | Not | ExprTrue | MatchesSchema | OnField
"""A condition on a whole document."""
