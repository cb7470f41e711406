"""`$join`."""

from dataclasses import dataclass
from typing import Final, Literal

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import EXPRESSION, STRING, Option, Read, choice, closed, duration, with_options
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import Stage
from tidemark.shared.language.stages.pipeline import PIPELINE


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


_WITHIN: Final = closed(
    Option("before", duration(least=0, zero_alone=True), "how much earlier than the left one the right one may be"),
    Option("after", duration(least=0, zero_alone=True), "how much later"),
)
_OPTIONS: Final = (
    Option("from", PIPELINE, "a pipeline that starts with $source", required=True),
    Option("leftKey", EXPRESSION, "equal to rightKey for a pair", required=True),
    Option("rightKey", EXPRESSION, "equal to leftKey for a pair", required=True),
    Option("within", _WITHIN, "right time in [left − before, left + after]", required=True),
    Option("type", choice("inner", "left", "right", "full"), "what becomes of those without a match (default inner)"),
    Option("as", STRING, "the field that takes the right document", required=True),
)


def _made(o: Read, path: str, scope: Scope) -> Join | None:
    if "." in o["as"] or o["as"].startswith("$"):
        scope.problems.add(join(path, "as"), "a top-level field name, without dots and $")
    return Join(path=path, **o.fields)


SPEC: Final = with_options("Pairs documents of two streams that are near in time.", _OPTIONS, _made)
