"""Rows that a topic refused by rules that people change: its size limit, its compaction, whether it was there (S6).

An audit knows the rules of now alone. Which rows a topic refused then is told by dead letters: such a row is in the queue and not in the
topic, and any other row in the topic. Where not all letters are there, those of now count besides.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidemark.services.audit.expected import PLAIN, ExpectedOutput, Line, line_of
from tidemark.services.audit.history import Commit
from tidemark.services.audit.outputs import Output
from tidemark.services.audit.recompute import Refused
from tidemark.services.sink.connectors.kafkatopics import OF_TOPICS
from tidemark.shared.language.documents import Processor
from tidemark.shared.model.ids import VertexId
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import AGAIN
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import WOULD_REFUSE, RowFailure, dead_letters
from tidemark.shared.planning import DeadLetterHead, plan_processor
from tidemark.shared.ports.sink import Rejected


@dataclass(slots=True)
class Refusals:
    """What letters tell; each of them stands for one row of a run."""

    text: Callable[[Document], str]
    """Of a letter, as it is in the queue."""
    all_told: bool
    """No letter is missing."""
    told: dict[Line, list[str]] = field(default_factory=dict)
    """The reasons of letters that are alike but for reason and time."""

    def fresh(self) -> Refused:
        """For one run."""
        told = {line: list(reasons) for line, reasons in self.told.items()}
        return Refusals(self.text, self.all_told, told).rejected

    def rejected(
        self, now: Sequence[Rejected], batch: pa.RecordBatch, operator: str, context: TaskContext
    ) -> Sequence[Rejected]:
        """The rows that were refused. now: by the rules of now. operator: the sink's name in letters."""
        of_topics = {each.row: each for each in now if each.reason.startswith(OF_TOPICS)}
        if not batch.num_rows or not (self.told or (of_topics and self.all_told)):
            return now
        found = [each for each in now if each.row not in of_topics]
        others = {each.row for each in found}
        for row, line in self._lines(batch, operator, context):
            if row in others:
                continue
            if reasons := self.told.get(line):
                found.append(Rejected(row, reasons.pop()))
            elif row in of_topics and not self.all_told:
                found.append(of_topics[row])
        return sorted(found, key=lambda each: each.row)

    def _lines(self, batch: pa.RecordBatch, operator: str, context: TaskContext) -> Iterator[tuple[int, Line]]:
        """What the letter of each row would be."""
        rows = np.arange(batch.num_rows)
        if AGAIN in batch.schema.names:  # it has had its letter
            rows = rows[~batch.column(AGAIN).fill_null(False).to_numpy(zero_copy_only=False)]
        failures = [RowFailure(row, "", WOULD_REFUSE) for row in rows.tolist()]
        for out in dead_letters(batch, failures, operator, context):
            for row, letter in zip(rows.tolist(), documents_of(out.batch), strict=True):
                yield row, _alike(json.loads(self.text(letter)))


_NO_REASON: Final = {"reason": "", "code": WOULD_REFUSE}


def _alike(letter: dict[str, Any]) -> Line:
    """Without reason and time."""
    return line_of({**letter, "errInfo": {**letter["errInfo"], **_NO_REASON}, "dlqTime": None})


def told_refusals(
    processor: Processor,
    outputs: Mapping[VertexId, Output],
    commits: Sequence[Commit],
    expected: Mapping[VertexId, ExpectedOutput],
) -> Refusals | None:
    """By the letters in the queue; None: there is none that is read here, or its letters have another form than JSON."""
    for vertex in plan_processor(processor, engine="local").vertices:
        queue = outputs.get(vertex.id)
        if not isinstance(vertex.head, DeadLetterHead) or queue is None:
            continue
        partly = queue.gone or queue.untold or queue.owed.rows or queue.mixed
        complete = not partly and all(queue.complete(commit, vertex.id) for commit in commits)
        told: dict[Line, list[str]] = defaultdict(list)
        try:
            for letter in _letters(queue):
                reason = letter["errInfo"]["reason"]
                if letter["errInfo"].get("code") == WOULD_REFUSE and reason.startswith(OF_TOPICS):
                    told[_alike(letter)].append(reason)
        except (ValueError, TypeError, KeyError, AttributeError):  # they have another form, or somebody changed one
            return None
        return Refusals(expected.get(vertex.id, PLAIN).text, complete, dict(told))
    return None


def _letters(queue: Output) -> Iterable[dict[str, Any]]:
    for texts in (*queue.texts.values(), queue.large):
        for text, _ in texts:
            yield json.loads(text)
