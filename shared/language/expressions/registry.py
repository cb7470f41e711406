"""The table of operators: name, arguments, meaning, and the line of documentation, declared together.

An eager operator gets its arguments' values in the order of its signature, `ABSENT` for an optional one that was not written. One that
goes `until_null` gets them up to the first null or missing one, which is all it looks at. A lazy one gets the expressions and the
environment. `Deferred` arguments are functions without arguments, for they are evaluated only where they are needed. With `null` the
function is not asked where one of so many leading arguments is null or missing: the result is null. One that `glances` takes no longer
for a long array than for a short one: outside of loops its arguments take nothing from the budget. The operator's documentation is `doc`,
or the first line of the function's docstring.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Absent(Enum):
    """The type of `ABSENT`."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""The value of an optional argument that was not written: not missing, not null."""
Deferred: TypeAlias = Callable[[], Any]
"""An argument, such as `onError`, that is evaluated only if it is called: it may fail where nobody asks for it."""


@dataclass(frozen=True, slots=True)
class Positional:
    """Arguments by position: `[a, b]`, or one alone without brackets. `most` None: any number."""

    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Named:
    """Arguments by name, in this order. With `alone`, the first may also stand alone, without a name. `deferred`: see `Deferred`."""

    names: tuple[str, ...]
    required: frozenset[str]
    alone: bool = False
    deferred: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ExpressionOperator:
    """An operator of the language."""

    name: str
    signature: Positional | Named
    function: Callable[..., Any]
    lazy: bool
    until_null: bool
    null: int
    doc: str
    glances: bool


ALL: Final = 2**31
"""As many arguments as there are."""
OPERATORS: Final[dict[str, ExpressionOperator]] = {}
"""All operators that take expressions as arguments; forms that bind variables are in `parse`."""

LEFT_OUT: Final[dict[str, str]] = {
    "$function": "foreign code does not run inside a stream; write a $compute",
    "$accumulator": "foreign code does not run inside a stream; write a $compute",
    "$where": "foreign code does not run inside a stream; write an $expr",
    "$rand": "a replay would not give the same answer",
    "$sampleRate": "a replay would not give the same answer",
    "$toHashedIndexKey": "it belongs to MongoDB's indexes",
    "$createObjectId": "a replay would not give the same answer",
    "$bsonSize": "documents are not BSON here",
    **dict.fromkeys(
        ("$addToSet", "$approxCountDistinct", "$bottom", "$bottomN", "$count", "$push", "$top", "$topN"),
        "it is an accumulator: it belongs into $group",
    ),
    **dict.fromkeys(
        (
            "$covariancePop",
            "$covarianceSamp",
            "$denseRank",
            "$derivative",
            "$documentNumber",
            "$expMovingAvg",
            "$integral",
            "$linearFill",
            "$locf",
            "$minMaxScaler",
            "$rank",
            "$shift",
        ),
        "it belongs to $setWindowFields: write a $compute, which has state by key",
    ),
    **dict.fromkeys(
        ("$encStrContains", "$encStrEndsWith", "$encStrNormalizedEq", "$encStrStartsWith"),
        "it belongs to MongoDB's encryption",
    ),
}
"""Operators of MongoDB's reference that the language leaves out, each with the reason."""


def positional(
    name: str, least: int, most: int | None = -1, *,
    lazy: bool = False, until_null: bool = False, null: int = 0, doc: str = "", glances: bool = False,
) -> Callable[[F], F]:  # fmt: skip
    """Declare an operator with positional arguments, `least` to `most` of them (just `least` by default)."""
    signature = Positional(least, least if most == -1 else most)
    return _declare(name, signature, lazy=lazy, until_null=until_null, null=null, doc=doc, glances=glances)


def named(
    name: str, required: str, optional: str = "", *,
    alone: bool = False, deferred: str = "", null: int = 0, doc: str = "",
) -> Callable[[F], F]:  # fmt: skip
    """Declare an operator with named arguments; names are separated by blanks, required ones first."""
    names = tuple(f"{required} {optional}".split())
    return _declare(
        name, Named(names, frozenset(required.split()), alone, frozenset(deferred.split())), null=null, doc=doc
    )


def first_line(doc: str | None) -> str:
    """Of a docstring; "" where Python was told to drop them (`-OO`)."""
    return next(iter((doc or "").strip().splitlines()), "")


def _declare(
    name: str,
    signature: Positional | Named,
    *,
    null: int,
    doc: str,
    lazy: bool = False,
    until_null: bool = False,
    glances: bool = False,
) -> Callable[[F], F]:
    def register(function: F) -> F:
        assert name not in OPERATORS, f"{name} is declared twice"
        summary = first_line(doc or function.__doc__)
        assert summary, f"{name} has no documentation"
        OPERATORS[name] = ExpressionOperator(name, signature, function, lazy, until_null, null, summary, glances)
        return function

    return register
