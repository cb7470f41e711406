"""Errors foretold for every record by a document's text: constants that can only fail are errors, doubtful ones are warnings.

The interpreter itself is asked. A call with constants among its arguments is tried with a sample of every type in place of the values
that it reads from a record: where all fail, so will each record that comes to it. An error stands where the call is evaluated for each
record; in a branch that a record may not take (`$cond`, `$switch`, the body of `$map`) somebody may mean it, and it is a warning.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from decimal import Decimal
from typing import Any, Final, get_args

from tidemark.shared.language.accumulators.base import Accumulator
from tidemark.shared.language.expressions.ast import (
    NULL,
    ArrayExpr,
    Call,
    Expr,
    FieldPath,
    FilterArray,
    Let,
    Literal,
    MapArray,
    ObjectExpr,
    ReduceArray,
    SortArray,
    Switch,
    Variable,
    children,
    constant,
    is_bare_name,
)
from tidemark.shared.language.expressions.environment import Budget, Environment
from tidemark.shared.language.expressions.errors import SIZE, ExpressionError
from tidemark.shared.language.expressions.forms import META_NAMES
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.registry import Named
from tidemark.shared.language.problems import Problems, nearest_of
from tidemark.shared.language.query.ast import All, AnyOf, Not
from tidemark.shared.language.stages import Lookup, Stage
from tidemark.shared.language.values.types import is_nan, is_number
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, Binary, Date, ObjectId, Regex, Timestamp

TRIES_MAX: Final = 200_000
"""Evaluations for one document: bounds the cost of reading it; calls behind them are not tried."""
_UNITS_MAX: Final = 100_000
"""The units that one trial may produce."""
_SAMPLES: Final[tuple[Any, ...]] = (
    1, 0.5, "a", True, Date(0), [1], {"k": 1}, -1, 0, Decimal(1), "1", "2024-01-01T00:00:00Z", [["k", 1]], [{"k": "a", "v": 1}], [],
    {}, [[1]], ["a"], Binary(b"a" * 8), ObjectId(b"a" * 12), "61" * 12, "00112233-4455-6677-8899-aabbccddeeff", Regex("a"),
    Timestamp(1, 1), None,
)  # fmt: skip
_FEW: Final[tuple[Any, ...]] = (1, "a", Date(0), [1], {"k": 1}, True, None)
_MANY_ARGUMENTS: Final = 4
"""Of more unknown arguments only equal samples are tried, which proves nothing: then nothing is said."""
_WORDS: Final = frozenset(
    {"unit", "startOfWeek", "timezone", "format", "byteOrder", "to", "options", "method", "regex"}
)
"""Arguments that take one of some words, or a text of a form of its own: samples tell nothing of them."""
_BY_FORMAT: Final = frozenset({"$dateFromString", "$convert"})
"""With a format they read texts that no sample has."""
_LAZY: Final = frozenset({"$and", "$or", "$cond", "$ifNull"})
_EXPRESSIONS: Final = get_args(Expr)
_SOURCE_FIELDS: Final = ("_ts", "_stream_meta")


@dataclass(frozen=True, slots=True)
class PlacedExpression:
    """An expression as it stands in a stage."""

    expr: Expr
    path: str
    each: bool
    """Whether it is evaluated for every record that comes to the stage."""


def foretell(pipeline: Iterable[Stage], tree: object, problems: Problems) -> None:
    """Note the errors that can be foretold of the stages of a document; `tree` is its text as it was read."""
    trials = _Trials(problems)
    made = _names_made(tree)
    for found in expressions_in(tuple(pipeline), "", each=True):
        trials.look(found.expr, found.path, each=found.each)
        _source_fields(found, made, problems)


def expressions_in(part: object, path: str, *, each: bool) -> Iterator[PlacedExpression]:
    """The outermost expressions of stages, with the place of the stage or call around them."""
    if isinstance(part, _EXPRESSIONS):
        yield PlacedExpression(part, path, each)
    elif isinstance(part, tuple):
        for item in part:
            yield from expressions_in(item, path, each=each)
    elif is_dataclass(part) and not isinstance(part, type):
        if isinstance(part, Stage | Accumulator):
            path = part.path
        short = isinstance(part, All | AnyOf | Not)
        for field in fields(part):
            inner = each and not short and not (isinstance(part, Lookup) and field.name == "pipeline")
            yield from expressions_in(getattr(part, field.name), path, each=inner)


class _Trials:
    """Tries the calls of one document."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._left = TRIES_MAX
        self._refused = {error.path for error in problems.errors}

    def look(self, expr: Expr, path: str, *, each: bool) -> None:
        """Note the calls inside an expression that can only fail. each: it is evaluated for each record."""
        trial = _trial_of(expr)
        if trial is not None:
            if self._try(trial, each=each):
                return
            path = trial.path
        for inner, always in _inside(expr):
            self.look(inner, path, each=each and always)

    def _try(self, trial: "_Trial", *, each: bool) -> bool:
        """Whether something was said of the call, so that its arguments need no word."""
        given = [arg for arg in trial.args if arg is not None]
        known = [arg for arg in given if isinstance(arg, Literal | ObjectExpr | ArrayExpr)]
        literals = [arg.value for arg in known if isinstance(arg, Literal)]
        constant_ = len(literals) == len(given)
        if not constant_:
            known = [arg for arg in known if arg != NULL]
        if not known or _is_long(trial.op, literals) or any(_is_at(path, trial.path) for path in self._refused):
            return False
        reason, passes_null = self._reason(trial)
        named = next((value for value in literals if is_bare_name(value)), None)
        hint = "" if named is None else f"; {constant(named)}"
        if reason and not passes_null and each:
            self._problems.add(trial.path, f"fails for every record: {reason}{hint}")
        elif reason:
            whom = "every record that has a value there" if passes_null else "every record that comes to it"
            self._problems.warn(trial.path, f"fails for {whom}: {reason}{hint}")
        elif named is not None and constant_ and trial.folds:
            self._problems.warn(trial.path, f"is the same for every record{hint}")
            return True
        return bool(reason)

    def _reason(self, trial: "_Trial") -> tuple[str, bool]:
        """Why each trial fails ("" if one does not), and whether null passes."""
        unknown = [n for n, arg in enumerate(trial.args) if arg is not None and not isinstance(arg, Literal)]
        if not unknown:
            return self._outcome(trial, trial.args) or "", False
        if len(unknown) > _MANY_ARGUMENTS or any(trial.names and trial.names[n] in _WORDS for n in unknown):
            return "", False
        if trial.op in _BY_FORMAT and any(
            trial.names[n] == "format" and arg not in (None, NULL) for n, arg in enumerate(trial.args)
        ):
            return "", False
        reason, passes_null = "", False
        samples = _SAMPLES if len(unknown) <= 2 else _FEW  # noqa: PLR2004 - squares are cheap, cubes are not
        same = (tuple([sample] * len(unknown)) for sample in _SAMPLES)
        mixed = itertools.product(samples, repeat=len(unknown)) if len(unknown) > 1 else ()
        for values in itertools.chain(same, mixed):
            args = list(trial.args)
            for n, value in zip(unknown, values, strict=True):
                args[n] = Literal(_filled(args[n], value))
            failed = self._outcome(trial, tuple(args))
            if failed is None and None not in values:
                return "", False
            passes_null = passes_null or failed is None
            reason = failed or reason
        return reason, passes_null

    def _outcome(self, trial: "_Trial", args: tuple[Expr | None, ...]) -> str | None:
        """Why a call fails; None if it does not, or nobody can tell."""
        if self._left <= 0:
            return None
        self._left -= 1
        try:
            evaluate(trial.with_(args), Environment({}, budget=Budget(_UNITS_MAX)))
        except ExpressionError as error:
            return None if error.code == SIZE else error.reason
        return None


@dataclass(frozen=True, slots=True)
class _Trial:
    """A call, or an expression in its place, and the arguments that samples are put into."""

    op: str
    args: tuple[Expr | None, ...]
    path: str
    with_: Callable[[tuple[Expr | None, ...]], Expr]
    names: tuple[str, ...] = ()
    """Of the arguments, where they have names."""
    folds: bool = False
    """Whether a call of constants reads nothing; not said of those whose constants are written with letters, such as identifiers."""


_READS_OR_LETTERS: Final = frozenset({"$getField", "$toObjectId", "$toUUID", "$convert", "$toString"})


def _trial_of(expr: Expr) -> _Trial | None:
    """The trial of an expression; None where nothing can be foretold. For a loop it tries the input: its body sees the items."""
    match expr:
        case Call(op, args, path) if op not in _LAZY:
            signature = OPERATORS[op].signature
            names = signature.names if isinstance(signature, Named) else ()
            return _Trial(op, args, path, lambda new: Call(op, new, path), names, op not in _READS_OR_LETTERS)
        case MapArray() | ReduceArray():
            return _Trial("", (expr.source,), expr.path, lambda new: replace(expr, source=new[0] or NULL, body=NULL))
        case FilterArray():
            plain = replace(expr, condition=NULL, limit=None)
            return _Trial("", (expr.source,), expr.path, lambda new: replace(plain, source=new[0] or NULL))
        case SortArray():
            return _Trial("", (expr.source,), expr.path, lambda new: replace(expr, source=new[0] or NULL))
    return None


def _is_at(error: str, call: str) -> bool:
    """Whether an error is told of a call already."""
    return error == call or error.startswith((f"{call}.", f"{call}["))


def _is_long(op: str, literals: Iterable[Any]) -> bool:
    """Whether the cost of a trial may depend on more than the length of the text."""
    if op != "$range":
        return False
    numbers = [value for value in literals if is_number(value) and not is_nan(value)]
    # Numbers beyond 32 bits fail before anything is made.
    return any(abs(n) > _UNITS_MAX for n in numbers) and all(INT32_MIN <= n <= INT32_MAX for n in numbers)


def _filled(arg: Expr | None, sample: object) -> Any:
    """A value as an argument may have it, with a sample in place of the values that it reads."""
    match arg:
        case Literal(value):
            return value
        case ArrayExpr(items):
            return [_filled(item, sample) for item in items]
        case ObjectExpr(fields_):
            return {name: _filled(item, sample) for name, item in fields_}
    return sample


def _inside(expr: Expr) -> Iterator[tuple[Expr, bool]]:
    """The expressions directly inside one, and whether each is evaluated whenever the outer one is."""
    match expr:
        case Call(op, args):
            operator = OPERATORS.get(op)
            signature = None if operator is None else operator.signature
            names = signature.names if isinstance(signature, Named) else ()
            deferred = signature.deferred if isinstance(signature, Named) else frozenset()
            only_first = operator is None or operator.lazy or operator.until_null
            for n, arg in enumerate(args):
                late = (only_first and n > 0) or (bool(names) and names[n] in deferred)
                if arg is not None:
                    yield arg, not late
        case ObjectExpr() | ArrayExpr() | Let() | SortArray():
            yield from ((child, True) for child in children(expr))
        case Switch() | MapArray() | FilterArray() | ReduceArray():
            yield from ((child, n == 0) for n, child in enumerate(children(expr)))
        case _:
            return


def _names_made(tree: object) -> frozenset[str]:
    """Every name that a document writes as the name of a field: in schemas, in its own documents, as the output of a stage."""
    found: set[str] = set()
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            found.update(str(name).split(".", 1)[0] for name in item)
            found.update(v for k, v in item.items() if k in ("as", "streamMetaFieldName") and isinstance(v, str))
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return frozenset(found)


def _source_fields(found: PlacedExpression, made: frozenset[str], problems: Problems) -> None:
    """Records have no `_ts` and no `_stream_meta` unless their producer wrote them: `$meta` tells, and says where a name is wrong."""
    waiting, path = [(found.expr, found.path)], found.path
    while waiting:
        expr, path = waiting.pop()
        if isinstance(expr, Call):
            path = expr.path
        waiting += [(child, path) for child in children(expr)]
        names = (
            expr.names if isinstance(expr, FieldPath) or (isinstance(expr, Variable) and expr.name == "ROOT") else ()
        )
        wanted = meta_meant(names[0]) if names else None
        if wanted is None or names[0] in made:
            continue
        written = "$" + ".".join(names)
        meta = "stream.source.ts" if wanted == "_ts" else ".".join(("stream", *names[1:]))
        meta = meta if meta in META_NAMES else nearest_of(meta, META_NAMES) or "stream.source"
        known = f"what is known of a record is told by {{$meta: {meta}}}"
        problems.warn(path, f"{written} is null unless the records themselves have a field {names[0]}; {known}")


def meta_meant(name: str) -> str | None:
    """Which of the two a name is, or nearly is."""
    if name in _SOURCE_FIELDS:
        return name
    plain = name.lower().replace("_", "")
    return "_stream_meta" if plain.startswith("streammeta") or nearest_of(name, ("_stream_meta",)) else None
