"""The stages inside a window that look at all its documents: what they give, defined on lists."""

from collections.abc import Iterable, Sequence
from typing import Any

from tidemark.shared.language.accumulators.base import OrderKey
from tidemark.shared.language.accumulators.table import accumulator_input, implementation
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.sorting import sort_items
from tidemark.shared.language.stages.windows import Count, Group, Limit, Sort
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.model.values import MISSING, Document


def apply_group(stage: Group, rows: Iterable[tuple[Document, OrderKey]], env: Environment) -> list[Document]:
    """One document a key, in the order of the keys' first rows as they come.

    The key of equal values (1 and 1.0) is that of the least order key. ExpressionError where an expression fails on a row; who keeps the
    rest of the rows filters such rows out before.
    """
    accumulators = [implementation(field.accumulator) for field in stage.fields]
    groups: dict[bytes, tuple[list[Any], list[Any]]] = {}
    for document, order_key in rows:
        here = env.on(document)
        key = evaluate(stage.id, here)
        key = None if key is MISSING else key
        first, states = groups.setdefault(canonical_key(key), ([order_key, key], [a.init() for a in accumulators]))
        if order_key < first[0]:
            first[:] = [order_key, key]
        for i, (accumulator, field) in enumerate(zip(accumulators, stage.fields, strict=True)):
            states[i] = accumulator.add(states[i], accumulator_input(field.accumulator, here), order_key)
    result = []
    for first, states in groups.values():
        document = {"_id": first[1]}
        for accumulator, field, state in zip(accumulators, stage.fields, states, strict=True):
            document[field.name] = accumulator.finish(state)
        result.append(document)
    return result


def apply_sort(stage: Sort, documents: Sequence[Document]) -> list[Document]:
    """The documents in the order of the keys; equal ones as they stood."""
    return sort_items(documents, stage.keys)


def apply_limit(stage: Limit, documents: Sequence[Document]) -> list[Document]:
    """The first ones."""
    return list(documents[: stage.limit])


def apply_count(stage: Count, documents: Sequence[Document]) -> list[Document]:
    """Their number; nothing for none."""
    return [{stage.field: len(documents)}] if documents else []
