"""Documents over records drawn as text, played by their real operators in a drawn schedule, and what to compare that with."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from tests.harness.plan_world import PlanWorld
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.schema import Schema
from tidemark.shared.language.stages import Stateless
from tidemark.shared.language.stages.base import Failure, Passed, apply_stages
from tidemark.shared.language.values import encode_value, parse_json
from tidemark.shared.model.values import Date, Document, Value
from tidemark.shared.operators.decode import Bad, read_alone

Order = tuple[int, int, int]
"""Time (ms), split and position of a record."""
Row = tuple[Document, Order, Environment]
_TIMED: Final = b'{"ts":{"$date":{"$numberLong":"%d"}},"i":%d%s'


class Texts(Protocol):
    """What draws records."""

    def text(self) -> bytes:
        """The next one."""


def ms(size: int) -> dict[str, Any]:
    """A duration."""
    return {"size": size, "unit": "ms"}


def source(types: dict[str, str]) -> dict[str, Any]:
    """A source for which no record is late. types: the declared fields."""
    watermark = {"strategy": "boundedDisorder", "maxDelay": ms(1_000)}
    schema = {"schema": types} if types else {}
    return {"$source": {"connectionName": "c", "topic": "t", "timeField": "$ts", "watermark": watermark, **schema}}


def accepted(document: dict[str, Any]) -> dict[str, Any] | None:
    """The document; None if it would be refused."""
    try:
        parse(document)
    except InvalidDocument:
        return None
    return document


def records_of(chooser: random.Random, records: Texts) -> list[list[bytes]]:
    """Records of some splits, with their times in front."""
    splits = []
    for _ in range(chooser.choice((1, 1, 2, 3))):
        texts = [records.text() for _ in range(chooser.choice((1, 4, 12, 25)))]
        splits.append([
            _TIMED % (chooser.randint(0, 40), number, b"," * (text[1:2] != b"}") + text[1:]) if text.startswith(b"{") else text
            for number, text in enumerate(texts)
        ])  # fmt: skip
    return splits


def played(
    chooser: random.Random, document: dict[str, Any], *sides: list[list[bytes]]
) -> tuple[list[bytes], list[bytes]]:
    """(documents, dead letters), encoded and in an order of their own, in any schedule of frames, copies, restarts and numbers of tasks."""
    names = [f"source-{number + 1}" for number in range(len(sides))]
    world = PlanWorld(document, dict(zip(names, sides, strict=True)), {name: chooser.randint(1, 3) for name in names})
    for _ in range(chooser.choice((0, 5, 20, 40))):
        match chooser.randrange(8):
            case 0:
                world.epoch()
            case 1:
                world.restart(chooser.randint(0, 3))
            case 2 | 3:
                world.deliver(chooser.randint(0, 30), chooser.randint(1, 4))
            case _:
                world.feed(chooser.randrange(len(sides)), chooser.randrange(3), chooser.randint(1, 6))
    world.finish()
    letters: list[Any] = world.dead_letters()
    told = [
        encode_value([each["doc"] if type(each["doc"]) is dict else None, each["errInfo"]["reason"]])
        for each in letters
    ]
    return sorted(map(encode_value, world.documents())), sorted(told)


class Plainly:
    """What comes of records, one by one, by the interpreter."""

    def __init__(self) -> None:
        self.documents: list[bytes] = []
        self.letters: list[bytes] = []
        self._told: set[tuple[Order | None, bytes]] = set()

    def told(self) -> tuple[list[bytes], list[bytes]]:
        """As `played` tells it."""
        return sorted(self.documents), sorted(self.letters)

    def letter(self, document: Value, reason: str, of: Order | None = None) -> None:
        """A dead letter. of: the record, which has one for all that it is in."""
        found = encode_value([document, reason])
        if of is None or (of, found) not in self._told:
            self.letters.append(found)
        self._told.add((of, found))

    def passed(
        self, stages: Sequence[Stateless], document: Document, env: Environment, of: Order | None = None
    ) -> Iterator[Document]:
        """What stages make of a document."""
        for outcome in apply_stages(stages, document, env):
            if isinstance(outcome, Passed):
                yield from outcome.documents
            elif isinstance(outcome, Failure):
                self.letter(outcome.document, outcome.reason, of)

    def rows(self, splits: Sequence[Sequence[bytes]], schema: Schema, stages: Sequence[Stateless]) -> list[Row]:
        """The records of splits behind a source and some stages, in the order of D11."""
        rows: list[Row] = []
        for split, texts in enumerate(splits):
            for position, text in enumerate(texts):
                found = read_alone(text, schema)
                if isinstance(found, Bad):
                    self.letter(None if found.document is None else parse_json(found.document), found.cause.reason)
                    continue
                env = Environment(found, now=Date(0), meta={"source": {"partition": split}})
                time: Any = found["ts"]
                rows += [(each, (int(time), split, position), env) for each in self.passed(stages, found, env)]
        return sorted(rows, key=lambda row: row[1])
