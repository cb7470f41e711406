"""`$lookup` on a document, given the foreign documents; and which of them it need look at, so that a table can be asked for few rows.

They are narrowed by equalities that every match must meet, taken from `localField` and `foreignField`, and from the `$match` stages with
which the pipeline begins: `$expr` with `$eq` of a field and a variable or constant, also within `$and`; fields that equal a constant. The
lookup itself checks the documents found again, so a condition may let too much through, but never too little.

A lookup within a lookup's pipeline has a question of its own. `Looker.matching` is a generator: it gives what is looked for, and takes
what was found, so that who asks can put together what many documents ask at one time.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Any, TypeAlias, TypeVar

from tidemark.shared.language.expressions.ast import Call, Expr, FieldPath, Literal, Variable
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import VALUE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate, evaluate_bounded
from tidemark.shared.language.expressions.paths import set_path
from tidemark.shared.language.limits import CONDITIONS_MAX
from tidemark.shared.language.query.ast import All, Compare, ExprTrue, OnField, Predicate
from tidemark.shared.language.query.match import equality_values, values_at
from tidemark.shared.language.stages import InlineTable, Lookup, Match
from tidemark.shared.language.stages.base import Failure, InnerStage, Passed, Stateless, within_depth
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.model.values import MISSING, Document, Value

T = TypeVar("T")
Names = tuple[str, ...]
Wanted = tuple[Any, ...]
"""A value for each condition."""


@dataclass(frozen=True)
class Narrowing:
    """The equalities of a lookup."""

    stage: Lookup
    outer: frozenset[str] = frozenset()
    """Variables of the lookups around it."""

    @cached_property
    def _conditions(self) -> tuple[tuple[Names, Names | Expr], ...]:
        """(path in the foreign document, path in the looking one or expression of its variables)."""
        found: dict[Names, Names | Expr] = {}
        if self.stage.local_field is not None and self.stage.foreign_field is not None:
            found[self.stage.foreign_field] = self.stage.local_field
        variables = self.outer.union(name for name, _ in self.stage.let)
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
        """The values that a document looks for, null for missing. ExpressionError if a variable fails on it or it looks for too much."""
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
    """The canonical bytes of the wanted values."""
    return b"".join(canonical_key(value) for value in wanted)


def _equalities(predicate: Predicate, variables: AbstractSet[str]) -> Iterator[tuple[Names, Expr]]:
    match predicate:
        case All(parts):
            for part in parts:
                yield from _equalities(part, variables)
        case OnField(names, Compare("$eq", value)):
            yield names, Literal(value)
        case ExprTrue(expr):
            yield from _of_expr(expr, variables)


def _of_expr(expr: Expr | None, variables: AbstractSet[str]) -> Iterator[tuple[Names, Expr]]:
    match expr:
        case Call("$and", args):
            for arg in args:
                yield from _of_expr(arg, variables)
        case Call("$eq", (FieldPath((name,)), other)) | Call("$eq", (other, FieldPath((name,)))):
            # At longer paths `$eq` sees an array of the values within arrays, which no item would equal.
            if isinstance(other, Literal) or (isinstance(other, Variable) and other.name in variables):
                yield (name,), other


def lookup_keys(foreign: Value, names: Sequence[str]) -> frozenset[bytes]:
    """The canonical keys by which a foreign document is found at a path: the values that a query's equality sees; missing is null.

    None for an index beyond an array, which no equality reaches.
    """
    return frozenset(map(canonical_key, equality_values(foreign, names)))


def local_values(document: Value, names: Sequence[str]) -> list[Value]:
    """The values that a document looks for at a path: the items of an array, not the array itself; null (or MISSING) without a value."""
    found: list[Value] = []
    for value in values_at(document, names):
        if type(value) is list:
            found += value
        else:
            found.append(value)
    return found or [None]


def lookup_variables(stage: Lookup, env: Environment) -> dict[str, Value]:
    """The `let` variables for a document. ExpressionError where one fails on it."""
    return {name: evaluate_bounded(expr, env) for name, expr in stage.let}


@dataclass(frozen=True, slots=True)
class Question:
    """The values that a found document looks for in a nested lookup."""

    looker: "Looker"
    wanted: Mapping[bytes, Wanted]
    """By key (`key_of`)."""


Asking: TypeAlias = Generator[list[Question], Sequence[Sequence[Document]], T]
"""Gives questions, and takes the foreign documents for each, in their order; then its result."""


@dataclass(slots=True)
class Matches:
    """How many foreign documents one document has found, at all levels."""

    most: int
    found: int = 0

    def add(self, found: int, path: str) -> None:
        """So many more. ExpressionError where they are too many."""
        self.found += found
        if self.found > self.most:
            reason = (
                f"more than {self.most} foreign documents match; options.limits.matchesPerDocument sets how many may"
            )
            raise ExpressionError(reason, VALUE, path)


class Looker:
    """A `$lookup` and those nested in its pipeline, with what narrows each."""

    def __init__(self, stage: Lookup, outer: frozenset[str] = frozenset()) -> None:
        self.stage = stage
        self.narrowing = Narrowing(stage, outer)
        known = outer.union(name for name, _ in stage.let)
        self.nested = {inner.path: Looker(inner, known) for inner in stage.nested}

    def all(self) -> Iterator["Looker"]:
        """It and those within it."""
        yield self
        for inner in self.nested.values():
            yield from inner.all()

    def matching(
        self, document: Document, foreign: Iterable[Document], env: Environment, matches: Matches
    ) -> Asking[list[Any]]:
        """The foreign documents that match, in their order. ExpressionError where the document fails.

        `foreign` may have been narrowed by an index on `lookup_keys`; it is checked again here.
        """
        stage = self.stage
        inner = env.bind(lookup_variables(stage, env))
        found = list(foreign)
        if stage.local_field is not None:
            wanted = frozenset(map(canonical_key, local_values(document, stage.local_field)))
            found = [other for other in found if wanted & lookup_keys(other, stage.foreign_field or ())]
        for each in stage.pipeline:
            if isinstance(each, Lookup):
                found = yield from self._nested(each, found, inner, matches)
            else:
                found = _through(each, found, inner)
        matches.add(len(found), stage.path)
        return found

    def _nested(
        self, stage: Lookup, documents: list[Document], env: Environment, matches: Matches
    ) -> Asking[list[Document]]:
        """The documents found, each with what a nested lookup finds for it."""
        looker = self.nested[stage.path]
        places = [env.on(document) for document in documents]
        wanted = [{key_of(one): one for one in looker.narrowing.wanted(each.root, each)} for each in places]
        foreign = (yield [Question(looker, each) for each in wanted]) if wanted else ()
        tasks = [looker.matching(each.root, some, each, matches) for each, some in zip(places, foreign, strict=True)]
        results = yield from together(tasks)
        return [
            within_depth(set_path(document, stage.as_, found))
            for document, found in zip(documents, results, strict=True)
        ]


def together(tasks: Sequence[Asking[T]]) -> Asking[list[T]]:
    """The results of all; what they ask at one time is asked together."""
    results: dict[int, T] = {}
    answers: dict[int, Sequence[Sequence[Document]] | None] = dict.fromkeys(range(len(tasks)))
    while answers:
        asked: dict[int, list[Question]] = {}
        for number, answer in answers.items():
            try:
                asked[number] = next(tasks[number]) if answer is None else tasks[number].send(answer)
            except StopIteration as done:
                results[number] = done.value
        if not asked:
            break
        found = yield [question for questions in asked.values() for question in questions]
        answers, at = {}, 0
        for number, questions in asked.items():
            answers[number] = found[at : at + len(questions)]
            at += len(questions)
    return [results[number] for number in range(len(tasks))]


def looked_up(
    looker: Looker, document: Document, foreign: Iterable[Document], env: Environment
) -> Asking[Passed | Failure]:
    """The document with the foreign documents that match under `as`, in their order."""
    try:
        matches = Matches(looker.stage.limits.matches_max)
        found = yield from looker.matching(document, foreign, env.on(document), matches)
        return Passed((within_depth(set_path(document, looker.stage.as_, found)),))
    except ExpressionError as e:
        return Failure(e.reason, e.code, e.path or looker.stage.path, document)


def apply_lookup(stage: Lookup, document: Document, foreign: Iterable[Document], env: Environment) -> Passed | Failure:
    """The same; nested lookups may be in documents of the text alone."""
    return by_own_tables(looked_up(Looker(stage), document, foreign, env))


def by_own_tables(task: Asking[T]) -> T:
    """The result of what asks for documents of the text alone."""
    try:
        questions = next(task)
        while True:
            questions = task.send([_own(question.looker.stage) for question in questions])
    except StopIteration as done:
        result: T = done.value
        return result


def _own(stage: Lookup) -> Sequence[Document]:
    assert isinstance(stage.from_, InlineTable), "others are asked by who has their connection"
    return stage.from_.documents


def _through(stage: InnerStage, documents: list[Document], env: Environment) -> list[Document]:
    """A stage of the lookup's pipeline on all that was found; a failure is the looking document's."""
    if not isinstance(stage, Stateless):
        return stage.gather(documents, env)
    found: list[Document] = []
    for document in documents:
        outcome = stage.apply(document, env)
        if isinstance(outcome, Passed):
            found.extend(outcome.documents)
        elif isinstance(outcome, Failure):
            raise ExpressionError(outcome.reason, outcome.code, outcome.path)
    return found
