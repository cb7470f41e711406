"""Joins, unions and lookups over records drawn as text: under any schedule what each record against each other gives in plain Python."""

import random
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn_records import Records
from tests.harness.drawn_stages import Groups
from tests.harness.drawn_world import Plainly, Row, accepted, ms, played, records_of, source
from tidemark.shared.language.documents import parse
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.stages import Join, Stateless
from tidemark.shared.language.stages.base import too_deep
from tidemark.shared.language.values import canonical_key, encode_value
from tidemark.shared.language.values.depth import DEPTH_MAX, is_deeper
from tidemark.shared.model.values import MISSING, Date, Document


def drawn(chooser: random.Random, types: dict[str, str]) -> dict[str, Any] | None:
    """A document of one join or union; None if it would be refused."""
    groups = Groups(chooser)
    left, right, after = ([groups.stage() for _ in range(chooser.choice((0, 0, 1, 2)))] for _ in range(3))
    other = [source(chooser.choice(({}, types))), *right]
    if chooser.random() < 0.25:
        both: dict[str, Any] = {"$union": {"pipelines": [other]}}
    else:
        keys = chooser.choice((("$a", "$a"), (groups.key(), groups.key()), ({"$type": "$a"}, {"$type": "$b"}), ("$i", "$i")))  # fmt: skip
        within = {"before": ms(chooser.choice((0, 3, 100))), "after": ms(chooser.choice((0, 3, 100)))}
        kind = chooser.choice(("inner", "left", "right", "full"))
        both = {"$join": {"from": other, "leftKey": keys[0], "rightKey": keys[1], "within": within, "type": kind, "as": "r"}}  # fmt: skip
    return accepted({"pipeline": [source(types), *left, both, *after], "options": {"lateness": "split"}})


class Interpreted(Plainly):
    """A document over the splits of two sources, each row against each other."""

    def __init__(self, document: dict[str, Any], *sides: Sequence[Sequence[bytes]]) -> None:
        super().__init__()
        processor = parse(document)
        stages = cast("tuple[Any, ...]", processor.pipeline[1:])
        at = next(i for i, stage in enumerate(stages) if hasattr(stage, "from_") or hasattr(stage, "pipelines"))
        both, after = stages[at], stages[at + 1 :]
        other: Any = both.from_ if isinstance(both, Join) else both.pipelines[0]
        left = self.rows(sides[0], processor.source.schema, stages[:at])
        right = self.rows(sides[1], other[0].schema, other[1:])
        if isinstance(both, Join):
            for joined in self._joined(both, left, right):
                env = Environment(joined, now=Date(0))
                self._come(after, joined, env)
        else:
            for each, _, env in (*left, *right):
                self._come(after, each, env)

    def _come(self, after: Sequence[Stateless], document: Document, env: Environment) -> None:
        self.documents += [encode_value(each) for each, _ in self.passed(after, document, env)]

    def _joined(self, join: Join, left: list[Row], right: list[Row]) -> list[Document]:
        ones, others = self._keyed(join.left_key, left, DEPTH_MAX), self._keyed(join.right_key, right, DEPTH_MAX - 1)
        found: list[Document] = []
        met: set[int] = set()
        for one, key, time in ones:
            own = {name: value for name, value in one.items() if name != join.as_}
            pairs = [
                (other, id(other))
                for other, its, when in others
                if its == key and time - join.before_ms <= when <= time + join.after_ms
            ]
            found += [{**own, join.as_: other} for other, _ in pairs]
            met |= {number for _, number in pairs}
            if not pairs and join.type in ("left", "full"):
                found.append({**own, join.as_: None})
        if join.type in ("right", "full"):
            found += [{join.as_: other} for other, _, _ in others if id(other) not in met]
        return found

    def _keyed(self, expr: Expr, rows: list[Row], most: int) -> list[tuple[Document, bytes, int]]:
        found = []
        for document, order, env in rows:
            try:
                key = evaluate_bounded(expr, env.on(document))
                if is_deeper(document, most):
                    raise too_deep()
            except ExpressionError as error:
                self.letter(document, error.reason)
                continue
            found.append((document, canonical_key(None if key is MISSING else key), order[0]))
        return found


@given(st.integers(0, 2**64))
@settings(max_examples=150)
def test_two_streams_give_what_their_records_give_one_by_one(seed: int) -> None:
    """Byte for byte, keys of any types and equal times among them; and the same dead letters."""
    chooser = random.Random(seed)
    types = chooser.choice(({}, {}, {"a": "int?"}, {"a": "string?", "k": "date?"}))
    document = None
    while document is None:
        document = drawn(chooser, types)
    odd = chooser.choice((0.02, 0.1, 0.3))
    sides = [records_of(chooser, Records(chooser, odd, types)) for _ in range(2)]
    assert played(chooser, document, *sides) == Interpreted(document, *sides).told()
