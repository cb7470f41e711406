"""`$replaceRoot` and `$replaceWith`."""

from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.expressions.ast import ArrayExpr, Call, Expr, Literal, ObjectExpr, Variable, fields_used
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import TYPE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.kinds import EXPRESSION, Option, StageSpec, with_options
from tidemark.shared.language.stages.base import Outcome, Passed, Stateless, Told
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import Document, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceRoot(Stateless):
    """`$replaceRoot` and `$replaceWith`: the document becomes the expression's value, which must be a document."""

    new_root: Expr

    def _apply(self, document: Document, env: Environment) -> Outcome:
        value = evaluate_bounded(self.new_root, env)
        if type(value) is not dict:
            raise self.refused(value)
        return Passed((value,))

    def refused(self, value: Value) -> ExpressionError:
        """Why a value is no new root."""
        return ExpressionError(f"the new root must be a document, found {type_name(value)}", TYPE, self.path)

    @property
    def made(self) -> ObjectExpr | None:
        """The fields of a new root that has these and no others; None for another new root."""
        return self.new_root if isinstance(self.new_root, ObjectExpr) else None

    @property
    def added(self) -> ObjectExpr | None:
        """The fields of `{$mergeObjects: ["$$ROOT", {…}]}`, which keeps the documents' other fields; None for another new root."""
        match self.new_root:
            case Call("$mergeObjects", (Variable("ROOT", ()), ObjectExpr() as added)):
                return added
            case _:
                return None

    def reads(self) -> Fields:
        """The fields that the expression looks at."""
        return fields_used(self.new_root)

    def named(self) -> frozenset[str]:
        """The fields that are told by name."""
        known = self.made or self.added
        return frozenset() if known is None else frozenset(name for name, _ in known.fields)

    def written(self, names: Fields) -> Fields:
        """The fields of an object."""
        return None if self.made is None else self.named()

    def told(self) -> tuple[Told, ...]:
        """The fields of an object one by one."""
        return (("expression", self.new_root),) if self.made is None else self.made.fields


def _made(expr: Expr, path: str, scope: Scope) -> ReplaceRoot | None:
    if isinstance(expr, Literal) and type(expr.value) is not dict:
        scope.problems.add(path, f"the new root must be a document, found {type_name(expr.value)}")
        return None
    if isinstance(expr, ArrayExpr):
        scope.problems.add(path, "the new root must be a document, found array")
        return None
    return ReplaceRoot(path=path, new_root=expr)


SPEC: Final = with_options(
    "The document becomes another one.",
    (Option("newRoot", EXPRESSION, "the new document", required=True),),
    lambda o, path, scope: _made(o["newRoot"], path, scope),
)
WITH: Final = StageSpec(
    SPEC.doc, lambda tree, path, scope: _made(parse_expression(tree, path, scope), path, scope), EXPRESSION.schema
)
"""`$replaceWith`."""
