"""`$union`."""

from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.kinds import Option, list_of, made_of
from tidemark.shared.language.schema import NO_SCHEMA, Schema, shared_fields
from tidemark.shared.language.stages.base import Stage, declared
from tidemark.shared.language.stages.pipeline import PIPELINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Union(Stage):
    """`$union`: pipelines that each start with a source, merged with this one."""

    pipelines: tuple[tuple[Stage, ...], ...]

    def declared(self, schema: Schema) -> Schema:
        """The fields that all of them declare with one type."""
        return shared_fields([schema, *(declared(NO_SCHEMA, pipeline) for pipeline in self.pipelines)])


SPEC: Final = made_of(
    "Other streams flow into this one.",
    (Option("pipelines", list_of(PIPELINE), "each starts with $source", required=True),),
    Union,
)
