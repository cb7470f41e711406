"""Stages that let documents through as they are, by a predicate: `$match`, `$validate`."""

from abc import abstractmethod
from dataclasses import dataclass

from tidemark.shared.language.fields import Fields, Path, predicate_paths
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.query.match import fields_used
from tidemark.shared.language.stages.base import Told, Untouched


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging(Untouched):
    """A stage that lets those documents through of which a predicate is true."""

    @property
    @abstractmethod
    def judged_by(self) -> Predicate:
        """The predicate that is true of the documents that go on."""

    def reads(self) -> Fields:
        """The fields that the predicate looks at."""
        return fields_used(self.judged_by)

    def paths(self) -> set[Path]:
        """The paths that the predicate looks at."""
        return predicate_paths(self.judged_by)

    def told(self) -> tuple[Told, ...]:
        """What `explain` tells: the predicate."""
        return (("predicate", self.judged_by),)
