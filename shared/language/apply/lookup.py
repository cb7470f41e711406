"""`$lookup` on a document, given the foreign documents: what matches, and what becomes of it."""

from collections.abc import Iterable, Sequence
from typing import Any

from tidemark.shared.language.apply.results import Failure, Passed
from tidemark.shared.language.apply.stages import apply_stage, set_path
from tidemark.shared.language.apply.windowed import apply_count, apply_group, apply_limit, apply_sort
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import VALUE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.query.match import equality_values, values_at
from tidemark.shared.language.stages.relational import Lookup
from tidemark.shared.language.stages.windows import Count, Group, InnerStage, Limit, Sort
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.model.values import Document, Value


def lookup_keys(foreign: Value, names: Sequence[str]) -> frozenset[bytes]:
    """The canonical keys by which a foreign document is found at a path: what an equality of the query language looks at; missing is null.

    None for an index beyond an array, which no equality reaches.
    """
    return frozenset(map(canonical_key, equality_values(foreign, names)))


def local_values(document: Value, names: Sequence[str]) -> list[Value]:
    """What a document looks for at a path: the items of an array, not the array itself; null (or MISSING) where there is no value."""
    found: list[Value] = []
    for value in values_at(document, names):
        if type(value) is list:
            found += value
        else:
            found.append(value)
    return found or [None]


def lookup_variables(stage: Lookup, env: Environment) -> dict[str, Value]:
    """The `let` variables for a document. ExpressionError where one fails on it."""
    return {name: evaluate(expr, env) for name, expr in stage.let}


def apply_lookup(stage: Lookup, document: Document, foreign: Iterable[Document], env: Environment) -> Passed | Failure:
    """The document with the foreign documents that match under `as`, in their order.

    `foreign` may have been narrowed by an index on `lookup_keys`; it is checked again here.
    """
    try:
        found = _matching(stage, document, foreign, env.on(document))
    except ExpressionError as e:
        return Failure(e.reason, e.code, e.path or stage.path, document)
    return Passed((set_path(document, stage.as_, found),))


def _matching(stage: Lookup, document: Document, foreign: Iterable[Document], env: Environment) -> list[Any]:
    inner = env.bind(lookup_variables(stage, env))
    found = list(foreign)
    if stage.local_field is not None:
        wanted = frozenset(map(canonical_key, local_values(document, stage.local_field)))
        found = [other for other in found if wanted & lookup_keys(other, stage.foreign_field or ())]
    for each in stage.pipeline:
        found = _through(each, found, inner)
    most = stage.limits.matches_max
    if len(found) > most:
        reason = f"more than {most} foreign documents match; options.limits.matchesPerDocument sets how many may"
        raise ExpressionError(reason, VALUE, stage.path)
    return found


def _through(stage: InnerStage, documents: list[Document], env: Environment) -> list[Document]:
    """A stage of the lookup's pipeline on all that was found; a failure is the looking document's."""
    match stage:
        case Group():
            return apply_group(stage, ((document, (0, 0, i)) for i, document in enumerate(documents)), env)
        case Sort():
            return apply_sort(stage, documents)
        case Limit():
            return apply_limit(stage, documents)
        case Count():
            return apply_count(stage, documents)
    found: list[Document] = []
    for document in documents:
        outcome = apply_stage(stage, document, env)
        if isinstance(outcome, Passed):
            found.extend(outcome.documents)
        elif isinstance(outcome, Failure):
            raise ExpressionError(outcome.reason, outcome.code, outcome.path)
    return found
