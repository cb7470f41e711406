"""Predicates over documents: MongoDB's query semantics.

- Q1 A dotted path goes through arrays: into each document of an array, and by index where a name is a number. What an index at the
  end of the path picks counts as it is: an array there is not looked into.
- Q2 A comparison of a field whose value is an array looks at each item and at the array as a whole; one is enough. A negation ($ne,
  $nin, $not) is the opposite of the whole, so all must differ.
- Q3 Comparisons hold within the type of their constant (numbers of all types are one); null equals missing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tidemark.shared.language.expressions.ast import fields_used as expression_fields
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.paths import index_of
from tidemark.shared.language.query.ast import (
    All,
    Always,
    AnyOf,
    Bits,
    Compare,
    ElemMatch,
    Exists,
    ExprTrue,
    MatchesSchema,
    ModTest,
    Not,
    OneOf,
    OnField,
    Predicate,
    RegexTest,
    SizeIs,
    Test,
    TypeIs,
)
from tidemark.shared.language.query.json_schema import conforms
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.language.values.order import compare, equal, rank
from tidemark.shared.language.values.types import is_finite, is_integral, is_nan, is_number, truth, type_name
from tidemark.shared.model.values import MAX_KEY, MIN_KEY, MISSING, Binary, EndKey, Regex, Value

_INT64: Final = 2**63


def matches(predicate: Predicate, env: Environment) -> bool:
    """Whether the document of an environment meets a predicate. ExpressionError where an `$expr` fails on it."""
    return _PREDICATES[type(predicate)](predicate, env.root, env)


def _predicate(predicate: object, document: Value, env: Environment) -> bool:
    return _PREDICATES[type(predicate)](predicate, document, env)


def _on_field(predicate: OnField, document: Value, env: Environment) -> bool:
    test = predicate.test
    return any(_reaches(test, value, picked, env) for value, picked in _ends(document, predicate.names))


def _all(predicate: All, document: Value, env: Environment) -> bool:
    """All parts. Many equalities of one field (`$all`) are looked up among its values, instead of looking through these for each."""
    parts = predicate.parts
    if len(parts) < _MANY:
        return all(_predicate(part, document, env) for part in parts)
    known: dict[tuple[str, ...], frozenset[bytes] | None] = {}
    for part in parts:
        match part:
            case OnField(names, Compare("$eq", wanted)):
                if names not in known:
                    known[names] = _keys_at(document, names)
                keys = known[names]
                holds = _predicate(part, document, env) if keys is None else canonical_key(wanted) in keys
            case _:
                holds = _predicate(part, document, env)
        if not holds:
            return False
    return True


def _keys_at(document: Value, names: tuple[str, ...]) -> frozenset[bytes] | None:
    """The keys of all values that an equality of this field reaches (Q1, Q2); None for few, which are as well looked at."""
    found = equality_values(document, names)
    return frozenset(map(canonical_key, found)) if len(found) >= _MANY else None


_MANY: Final = 16
"""From so many on values are looked up by their canonical bytes: equal values have equal ones (K1), null and missing too (K2)."""
_PREDICATES: Final[dict[type, Callable[[Any, Value, Environment], bool]]] = {
    Always: lambda p, _d, _e: p.answer,
    All: _all,
    AnyOf: lambda p, d, e: any(_predicate(part, d, e) for part in p.parts),
    Not: lambda p, d, e: not _predicate(p.part, d, e),
    ExprTrue: lambda p, _d, e: truth(evaluate(p.expr, e)),
    MatchesSchema: lambda p, d, _e: conforms(p.schema, d),
    OnField: _on_field,
}


def equality_values(value: Value, names: Sequence[str]) -> list[Value]:
    """The values that an equality of this field looks at: also the items of arrays that no index picked (Q1, Q2); MISSING equals null."""
    found: list[Value] = []
    for end, picked in _ends(value, names):
        found.append(end)
        if type(end) is list and not picked:
            found += end
    return found


def values_at(value: Value, names: Sequence[str]) -> Iterator[Value]:
    """The values at the end of a path (Q1), MISSING where a document on the way lacks the field."""
    return (found for found, _ in _ends(value, names))


def _ends(value: Value, names: Sequence[str]) -> Iterator[tuple[Value, bool]]:
    """The values at the end of a path, and whether it was an index that picked each."""
    if not names:
        yield value, False
        return
    name, rest = names[0], names[1:]
    if type(value) is dict:
        yield from _ends(value.get(name, MISSING), rest)
    elif type(value) is list:
        index = index_of(name, value)
        if index is not None and not rest:
            yield value[index], True
        elif index is not None and type(value[index]) in (dict, list):
            yield from _ends(value[index], rest)
        for item in value:
            if type(item) is dict:
                yield from _ends(item, names)
    else:
        yield MISSING, False


def reaches(test: Test, value: Value) -> bool:
    """Whether a test holds for the value at the end of a path, on which there is neither an array nor an index; no `$expr` in it."""
    return _reaches(test, value, False, _NOWHERE)


_NOWHERE: Final = Environment({})


def _reaches(test: Test, value: Value, picked: bool, env: Environment) -> bool:  # noqa: FBT001 - as values_at gives it
    """A test on a field's value: on the items of an array too, where the test looks into arrays (Q2) and no index picked it."""
    if _single(test, value, env):
        return True
    if type(value) is not list or picked or type(test) in _WHOLE:
        return False
    return any(_single(test, item, env) for item in value)


_WHOLE: Final = frozenset({Exists, SizeIs, ElemMatch})


def _single(test: object, value: Value, env: Environment) -> bool:
    return _TESTS[type(test)](test, value, env)


def _compare(test: Compare, value: Value, _: Environment) -> bool:
    op, constant = test.op, test.value
    if constant is None:
        return (value is None or value is MISSING) and op in ("$eq", "$gte", "$lte")
    if type(constant) is EndKey and op != "$eq":
        return _against_end(op, value, constant)
    if value is MISSING:
        return False
    if op == "$eq":
        return equal(value, constant)
    if rank(value) != rank(constant):
        return False
    if is_number(value) and (is_nan(value) or is_nan(constant)):  # NaN compares with NaN alone
        return op in ("$gte", "$lte") and is_nan(value) and is_nan(constant)
    order = compare(value, constant)
    return _HOLDS[op](order)


_HOLDS: Final[dict[str, Callable[[int], bool]]] = {
    "$gt": lambda order: order > 0,
    "$gte": lambda order: order >= 0,
    "$lt": lambda order: order < 0,
    "$lte": lambda order: order <= 0,
}


def _against_end(op: str, value: Value, constant: EndKey) -> bool:
    """MinKey and MaxKey compare with values of all types, and with what is missing."""
    assert constant in (MIN_KEY, MAX_KEY)
    return _HOLDS[op](compare(value, constant))


def _one_of(test: OneOf, value: Value, env: Environment) -> bool:
    if len(test.values) >= _MANY:
        return canonical_key(value) in test.keys or any(_regex(pattern, value, env) for pattern in test.patterns)
    for constant in test.values:
        if constant is None:
            if value is None or value is MISSING:
                return True
        elif value is not MISSING and equal(value, constant):
            return True
    return any(_regex(pattern, value, env) for pattern in test.patterns)


def _regex(test: RegexTest, value: Value, _: Environment) -> bool:
    if type(value) is str:
        return test.compiled.search(value) is not None
    return type(value) is Regex and value == test.regex


def _type_is(test: TypeIs, value: Value, _: Environment) -> bool:
    return (is_number(value) and "number" in test.aliases) or type_name(value) in test.aliases


def _mod(test: ModTest, value: Value, _: Environment) -> bool:
    if not is_number(value) or not is_finite(value):
        return False
    cut = int(value)
    if not -_INT64 <= cut < _INT64:
        return False
    remainder = abs(cut) % abs(test.divisor)
    return (-remainder if cut < 0 else remainder) == test.remainder


def _elem_match(test: ElemMatch, value: Value, env: Environment) -> bool:
    if type(value) is not list:
        return False
    if test.predicate is None:
        return any(all(_single(inner, item, env) for inner in test.tests) for item in value)
    for item in value:
        inside = {str(i): inner for i, inner in enumerate(item)} if type(item) is list else item
        if type(inside) is dict and _predicate(test.predicate, inside, env):
            return True
    return False


def _bits(test: Bits, value: Value, _: Environment) -> bool:
    if type(value) is Binary:
        bits = int.from_bytes(value, "little")
    elif is_integral(value):
        bits = int(value)  # Python's shift extends the sign, as two's complement does
    else:
        return False
    found = [bool(bits >> position & 1) for position in test.positions]
    if test.op == "$bitsAllSet":
        return all(found)
    if test.op == "$bitsAllClear":
        return not any(found)
    return any(found) if test.op == "$bitsAnySet" else not all(found)


_TESTS: Final[dict[type, Callable[[Any, Value, Environment], bool]]] = {
    Compare: _compare,
    OneOf: _one_of,
    Exists: lambda _t, v, _e: v is not MISSING,
    TypeIs: _type_is,
    RegexTest: _regex,
    ModTest: _mod,
    SizeIs: lambda t, v, _e: type(v) is list and len(v) == t.size,
    ElemMatch: _elem_match,
    Bits: _bits,
    MatchesSchema: lambda t, v, _e: conforms(t.schema, v),
    Not: lambda t, v, e: not _single(t.part, v, e),
    All: lambda t, v, e: all(_single(part, v, e) for part in t.parts),
    AnyOf: lambda t, v, e: any(_single(part, v, e) for part in t.parts),
    Always: lambda t, _v, _e: t.answer,
}


def fields_used(predicate: Predicate) -> frozenset[str] | None:
    """The top-level fields that a predicate looks at; None if it may look at any."""
    match predicate:
        case OnField():
            return frozenset(predicate.names[:1])
        case All() | AnyOf():
            found = [fields_used(part) for part in predicate.parts]
            return None if any(f is None for f in found) else frozenset().union(*(f for f in found if f is not None))
        case Not():
            return fields_used(predicate.part)
        case ExprTrue():
            return expression_fields(predicate.expr)
        case Always():
            return frozenset()
        case _:
            return None
