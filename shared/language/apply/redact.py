"""`$redact`: an expression decides, document by document from the outside in, what is kept."""

from typing import Any, Final

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import VALUE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.stages.stateless import Redact
from tidemark.shared.model.values import MISSING, Document, Value

_DESCEND: Final = "descend"
_PRUNE: Final = "prune"
_KEEP: Final = "keep"
_VARIABLES: Final = {"DESCEND": _DESCEND, "PRUNE": _PRUNE, "KEEP": _KEEP}


def redact(stage: Redact, document: Document, env: Environment) -> Document | None:
    """What is kept of a document; None if it is pruned as a whole."""
    kept = _document(stage, document, env.bind(_VARIABLES))
    return None if kept is MISSING else kept


def _document(stage: Redact, document: Document, env: Environment) -> Any:
    answer = evaluate(stage.expr, env.at(document))
    if answer == _KEEP:
        return document
    if answer == _PRUNE:
        return MISSING
    if answer != _DESCEND:
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
