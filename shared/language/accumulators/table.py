"""The implementation of each accumulator, and the input that it is given for a document."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tidemark.shared.language.accumulators.base import Accumulator, AnyImplementation
from tidemark.shared.language.accumulators.extremes import CountedByKey, Extremes, Top, sort_values
from tidemark.shared.language.accumulators.numbers import CountOf, DeviationOf, TotalOf
from tidemark.shared.language.accumulators.ordered import AddToSet, ConcatArrays, Ends, MergeObjects, Push, SetUnion
from tidemark.shared.language.accumulators.parse import whole_n
from tidemark.shared.language.accumulators.sketches import ApproxCountDistinct, Percentiles
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.interpreter import evaluate, evaluate_bounded
from tidemark.shared.language.values.totals import Deviation, Total
from tidemark.shared.model.values import MISSING, Value


def _n(accumulator: Accumulator) -> int:
    return accumulator.n if accumulator.n is not None else 1


def _top(accumulator: Accumulator) -> AnyImplementation:
    name = accumulator.op
    bottom, alone = name.startswith("$bottom"), not name.endswith("N")
    return Top(_n(accumulator), accumulator.sort_by, bottom=bottom, alone=alone)


def _extremes(accumulator: Accumulator) -> AnyImplementation:
    name = accumulator.op
    return Extremes(_n(accumulator), greatest=name.startswith("$max"), alone=not name.endswith("N"))


def _ends(accumulator: Accumulator) -> AnyImplementation:
    name = accumulator.op
    return Ends(_n(accumulator), last=name.startswith("$last"), alone=not name.endswith("N"))


_IMPLEMENTATIONS: Final[dict[str, Callable[[Accumulator], AnyImplementation]]] = {
    "$sum": lambda _: TotalOf(Total.sum),
    "$avg": lambda _: TotalOf(Total.average),
    "$count": lambda _: CountOf(),
    "$stdDevPop": lambda _: DeviationOf(Deviation.population),
    "$stdDevSamp": lambda _: DeviationOf(Deviation.sample),
    **dict.fromkeys(("$min", "$max", "$minN", "$maxN"), _extremes),
    **dict.fromkeys(("$first", "$last", "$firstN", "$lastN"), _ends),
    **dict.fromkeys(("$top", "$topN", "$bottom", "$bottomN"), _top),
    "$push": lambda a: Push(a.limits.group_values_max),
    "$addToSet": lambda a: AddToSet(a.limits.group_values_max),
    "$concatArrays": lambda a: ConcatArrays(a.limits.group_values_max),
    "$setUnion": lambda a: SetUnion(a.limits.group_values_max),
    "$mergeObjects": lambda a: MergeObjects(a.limits.group_values_max),
    "$percentile": lambda a: Percentiles(a.percentiles, alone=False),
    "$median": lambda a: Percentiles(a.percentiles, alone=True),
    "$approxCountDistinct": lambda _: ApproxCountDistinct(),
}


def implementation(accumulator: Accumulator) -> AnyImplementation:
    """How an accumulator adds, merges and finishes."""
    if accumulator.n_of_key is not None:
        make = _IMPLEMENTATIONS[accumulator.op]
        return CountedByKey(lambda n: make(replace(accumulator, n=n, n_of_key=None)))
    return _IMPLEMENTATIONS[accumulator.op](accumulator)


def accumulator_input(accumulator: Accumulator, env: Environment) -> Value:
    """The value that `add` is given for a document: the input's value, MISSING included; `[sort values, output]` for `$top` and its kin.

    Where the key gives n: `[n, value]`, of a missing value `[n]`. ExpressionError where the input fails on the document, or n is none.
    """
    value = evaluate_bounded(accumulator.input, env)
    if accumulator.sort_by:
        value = [sort_values(env.root, accumulator.sort_by), None if value is MISSING else value]
    if accumulator.n_of_key is None:
        return value
    key, n = accumulator.n_of_key
    found = evaluate(key, env)
    most = whole_n(evaluate(n, env.on(found if type(found) is dict else {})))
    return [most] if value is MISSING else [most, value]
