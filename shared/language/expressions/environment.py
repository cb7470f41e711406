"""The environment of an expression: the document, the time, variables, metadata, and the units that it may still spend."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tidemark.shared.language.expressions.errors import SIZE, ExpressionError
from tidemark.shared.model.values import MISSING, Date, Document, Value

RESULT_UNITS_MAX: Final = 16 * 1024 * 1024
"""Default bound of one evaluation's units: characters, array items and fields that it produces, and steps of loops."""

LOOP_STEP_UNITS: Final = 8
"""The units of an item of `$map`, `$filter`, `$reduce` and `$sortArray`: a step of a loop costs more time than a character."""
CALL_UNITS: Final = 4
"""The units of an operator inside of a loop, and one for each argument."""
_TEXT_BITS: Final = 6
"""Inside of a loop an item that an operator reads takes a unit, a character a 64th."""
DEPTH_MAX: Final = 150
"""How deep a computed value may nest."""
READ_DEPTH_MAX: Final = 2 * DEPTH_MAX
"""How deep a value that is read inside of a loop may nest: no field of a document does so, but what a loop puts into each other may."""

Identity: TypeAlias = Callable[[], bytes | None]
_EMPTY: Final[dict[str, Any]] = {}
Meta: TypeAlias = Document | Callable[[], Document]
"""A document, or a function that makes it: most expressions do not ask."""


@dataclass(slots=True)
class Budget:
    """Units (characters, items, loop steps): how many one evaluation may produce, and how many are left of them."""

    most: int = RESULT_UNITS_MAX
    left: int = -1

    def __post_init__(self) -> None:
        if self.left < 0:
            self.left = self.most


class Environment:
    """Where `evaluate` looks things up.

    root: `$$ROOT`; current: `$$CURRENT`, the same but inside `$redact`. now: `$$NOW`, None where the caller has none, then it is missing.
    meta: `{$meta: "stream…"}`, e.g. `{"window": {"start": …, "end": …, "partition": …}, "source": {…}}`. variables: by name. budget: the
    bound of results; a new environment `on` another document has the whole of it again. identity: the bytes that tell the document from all
    others of the processor's records; None where it is no record's.
    """

    __slots__ = ("_meta", "budget", "current", "identity", "now", "root", "variables")

    def __init__(
        self,
        root: Document,
        *,
        now: Date | None = None,
        meta: Meta = _EMPTY,
        variables: Mapping[str, Value] = _EMPTY,
        current: Value = MISSING,
        budget: Budget | None = None,
        identity: Identity = lambda: None,
    ) -> None:
        self.identity = identity
        self.root = root
        self.current: Value = root if current is MISSING else current
        self.now = now
        self._meta = meta
        self.variables = variables
        self.budget = budget if budget is not None else Budget()

    @property
    def meta(self) -> Document:
        """The document that `$meta` reads; made when it is first asked for."""
        if callable(self._meta):
            self._meta = self._meta()
        return self._meta

    def become(self, root: Document, now: Date | None, meta: Meta, left: int, identity: Identity) -> None:
        """Stand for another document, with so much of its budget left: for callers that go through many, one after the other."""
        self.root = self.current = root
        self.now = now
        self._meta = meta
        self.identity = identity
        self.budget.left = left

    def bind(self, variables: Mapping[str, Value]) -> "Environment":
        """The same with further variables; inner ones hide outer ones of the same name, and `CURRENT` is where paths begin."""
        merged = {**self.variables, **variables} if self.variables else variables
        current = variables.get("CURRENT", self.current)
        return Environment(
            self.root,
            now=self.now,
            meta=self._meta,
            variables=merged,
            current=current,
            budget=self.budget,
            identity=self.identity,
        )

    def at(self, current: Document) -> "Environment":
        """The same environment with another `$$CURRENT`."""
        return Environment(
            self.root,
            now=self.now,
            meta=self._meta,
            variables=self.variables,
            current=current,
            budget=self.budget,
            identity=self.identity,
        )

    def on(self, root: Document) -> "Environment":
        """The same time, variables and metadata on another document, with the whole budget again."""
        whole = Budget(self.budget.most)
        return Environment(
            root, now=self.now, meta=self._meta, variables=self.variables, budget=whole, identity=self.identity
        )

    def read(self, values: Iterable[object]) -> None:
        """Charge the units of going through values whole: their parts as often as they stand there. ExpressionError beyond the bounds."""
        left, items, characters = self.budget.left, 0, 0
        stack: list[tuple[Any, int]] = [(values, 0)]
        while stack:
            value, depth = stack.pop()
            if depth > READ_DEPTH_MAX:
                raise ExpressionError(f"a value of the loop nests more than {READ_DEPTH_MAX} deep", SIZE)
            items += len(value)
            if items > left:
                break
            for inner in value.values() if type(value) is dict else value:
                kind = type(inner)
                if kind is dict or kind is list:
                    stack.append((inner, depth + 1))
                elif kind is str:
                    characters += len(inner)
        self.spend(items + (characters >> _TEXT_BITS))

    def spend(self, units: int) -> None:
        """Take from the budget; ExpressionError when it is used up."""
        self.budget.left -= units
        if self.budget.left < 0:
            raise ExpressionError(f"the result has more than {self.budget.most} characters and items", SIZE)
