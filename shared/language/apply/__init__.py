"""Stateless stages applied to single documents: the definition of their results."""

from tidemark.shared.language.apply.lookup import apply_lookup, lookup_keys, lookup_variables
from tidemark.shared.language.apply.stages import (
    Discarded,
    Failure,
    Outcome,
    Passed,
    ValidationStop,
    apply_count,
    apply_group,
    apply_limit,
    apply_sort,
    apply_stage,
    apply_stages,
)

__all__ = [
    "Discarded",
    "Failure",
    "Outcome",
    "Passed",
    "ValidationStop",
    "apply_count",
    "apply_group",
    "apply_limit",
    "apply_lookup",
    "apply_sort",
    "apply_stage",
    "apply_stages",
    "lookup_keys",
    "lookup_variables",
]
