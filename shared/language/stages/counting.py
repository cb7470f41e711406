"""The demand of a `$createUUID` anywhere in a document on stages in front of it: rows of one record, and of several streams, differ."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from tidemark.shared.language.expressions.ast import CreateUuid
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.stages.base import Outcome, Passed, Stage, Untouched
from tidemark.shared.language.stages.join import Join
from tidemark.shared.language.stages.union import Union
from tidemark.shared.language.stages.unwind import Unwind
from tidemark.shared.language.stages.windows import nodes_in
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked(Untouched):
    """The last stage of a pipeline of `$union`: ids of its records are others than those of the streams that it flows into."""

    stream: int
    """Which of the union's pipelines it is, from 0."""

    @property
    def mark(self) -> bytes:
        """16 bytes, of the stage's place in the document."""
        return sha256(f"{self.path}\0{self.stream}".encode()).digest()[:16]

    def _apply(self, document: Document, env: Environment) -> Outcome:
        del env
        return Passed((document,))

    def reads(self) -> Fields:
        """It reads no field."""
        return frozenset()


def counted(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages. Where an id is made anywhere, each `$unwind` counts a record's items, and streams that flow together are marked."""
    if not any(isinstance(node, CreateUuid) for node in nodes_in(tuple(stages))):
        return tuple(stages)
    return tuple(map(_counted, stages))


def _counted(stage: Stage) -> Stage:
    match stage:
        case Unwind():
            return replace(stage, counted=True)
        case Union():
            inner = (
                (*map(_counted, each), Marked(path=stage.path, stream=number))
                for number, each in enumerate(stage.pipelines)
            )
            return replace(stage, pipelines=tuple(inner))
        case Join():
            return replace(stage, from_=tuple(map(_counted, stage.from_)))
        case _:
            return stage
