"""`$join`."""

from dataclasses import dataclass
from typing import Literal

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.stages.base import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Stage):
    """`$join`: right time in [left − before_ms, left + after_ms]. `from_` is a pipeline that starts with a source."""

    from_: tuple[Stage, ...]
    left_key: Expr
    right_key: Expr
    before_ms: int = 0
    after_ms: int = 0
    type: Literal["inner", "left", "right", "full"] = "inner"
    as_: str
