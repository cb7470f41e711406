"""Regular expressions on columns of strings: Arrow has the same engine, but names groups and does not say which took part.

So `$regexFind` has a kernel where each group takes part in every match: no alternatives, and no group that may be left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.expressions.ast import Call, Literal
from tidemark.shared.language.expressions.environment import RESULT_UNITS_MAX
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.library.regexes import program_of
from tidemark.shared.language.expressions.registry import ABSENT
from tidemark.shared.language.kernels.base import Column, Path, Unvectorised, booleans

_PIECES: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?P?<\w+>|\(\?|\(|\)[?*{]|\||.", re.DOTALL)
"""A pattern in pieces: escapes, classes, the beginnings of groups, the ends of those that may be left out, alternatives, and the rest."""
_UNREAD: Final = ("\\Q", "\\C")
"""Escapes that make something else of what follows."""


@dataclass(frozen=True, slots=True)
class Match:
    """What `$regexFind` found in each row, in parts: documents are never made of it."""

    paths: Mapping[Path, Column] = field(default_factory=dict)
    items: Mapping[tuple[Path, int], Column] = field(default_factory=dict)
    """The captures, by the path of their array and their index."""


def _program(expr: Call) -> Any:
    """The program of a constant pattern that is not null."""
    _, regex, options = expr.args
    given = ABSENT if options is None else options.value if isinstance(options, Literal) else None
    if not isinstance(regex, Literal) or regex.value is None or given is None:
        raise Unvectorised
    try:
        return program_of(expr.op, regex.value, given)
    except ExpressionError:
        raise Unvectorised from None


def _texts(column: Column) -> pa.Array:
    if column.type != "string":
        raise Unvectorised
    return column.values


def matched(expr: Call, column: Column) -> Column:
    """`$regexMatch`: null is no match."""
    found = pc.match_substring_regex(_texts(column), _program(expr).pattern)
    return booleans(np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), dtype=np.bool_))


def found_in(expr: Call, column: Column, name: str) -> Match:
    """`$regexFind` as the field `name`: whether there is a match, its text, and the captures; null where there is none."""
    texts, program = _texts(column), _program(expr)
    named = _named(program.pattern)
    if named is None:
        raise Unvectorised
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest * (program.groups + 2) > RESULT_UNITS_MAX:
        raise Unvectorised
    try:
        found = pc.extract_regex(texts, named)
    except pa.ArrowInvalid:
        raise Unvectorised from None
    there = pc.if_else(found.is_valid(), pa.scalar(True), pa.scalar(None, pa.bool_()))
    parts = [Column("string", pc.struct_field(found, i), missing=True) for i in range(program.groups + 1)]
    return Match(
        {(name,): Column("object", there), (name, "match"): parts[0]},
        {((name, "captures"), i): part for i, part in enumerate(parts[1:])},
    )


@lru_cache(maxsize=256)
def _named(pattern: str) -> str | None:
    """The pattern with all of it, and each group, named; None where a group may take no part in a match."""
    if any(escape in pattern for escape in _UNREAD):
        return None
    pieces, groups = [], 0
    for piece in _PIECES.findall(pattern):
        if piece == "|" or (len(piece) == 2 and piece[0] == ")"):  # noqa: PLR2004 - the end of a group, and what follows
            return None
        if piece == "(" or (piece.startswith("(?") and piece.endswith(">")):
            pieces.append(f"(?P<g{groups}>")
            groups += 1
        else:
            pieces.append(piece)
    return f"(?P<whole>{''.join(pieces)})"
