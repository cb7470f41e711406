"""Which expressions have kernels, and how they are put together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags
from tidemark.shared.compiled.values import read
from tidemark.shared.language.expressions.ast import (
    Call,
    CreateUuid,
    Expr,
    FieldPath,
    Let,
    Literal,
    Meta,
    ObjectExpr,
    SortArray,
    Switch,
    Variable,
    children,
)
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.library.strings import BLANKS
from tidemark.shared.language.kernels import (
    arithmetic,
    arrays,
    calls,
    cells,
    dates,
    items,
    objects,
    patterns,
    reals,
    texts,
)
from tidemark.shared.language.kernels.arrays import Of
from tidemark.shared.language.kernels.base import (
    ARROW,
    HOLDS,
    NUMERIC,
    RANKS,
    WHOLE,
    Bools,
    Column,
    Rows,
    Untyped,
    Unvectorised,
    booleans,
    constant,
    doubted,
    either,
    filled,
    gone_from,
    nulls_of,
    truth_of,
)
from tidemark.shared.language.kernels.passes import Arguments, Kernel, by_constants, by_types
from tidemark.shared.language.values.order import rank
from tidemark.shared.language.values.types import TYPE_NUMBERS

_FORMS: Final[Mapping[type, Callable[[Any, Rows, Of], Column]]] = {
    **arrays.FORMS,
    ObjectExpr: objects.made,
    SortArray: items.sorted_array,
}
"""Forms that have kernels where their parts have."""


def column_of(expr: Expr, rows: Rows) -> Column:
    """The values of an expression, by its kernel or, where it has none for these types, by the interpreter for `rows`."""
    try:
        return by_kernel(expr, rows)
    except Untyped:
        raise
    except Unvectorised:
        return rows.interpreted(expr)


def by_kernel(expr: Expr, rows: Rows) -> Column:
    """The same; Unvectorised where the expression as a whole has no kernel for these types."""
    match expr:
        case Literal(value):
            return arrays.constant_of(value, rows.size) if type(value) in (list, dict) else constant(value, rows.size)
        case FieldPath(names) | Variable("ROOT" | "CURRENT", names):
            return arrays.read_path(names, rows) if names else rows.root()
        case Variable("NOW", ()):
            return rows.now()
        case CreateUuid():
            raise Unvectorised
        case Meta(names):
            return rows.meta(names)
        case Variable(name, names):
            return rows.variable(name, names)
        case Call():
            return arrays.counted(_call(expr, rows), rows)
        case Switch():
            return _switch(expr, rows)
        case _:
            form = _FORMS.get(type(expr))
            if form is None:
                raise Unvectorised
            return form(expr, rows, column_of)


def may_have_kernel(expr: Expr) -> bool:
    """Whether an expression has a kernel for values of some types: as far as can be told without their types."""
    return _stays(expr, lambda op: op in KERNELS or op in BY_EXPRESSIONS)


def may_be_called(expr: Expr) -> bool:
    """Whether an expression stays on columns, its operators called row by row where they have no kernel."""
    return _stays(expr, lambda op: op in BY_EXPRESSIONS or not OPERATORS[op].lazy)


def _stays(expr: Expr, is_known: Callable[[str], bool]) -> bool:
    match expr:
        case FieldPath() | Literal() | Variable():
            return True
        case Let(variables) if any(name == "CURRENT" for name, _ in variables):
            return False
        case CreateUuid():
            return False
        case Meta(names):
            return names[:1] not in ((), ("source",)) or names == ("source", "ts")
        case Call(op):
            known = is_known(op)
        case _:
            known = type(expr) in _FORMS or isinstance(expr, Switch)
    return known and all(_stays(child, is_known) for child in children(expr))


def _call(expr: Call, rows: Rows) -> Column:
    """An operator by its kernel, and row by row where that cannot tell."""
    of, found = Arguments(rows, column_of), None
    try:
        found = _kernel(expr, rows, of)
    except Untyped:
        raise
    except Unvectorised:
        found = by_constants(_kernel, expr, rows, of) if expr.op in BY_EXPRESSIONS else None
    return calls.completed(expr, by_types(_kernel, expr, found, rows, of), rows, of)


def _kernel(expr: Call, rows: Rows, of: Of) -> Column:
    op = expr.op
    if op in BY_EXPRESSIONS:
        return BY_EXPRESSIONS[op](expr, rows, of)
    kernel = KERNELS.get(op)
    if kernel is None or None in expr.args:
        raise Unvectorised
    args = [of(arg, rows) for arg in expr.args if arg is not None]
    return _made(kernel(args), args)


def _made(found: Column, args: Sequence[Column]) -> Column:
    """A kernel's result for some columns: where these are in doubt it is, too."""
    if found.cells is not None and any(found.cells is arg.cells for arg in args):
        found = replace(found, cells=None)  # they say what an argument is
    return doubted(found, *(arg.doubt for arg in args))


def _on_first(kernel: Callable[[Column, Call], Column]) -> Kernel:
    """A kernel of an operator of whose arguments all but the first are constants."""

    def apply(expr: Call, rows: Rows, of: Of) -> Column:
        if expr.args[0] is None:
            raise Unvectorised
        first = of(expr.args[0], rows)
        return _made(kernel(first, expr), [first])

    return apply


def _comparison(of_signs: Callable[[Any], Column]) -> Kernel:
    """Of how two values of any types compare."""

    def apply(expr: Call, rows: Rows, of: Of) -> Column:
        left, right = (of(arg, rows) for arg in expr.args if arg is not None)
        signs, doubt = cells.compared(left, right)
        return doubted(of_signs(signs), doubt)

    return apply


def _of_cmp(signs: Any) -> Column:
    return Column("int", pa.array(signs.astype(np.int32), pa.int32()))


def _compared_without_case(args: Sequence[Column]) -> Column:
    """`$strcasecmp`."""
    given = [texts.text_of(arg) for arg in args]
    signs, doubt = cells.compared(*(texts.letters(pc.ascii_upper, text) for text in given))
    return doubted(_of_cmp(signs), doubt, *(text.doubt for text in given))


def _logic(op: str) -> Kernel:
    """A row that an earlier part decides cannot be put into doubt by a later one."""
    decisive = op == "$or"

    def apply(expr: Call, rows: Rows, of: Of) -> Column:
        found, doubt = np.full(rows.size, not decisive, dtype=np.bool_), np.zeros(rows.size, dtype=np.bool_)
        for arg in expr.args:
            decided = (found == decisive) & ~doubt
            truth, unsure = truth_of(of(arg, rows) if arg is not None else constant(None, rows.size))
            if unsure is not None:
                doubt |= unsure & ~decided
            found = found | truth if decisive else found & truth
        return doubted(booleans(found), doubt)

    return apply


def choose(condition: Bools, yes: Column, no: Column) -> Column:
    """Of two columns of one type (or nulls) that which a condition says."""
    kind = no.type if yes.type == "null" else yes.type
    mask = pa.array(condition, pa.bool_())
    if no.type not in (kind, "null") or kind in ("object", "array") or cells.is_mixed(yes) or cells.is_mixed(no):
        (a, unsure_a), (b, unsure_b) = cells.encoded(yes), cells.encoded(no)
        chosen = read(pc.if_else(mask, a, b))
        if not len(chosen):
            raise Untyped
        return cells.tagged_column(chosen, either(*_of_either(condition, unsure_a, unsure_b)))
    values = pc.if_else(mask, yes.values.cast(ARROW[kind]), no.values.cast(ARROW[kind]))
    doubt = either(*_of_either(condition, yes.doubt, no.doubt))
    empty = [column for column in (yes, no) if column.missing]
    absent = bool(empty) and all(column.absent or not column.has_nulls for column in (yes, no))
    gone, other = gone_from(yes), gone_from(no)
    told = None if gone is None or other is None else lambda: np.where(condition, gone(), other())
    return Column(kind, values, missing=bool(empty), absent=absent, doubt=doubt, told=told)


def _of_either(condition: Bools, yes: Bools | None, no: Bools | None) -> tuple[Bools | None, Bools | None]:
    """The rows of either column that a condition takes."""
    return (None if yes is None else yes & condition), (None if no is None else no & ~condition)


def _cond(expr: Call, rows: Rows, of: Of) -> Column:
    condition, yes, no = (of(arg, rows) for arg in expr.args if arg is not None)
    truth, unsure = truth_of(condition)
    return doubted(choose(truth, yes, no), unsure)


def _switch(expr: Switch, rows: Rows) -> Column:
    if expr.default is None:
        raise Unvectorised
    result = column_of(expr.default, rows)
    for case, then in reversed(expr.branches):
        truth, unsure = truth_of(column_of(case, rows))
        result = doubted(choose(truth, column_of(then, rows), result), unsure)
    return result


def _if_null(expr: Call, rows: Rows, of: Of) -> Column:
    given = [of(arg, rows) for arg in expr.args if arg is not None]
    result = given[-1]
    for arg in reversed(given[:-1]):
        if cells.is_mixed(arg):
            assert arg.cells is not None
            there = ~np.isin(arg.cells.tags, (tags.MISSING, tags.NULL))
            result = doubted(choose(there, arg, result), arg.cells.tags == tags.SPREAD)
        else:
            result = doubted(choose(~nulls_of(arg), replace(arg, missing=False), result), arg.doubt)
    return result


def _in(expr: Call, rows: Rows, of: Of) -> Column:
    value, listed = expr.args
    if value is None or not isinstance(listed, Literal) or type(listed.value) is not list:
        return items.CALLS["$in"](expr, rows, of)
    column = of(value, rows)
    nulls = either(nulls_of(column)) if any(item is None for item in listed.value) else None
    return doubted(booleans(is_in(column, listed.value)), nulls, column.doubt)


def is_in(column: Column, items: Sequence[Any]) -> Bools:
    """Which cells that are not null equal one of some constants."""
    if column.type == "null":
        return np.zeros(len(column.values), dtype=np.bool_)
    same = [item for item in items if item is not None and rank(item) == RANKS[column.type]]
    if column.type in WHOLE and all(type(item) is not float for item in same):
        values = column.values.cast(pa.int64())
    elif column.type == "string" or (column.type in NUMERIC and not same):
        values = column.values
    else:
        raise Unvectorised
    wanted = [int(item) if column.type in WHOLE else item for item in same if _simple(item)]
    if len(wanted) < len(same):
        raise Unvectorised
    return filled(pc.is_in(values, value_set=pa.array(wanted, values.type)))


def _simple(item: object) -> bool:
    return isinstance(item, int | str) and type(item) is not bool


def _extreme(sign: int) -> Kernel:
    """`$max` and `$min` of several operands; null and missing do not count."""

    def apply(expr: Call, rows: Rows, of: Of) -> Column:
        if len(expr.args) < 2:  # noqa: PLR2004 - one may be an array
            return items.extreme(expr, rows, of)
        first, *others = (cells.nulled(of(arg, rows)) for arg in expr.args if arg is not None)
        for other in others:
            signs, doubt = cells.compared(other, first)
            beyond = (signs == sign) & ~cells.empties_of(other) | cells.empties_of(first)
            first = doubted(choose(beyond, other, first), doubt)
        return first

    return apply


def _array_elem_at(expr: Call, rows: Rows, of: Of) -> Column:
    """An item of an array: of a list that is a column, or of any other."""
    match expr.args:
        case (FieldPath(names), Literal(index)) if type(index) is int:
            try:
                return rows.item(names, index)
            except Unvectorised:
                return items.CALLS["$arrayElemAt"](expr, rows, of)
    return items.CALLS["$arrayElemAt"](expr, rows, of)


def _constant(expr: Expr | None, default: object = None) -> object:
    """The value of a constant argument, or of one that was not written."""
    if expr is None:
        return default
    if not isinstance(expr, Literal):
        raise Unvectorised
    return expr.value


def _of(types: Sequence[str], kernel: Callable[..., Column], *defaults: object) -> Kernel:
    """A kernel of a column of one of some types, and of constants behind it: the defaults of those that were not written."""

    def apply(column: Column, expr: Call) -> Column:
        if column.type not in types:
            raise Unvectorised
        return kernel(column, *(_constant(arg, default) for arg, default in zip_longest(expr.args[1:], defaults)))

    return _on_first(apply)


def _of_text(kernel: Callable[..., Column], *defaults: object) -> Kernel:
    """The same of a column whose values have a text."""

    def apply(column: Column, expr: Call) -> Column:
        text = texts.text_of(column)
        given = (_constant(arg, default) for arg, default in zip_longest(expr.args[1:], defaults))
        return doubted(kernel(text, *given), text.doubt)

    return _on_first(apply)


def _part(*, of_bytes: bool) -> Kernel:
    """`$substrCP` and `$substrBytes`."""

    def apply(expr: Call, rows: Rows, of: Of) -> Column:
        column, *bounds = (of(arg, rows) for arg in expr.args if arg is not None)
        text = texts.text_of(column)
        constants = [arg.value for arg in expr.args[1:] if isinstance(arg, Literal)]
        if not of_bytes and len(constants) == 2 and all(type(each) is int and each >= 0 for each in constants):  # noqa: PLR2004
            found = texts.part_of(text, *constants)
        else:
            found = texts.part_between(text, *bounds, of_bytes=of_bytes)
        return _made(doubted(found, text.doubt), [column, *bounds])

    return apply


def _date_from_string(expr: Call, rows: Rows, of: Of) -> Column:
    """Texts that are no dates are left to `$dateFromString` itself, which asks for onError."""
    text, form, timezone, _, on_null = expr.args
    if text is None:
        raise Unvectorised
    column = of(text, rows)
    return _made(_or_null(dates.from_string(column, form, timezone), column, on_null, rows, of), [column])


def _date_to_string(expr: Call, rows: Rows, of: Of) -> Column:
    date, form, timezone, on_null = expr.args
    if date is None:
        raise Unvectorised
    column = of(date, rows)
    return _made(_or_null(dates.written(column, form, timezone), column, on_null, rows, of), [column])


def _or_null(found: Column, source: Column, on_null: Expr | None, rows: Rows, of: Of) -> Column:
    """A result of a column, with another where that is null."""
    if on_null is None:
        return found
    if cells.is_mixed(source):
        raise Unvectorised
    return choose(nulls_of(source), of(on_null, rows), replace(found, missing=False))


def _convert(expr: Call, rows: Rows, of: Of) -> Column:
    """As the operator of the type; what does not convert is left to `$convert` itself."""
    source, target, _, on_null, *more = expr.args
    if source is None or not isinstance(target, Literal) or any(arg is not None for arg in more):
        raise Unvectorised
    op = _CONVERSIONS.get(target.value) if type(target.value) in (str, int) else None
    if op is None:
        raise Unvectorised
    found, given = _kernel(Call(op, (source,), expr.path), rows, of), of(source, rows)
    return _made(_or_null(found, given, on_null, rows, of), [given])


def _moved(sign: int) -> Kernel:
    def apply(expr: Call, rows: Rows, of: Of) -> Column:
        if expr.args[0] is None or expr.args[2] is None:
            raise Unvectorised
        date, amount = of(expr.args[0], rows), of(expr.args[2], rows)
        return doubted(dates.moved(date, amount, expr.args, sign), date.doubt, amount.doubt)

    return apply


def _between(expr: Call, rows: Rows, of: Of) -> Column:
    if expr.args[0] is None or expr.args[1] is None:
        raise Unvectorised
    start, end = of(expr.args[0], rows), of(expr.args[1], rows)
    return doubted(dates.between(start, end, expr.args), start.doubt, end.doubt)


def _not(expr: Call, rows: Rows, of: Of) -> Column:
    if expr.args[0] is None:
        raise Unvectorised
    truth, unsure = truth_of(of(expr.args[0], rows))
    return doubted(booleans(~truth), unsure)


def _index_of(text: Column, expr: Call) -> Column:
    if text.type != "string" or any(arg is not None for arg in expr.args[2:]):
        raise Unvectorised
    return texts.place_of(text, _constant(expr.args[1]), of_bytes=expr.op == "$indexOfBytes")


_TEXT: Final = ("string",)
BY_EXPRESSIONS: Final[dict[str, Kernel]] = {
    **arrays.CALLS,
    **items.CALLS,
    **objects.CALLS,
    **{op: _comparison(lambda signs, holds=holds: booleans(holds(signs))) for op, holds in HOLDS.items()},  # type: ignore[misc]
    "$cmp": _comparison(_of_cmp),
    "$and": _logic("$and"),
    "$or": _logic("$or"),
    "$cond": _cond,
    "$ifNull": _if_null,
    "$in": _in,
    "$max": _extreme(1),
    "$min": _extreme(-1),
    "$arrayElemAt": _array_elem_at,
    "$regexMatch": _on_first(lambda text, expr: patterns.matched(expr, text)),
    "$regexFindAll": patterns.all_found,
    "$regexFind": patterns.found_in,
    "$dateFromString": _date_from_string,
    "$round": _of(NUMERIC, partial(arithmetic.at_place, rounds=True), 0),
    "$trunc": _of(NUMERIC, partial(arithmetic.at_place, rounds=False), 0),
    "$abs": _of(NUMERIC, arithmetic.absolute),
    "$floor": _of(NUMERIC, partial(arithmetic.rounded, pc.floor)),
    "$sqrt": _of(NUMERIC, arithmetic.root),
    "$ceil": _of(NUMERIC, partial(arithmetic.rounded, pc.ceil)),
    "$not": _not,
    "$toUpper": _of_text(partial(texts.letters, pc.ascii_upper)),
    "$toLower": _of_text(partial(texts.letters, pc.ascii_lower)),
    "$strLenCP": _of(_TEXT, texts.length),
    "$strLenBytes": _of(_TEXT, texts.length_bytes),
    "$convert": _convert,
    "$toDate": _of(("date", "long", "double", "string"), texts.to_date),
    "$toInt": _of((*NUMERIC, "bool", "string"), texts.to_int),
    "$toLong": _of((*NUMERIC, "bool", "string", "date"), texts.to_long),
    "$toDouble": _of((*NUMERIC, "bool", "date", "string"), texts.to_double),
    "$toString": _of((*NUMERIC, "bool", "string", "date"), texts.to_string),
    "$substrCP": _part(of_bytes=False),
    "$substrBytes": _part(of_bytes=True),
    "$substr": _part(of_bytes=True),
    "$trim": _of(_TEXT, partial(texts.trimmed, pc.utf8_trim), BLANKS),
    "$ltrim": _of(_TEXT, partial(texts.trimmed, pc.utf8_ltrim), BLANKS),
    "$rtrim": _of(_TEXT, partial(texts.trimmed, pc.utf8_rtrim), BLANKS),
    "$indexOfCP": _on_first(_index_of),
    "$indexOfBytes": _on_first(_index_of),
    "$replaceOne": _of(_TEXT, partial(texts.replaced, every=False)),
    "$replaceAll": _of(_TEXT, partial(texts.replaced, every=True)),
    "$dateToString": _date_to_string,
    "$dateAdd": _moved(1),
    "$dateSubtract": _moved(-1),
    "$dateDiff": _between,
    "$dateTrunc": _on_first(lambda date, expr: dates.truncate(date, expr.args)),
    **{op: _on_first(lambda date, expr, part=part: part(date, expr.args[1])) for op, part in dates.PARTS.items()},  # type: ignore[misc]
}
"""Operators whose kernels look at more than their arguments' columns."""

_CONVERSIONS: Final = {
    key: f"$to{name.capitalize()}"
    for name in ("int", "long", "double", "string", "date", "bool")
    for key in (name, TYPE_NUMBERS[name])
}
"""The operators of the types that `$convert` names, or numbers."""
KERNELS: Final[dict[str, Callable[[Sequence[Column]], Column]]] = {
    "$add": lambda args: arithmetic.combine("$add", args),
    "$subtract": lambda args: arithmetic.combine("$subtract", args),
    "$multiply": lambda args: arithmetic.combine("$multiply", args),
    "$divide": arithmetic.divide,
    "$mod": arithmetic.modulo,
    "$sum": arithmetic.total_of,
    "$concat": texts.concat,
    "$strcasecmp": _compared_without_case,
    **reals.KERNELS,
}
"""The other operators with kernels, which take columns alone."""
