"""`$compute`."""

from dataclasses import dataclass, field
from typing import Literal

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.stages.base import Stage
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Stage):
    """`$compute`: a user's computation, `class_` as `module:Class`; `key` a field path's or expression's value."""

    class_: str
    key: Expr
    config: Document = field(default_factory=dict)
    order: Literal["eventTime", "arrival"] = "eventTime"
    limits: Limits = DEFAULTS
    """Of the document."""
