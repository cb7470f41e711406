"""Regular expressions on columns.

Arrow has the same engine, but names groups and gives no text for one that took no part. So `$regexFind` has a kernel where each group
that may take none has a character where it does. `$regexFindAll` has one where also each match has a character: behind one without,
engines differ in where they look for the next.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import values
from tidemark.shared.language.expressions.ast import Call, Literal
from tidemark.shared.language.expressions.environment import RESULT_UNITS_MAX
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.library.strings import program_of
from tidemark.shared.language.expressions.registry import ABSENT
from tidemark.shared.language.kernels.arrays import Bound, Of, bounded, given, places_of
from tidemark.shared.language.kernels.base import Bools, Column, Rows, Unvectorised, booleans, either, filled, without
from tidemark.shared.language.kernels.cells import encoded
from tidemark.shared.language.kernels.texts import ALL_BYTES, long_texts

_PIECES: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?P?<\w+>|\(\?[a-zA-Z-]*[:)]|\(|\)(?:[?*]|\{\d+(?:,\d*)?\})?|\||\{\d+(?:,\d*)?\}|.",
    re.DOTALL,
)
"""A pattern in pieces: escapes, classes, the beginnings of groups, flags, the ends of groups with what lets them take no part, the rest."""
_UNREAD: Final = ("\\Q", "\\C", "\\B")
"""Escapes that make something else of what follows, or hold between the bytes of a character."""
_TAKES_ONE: Final = re.compile(r"\\[dDwWsSnrtfv]|\\[^\w\s]|\[.+|[^\\^$()|*+?{}\[]", re.DOTALL)
"""Pieces that take a character: escapes whose meaning ends with them, classes, and what stands for itself."""
_TAKES_NONE: Final = ("\\b", "\\A", "\\z")
_OR_NONE: Final = ("*", "?", "{")
"""How pieces begin that may let the one before them take none."""


@dataclass(frozen=True)
class _Shape:
    """What is told of a pattern by its text."""

    named: str
    """The pattern with what is before it, all of it, and each group, named."""
    optional: Bools
    """Which groups may take no part in a match; such a group has a character where it does."""
    takes_some: bool
    """Whether it is sure that each match has a character."""


@dataclass
class _Within:
    """What is told of a group, or of the whole pattern, up to a place."""

    number: int | None = None
    """Of a group that is captured."""
    sure: bool = False
    """Whether the alternative up to here has a character."""
    others_sure: bool = True
    alternates: bool = False
    inside: list[int] = field(default_factory=list)
    """The groups in it."""


@lru_cache(maxsize=256)
def _shape(pattern: str) -> _Shape:
    """Unvectorised for one with a group of which nobody can say whether it took part."""
    pieces = _PIECES.findall(pattern)
    if any(escape in pattern for escape in _UNREAD):
        raise Unvectorised
    named: list[str] = []
    within, groups, optional, sure_groups = [_Within()], 0, set[int](), set[int]()
    for piece, after in pairwise((*pieces, "")):
        captures = piece == "(" or (piece.startswith("(?") and piece.endswith(">"))
        named.append(f"(?P<g{groups}>" if captures else piece)
        if piece[0] == "(" and not piece.endswith(")"):
            within.append(_Within(groups if captures else None))
            groups += captures
        elif piece[0] == ")" and len(within) > 1:
            _close(within, piece, optional, sure_groups)
        elif piece == "|":
            now = within[-1]
            now.others_sure, now.sure, now.alternates = now.others_sure and now.sure, False, True
        else:
            within[-1].sure |= bool(_TAKES_ONE.fullmatch(piece)) and not after.startswith(_OR_NONE)
    whole = within[0]
    if whole.alternates:
        optional.update(whole.inside)
    known = all(piece[0] != "\\" or piece in _TAKES_NONE or _TAKES_ONE.fullmatch(piece) for piece in pieces)
    if len(within) > 1 or not optional <= (sure_groups if known else set()):
        raise Unvectorised
    before = "" if pattern.startswith("^") and not whole.alternates else ".*?"
    return _Shape(
        f"^(?P<before>(?s:{before}))(?P<whole>{''.join(named)})",
        np.isin(np.arange(groups), list(optional)),
        known and whole.sure and whole.others_sure,
    )


def _close(within: list[_Within], piece: str, optional: set[int], sure_groups: set[int]) -> None:
    """The end of a group, and what it says of the group around."""
    group = within.pop()
    own = [] if group.number is None else [group.number]
    sure = group.sure and group.others_sure
    if sure:
        sure_groups.update(own)
    if group.alternates:
        optional.update(group.inside)
    if len(piece) > 1:
        optional.update(group.inside + own)
    within[-1].inside += group.inside + own
    within[-1].sure |= sure and len(piece) == 1


def _program(expr: Call) -> Any:
    """The program of a constant pattern that is neither null nor missing."""
    _, regex, options = expr.args
    given = ABSENT if options is None else options.value if isinstance(options, Literal) else None
    if not isinstance(regex, Literal) or given is None:
        raise Unvectorised
    try:
        program = program_of(expr.op, regex.value, given)
    except ExpressionError:
        raise Unvectorised from None
    if program is None:
        raise Unvectorised
    return program


def _texts(column: Column) -> pa.Array:
    if column.type != "string":
        raise Unvectorised
    return column.values


def _captured(groups: pa.StringArray, shape: _Shape) -> pa.StringArray:
    """What the groups of match after match have found: null where one took no part."""
    if not shape.optional.any():
        return groups
    none = filled(pc.equal(groups, "")) & np.tile(shape.optional, len(groups) // len(shape.optional))
    return without(groups, none)


def _matches(match: pa.StringArray, places: pa.Int32Array, captures: pa.StringArray) -> pa.BinaryArray:
    """What is found, with as many captures each, encoded."""
    count = len(match)
    each = np.full(count, len(captures) // max(count, 1))
    lists = values.arrays(each, encoded(Column("string", captures))[0], np.ones(count, np.bool_))
    parts = {"match": encoded(Column("string", match))[0], "idx": encoded(Column("int", places))[0], "captures": lists}
    return values.objects(values.no_fields(count), list(parts), list(parts.values()))


def matched(expr: Call, column: Column) -> Column:
    """`$regexMatch`: null is no match."""
    found = pc.match_substring_regex(_texts(column), _program(expr).pattern)
    return booleans(np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), dtype=np.bool_))


def found_in(expr: Call, rows: Rows, of: Of) -> Column:
    """`$regexFind`: the text, its place and the captures, a struct of a whole batch; null where nothing is found."""
    column, program = of(given(expr, 0), rows), _program(expr)
    texts = _texts(column)
    shape = _shape(program.pattern)
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest * (program.groups + 2) > RESULT_UNITS_MAX:
        raise Unvectorised
    try:
        found = pc.extract_regex(texts, shape.named)
    except pa.ArrowInvalid:
        raise Unvectorised from None
    before, whole, *captures = (pc.struct_field(found, i) for i in range(program.groups + 2))
    count, groups = len(texts), len(captures)
    by_row = np.arange(groups * count).reshape(groups, count).T.ravel()
    items = pa.concat_arrays(captures).take(pa.array(by_row)) if captures else pa.array([], pa.string())
    items = _captured(items, shape)
    places = pc.utf8_length(before).cast(pa.int32())
    if isinstance(rows, Bound):
        return bounded(without(_matches(whole, places, items), filled(found.is_null())), "object", column.doubt, rows)
    lists = pa.ListArray.from_arrays(pa.array(groups * np.arange(count + 1), pa.int32()), items)
    parts = {"match": whole, "idx": places, "captures": lists}
    struct = pa.StructArray.from_arrays(list(parts.values()), list(parts), mask=found.is_null())
    return Column("object", struct, doubt=column.doubt)


_MARK: Final = "\x1f"
"""Stands around what a pattern has found; texts that have it are left to the interpreter."""
_GROUPS_MAX: Final = 9
"""Groups that a replacement can name."""


def all_found(expr: Call, rows: Rows, of: Of) -> Column:
    """`$regexFindAll`: each match is replaced by itself and its groups between marks, and the text taken apart at these."""
    column, program = of(given(expr, 0), rows), _program(expr)
    shape, groups = _shape(program.pattern), program.groups
    if not shape.takes_some or groups > _GROUPS_MAX:
        raise Unvectorised
    odd = either(long_texts(pc.binary_length(_texts(column))), filled(pc.match_substring(column.values, _MARK)))
    texts = without(column.values, odd).fill_null("")
    if (pc.sum(pc.binary_length(texts)).as_py() or 0) * 2 * (groups + 2) > ALL_BYTES:
        raise Unvectorised
    by = _MARK + _MARK.join(f"\\{group}" for group in range(groups + 1)) + _MARK
    try:
        parts = pc.split_pattern(pc.replace_substring_regex(texts, program.pattern, by), _MARK)
    except pa.ArrowInvalid:
        raise Unvectorised from None
    pieces, width = parts.flatten(), groups + 2
    taken = pc.list_value_length(parts).to_numpy(zero_copy_only=False).astype(np.int64)
    begins, counts = np.cumsum(taken) - taken, taken // width
    match = values.rows_of(counts)
    at = begins[match] + width * places_of(counts, match)  # of each match the piece in front of it
    of_text = (np.arange(len(pieces)) - np.repeat(begins, taken)) % width < 2  # noqa: PLR2004 - between matches, or one
    sizes = np.where(of_text, pc.utf8_length(pieces).to_numpy().astype(np.int64), 0)
    before = np.concatenate(([0], np.cumsum(sizes)))
    places = pa.array(before[at + 1] - before[begins[match]], pa.int32())
    captures = pieces.take(pa.array((at[:, None] + 2 + np.arange(groups)).ravel()))
    found = _matches(pieces.take(pa.array(at + 1)), places, _captured(captures, shape))
    made = values.arrays(counts, found, np.ones(rows.size, np.bool_))
    return bounded(made, "array", either(column.doubt, odd), rows)
