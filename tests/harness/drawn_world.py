"""Documents over records drawn as text, played by their real operators in a drawn schedule, and what to compare that with."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from tests.harness.plan_world import PlanWorld
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.ast import OF_ENGINE
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.schema import Schema
from tidemark.shared.language.stages import SetStreamMeta, Stateless
from tidemark.shared.language.stages.base import Failure, Outcome, Passed
from tidemark.shared.language.values import encode_value, parse_json
from tidemark.shared.model.values import Date, Document, Value, long
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


def source(types: dict[str, str], delay_ms: int = 1_000) -> dict[str, Any]:
    """A source; no record is late behind its longest delay. types: the declared fields."""
    watermark = {"strategy": "boundedDisorder", "maxDelay": ms(delay_ms)}
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


def outcomes(
    stages: Sequence[Stateless], document: Document, env: Environment
) -> Iterator[tuple[Outcome, Environment]]:
    """A chain's outcomes for a document and failures on the way, each with what is told of it there (D17)."""
    if not stages:
        yield Passed((document,)), env
        return
    outcome = stages[0].apply(document, env)
    if not isinstance(outcome, Passed):
        yield outcome, env
        return
    if isinstance(stages[0], SetStreamMeta):
        env = telling(env, stages[0].metadata_of(env.on(document)))
    for each in outcome.documents:
        yield from outcomes(stages[1:], each, env)


def telling(env: Environment, told: Document) -> Environment:
    """The same beside other metadata of the document's; the engine's stays."""
    engine = {name: value for name, value in env.meta.items() if name in OF_ENGINE}
    return Environment(env.root, now=env.now, meta={**told, **engine}, identity=env.identity)


class Plainly:
    """What comes of records, one by one, by the interpreter."""

    def __init__(self) -> None:
        self.documents: list[bytes] = []
        self.letters: list[bytes] = []
        self.highest: dict[Order, int] = {}
        """The highest time (ms) of a record's split before it; none before the first."""

    def told(self) -> tuple[list[bytes], list[bytes]]:
        """As `played` tells it."""
        return sorted(self.documents), sorted(self.letters)

    def letter(self, document: Value, reason: str) -> None:
        """A dead letter."""
        self.letters.append(encode_value([document, reason]))

    def passed(
        self, stages: Sequence[Stateless], document: Document, env: Environment, *, tells: bool = True
    ) -> Iterator[tuple[Document, Environment]]:
        """What stages make of a document, and what is told of it. tells: of its failures, too."""
        for outcome, here in outcomes(stages, document, env):
            if isinstance(outcome, Passed):
                yield from ((each, here) for each in outcome.documents)
            elif isinstance(outcome, Failure) and tells:
                self.letter(outcome.document, outcome.reason)

    def rows(self, splits: Sequence[Sequence[bytes]], schema: Schema, stages: Sequence[Stateless]) -> list[Row]:
        """The records of splits behind a source and some stages, in the order of D11."""
        rows: list[Row] = []
        for split, texts in enumerate(splits):
            highest: list[int] = []
            for position, text in enumerate(texts):
                found = read_alone(text, schema)
                if isinstance(found, Bad):
                    self.letter(None if found.document is None else parse_json(found.document), found.cause.reason)
                    continue
                time: Any = found["ts"]
                place = {"topic": "events", "partition": split, "offset": long(position), "ts": time}
                env = Environment(found, now=Date(0), meta={"source": place})
                order = (int(time), split, position)
                if highest:
                    self.highest[order] = max(highest)
                highest.append(int(time))
                rows += [(each, order, here) for each, here in self.passed(stages, found, env)]
        return sorted(rows, key=lambda row: row[1])
