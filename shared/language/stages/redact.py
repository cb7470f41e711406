"""`$redact`."""

from dataclasses import dataclass
from typing import Any, Final

from tidemark.shared.language.expressions.ast import Expr, Literal, constant
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import VALUE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import EXPRESSION, StageSpec
from tidemark.shared.language.stages.base import Outcome, Passed, Stateless, Told
from tidemark.shared.model.values import MISSING, Document, Value

DESCEND: Final = "descend"
PRUNE: Final = "prune"
KEEP: Final = "keep"
VARIABLES: Final = {"DESCEND": DESCEND, "PRUNE": PRUNE, "KEEP": KEEP}
"""What its variables give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redact(Stateless):
    """The expression gives `$$DESCEND`, `$$PRUNE` or `$$KEEP` for the document and, descending, for each one inside it."""

    expr: Expr

    def _apply(self, document: Document, env: Environment) -> Outcome:
        kept = _document(self, document, env.bind(VARIABLES))
        return Passed(()) if kept is MISSING else Passed((kept,))

    def told(self) -> tuple[Told, ...]:
        """What `explain` tells: the expression."""
        return (("expression", None),)


def _document(stage: Redact, document: Document, env: Environment) -> Any:
    answer = evaluate(stage.expr, env.at(document))
    if answer == KEEP:
        return document
    if answer == PRUNE:
        return MISSING
    if answer != DESCEND:
        raise ExpressionError("$redact must give $$DESCEND, $$PRUNE or $$KEEP", VALUE, stage.path)
    result: Document = {}
    for name, value in document.items():
        kept = _value(stage, value, env)
        if kept is not MISSING:
            result[name] = kept
    return result


def _value(stage: Redact, value: Value, env: Environment) -> Value:
    if type(value) is dict:
        return _document(stage, value, env)
    if type(value) is list:
        items = [_value(stage, item, env) for item in value]
        return [item for item in items if item is not MISSING]
    return value


def _read(tree: object, path: str, scope: Scope) -> Redact:
    before = len(scope.problems.errors)
    expr = parse_expression(tree, path, scope.bind(*VARIABLES))
    if isinstance(expr, Literal) and len(scope.problems.errors) == before:
        scope.problems.add(path, f"$redact gives {constant(expr.value)}, expected $$DESCEND, $$PRUNE or $$KEEP")
    return Redact(path=path, expr=expr)


SPEC: Final = StageSpec("Keeps, prunes or descends into documents by their content.", _read, EXPRESSION.schema)
