"""`$redact`."""

from tidemark.shared.language.expressions.ast import Call, Expr, Variable
from tidemark.shared.language.query.ast import All, Always, AnyOf, ExprTrue, Not, Predicate
from tidemark.shared.language.stages import Redact
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.staged import Staged, whole
from tidemark.shared.operators.stages.judging import keep


def redact(stage: Redact, staged: Staged, context: TaskContext) -> None:
    """One that does not look inside keeps rows as they are."""
    predicate = _decided(stage.expr)
    if predicate is None:
        whole(stage, staged, context)
    else:
        keep(stage, predicate, staged, context, tells_refused=False)


def _decided(expr: Expr) -> Predicate | None:
    """Of which documents a `$redact` keeps all, where it keeps all or nothing of each; None where it may look inside."""
    match expr:
        case Variable("KEEP" | "PRUNE" as name, ()):
            return Always(name == "KEEP")
        case Call("$cond", (condition, then, other)) if (
            condition is not None and then is not None and other is not None
        ):
            kept, otherwise = _decided(then), _decided(other)
            if kept is None or otherwise is None:
                return None
            truth = ExprTrue(condition)
            return AnyOf((All((truth, kept)), All((Not(truth), otherwise))))
        case _:
            return None
