"""Which foreign documents a `$lookup` need look at: equalities that every match must meet, so that a table can be asked for few rows.

Taken from `localField` and `foreignField`, and from the `$match` stages with which the pipeline begins: `$expr` with `$eq` of a field and a
variable or constant, also within `$and`; fields that equal a constant. What is found by them is checked again by the lookup itself,
so a condition may let too much through, but never too little.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Any

from tidemark.shared.language.apply.lookup import local_values, lookup_keys, lookup_variables
from tidemark.shared.language.expressions.ast import Call, Expr, FieldPath, Literal, Variable
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import VALUE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.limits import CONDITIONS_MAX
from tidemark.shared.language.query.ast import All, Compare, ExprTrue, OnField, Predicate
from tidemark.shared.language.stages.relational import Lookup
from tidemark.shared.language.stages.stateless import Match
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.model.values import MISSING, Document

Names = tuple[str, ...]
Wanted = tuple[Any, ...]
"""A value for each condition."""


@dataclass(frozen=True)
class Narrowing:
    """The equalities of a lookup."""

    stage: Lookup

    @cached_property
    def _conditions(self) -> tuple[tuple[Names, Names | Expr], ...]:
        """(path in the foreign document, path in the looking one or expression of its variables)."""
        found: dict[Names, Names | Expr] = {}
        if self.stage.local_field is not None and self.stage.foreign_field is not None:
            found[self.stage.foreign_field] = self.stage.local_field
        variables = {name for name, _ in self.stage.let}
        for stage in self.stage.pipeline:
            if not isinstance(stage, Match):
                break
            for names, expr in _equalities(stage.predicate, variables):
                found.setdefault(names, expr)
        return tuple(islice(found.items(), CONDITIONS_MAX))

    @property
    def columns(self) -> tuple[Names, ...]:
        """Paths in the foreign document; none where all of the table has to be looked at."""
        return tuple(names for names, _ in self._conditions)

    def wanted(self, document: Document, env: Environment) -> list[Wanted]:
        """What a document looks for, null for missing. ExpressionError where a variable fails on it, or it looks for too much."""
        variables = env.bind(lookup_variables(self.stage, env)) if self.stage.let else env
        choices = []
        for _, local in self._conditions:
            found = local_values(document, local) if isinstance(local, tuple) else [evaluate(local, variables)]
            choices.append([None if value is MISSING else value for value in found])
        most = self.stage.limits.combinations_max
        combinations = list(islice(product(*choices), most + 1))
        if len(combinations) > most:
            reason = (
                f"the document looks for more than {most} combinations of values; "
                "options.limits.combinationsPerDocument sets how many it may"
            )
            raise ExpressionError(reason, VALUE, self.stage.path)
        return combinations

    def found_by(self, foreign: Document) -> Iterator[bytes]:
        """The keys (`key_of`) of all that a foreign document is found by."""
        sides = [sorted(lookup_keys(foreign, names)) for names in self.columns]
        yield from (b"".join(parts) for parts in product(*sides))


def key_of(wanted: Wanted) -> bytes:
    """The canonical bytes of what is looked for."""
    return b"".join(canonical_key(value) for value in wanted)


def _equalities(predicate: Predicate, variables: set[str]) -> Iterator[tuple[Names, Expr]]:
    match predicate:
        case All(parts):
            for part in parts:
                yield from _equalities(part, variables)
        case OnField(names, Compare("$eq", value)):
            yield names, Literal(value)
        case ExprTrue(expr):
            yield from _of_expr(expr, variables)


def _of_expr(expr: Expr | None, variables: set[str]) -> Iterator[tuple[Names, Expr]]:
    match expr:
        case Call("$and", args):
            for arg in args:
                yield from _of_expr(arg, variables)
        case Call("$eq", (FieldPath((name,)), other)) | Call("$eq", (other, FieldPath((name,)))):
            # Of longer paths `$eq` sees an array of what lies in arrays, which no item would find.
            if isinstance(other, Literal) or (isinstance(other, Variable) and other.name in variables):
                yield (name,), other
