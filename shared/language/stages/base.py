"""The base of every stage. A stage is one module of this package: its fields, how it is read, and what it does to documents.

Who adds a stage writes that module and gives it a line in the table (`table.py`). Documents are never changed in place; results may
share parts with them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import SIZE, ExpressionError
from tidemark.shared.language.fields import Fields, Path
from tidemark.shared.language.forms import PluginUse
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.schema import NO_SCHEMA, Schema
from tidemark.shared.language.values.depth import DEPTH_MAX, is_deeper
from tidemark.shared.model.values import Document, Value


@dataclass(frozen=True, slots=True)
class Passed:
    """The documents that go on; none where `$match` or `$unwind` let nothing through."""

    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class Discarded:
    """`$validate` with `discard`: nothing goes on, and nothing goes to the dead letters."""

    path: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The document, as it entered the stage, goes to the dead letters: `errInfo` is {reason, code, path}."""

    reason: str
    code: str
    path: str
    document: Document


@dataclass(frozen=True, slots=True)
class ValidationStop:
    """`$validate` with `error`: the processor stops with this."""

    reason: str
    path: str
    document: Document


@dataclass(frozen=True, slots=True)
class ConnectionNeed:
    """A connection that a document names: of which types it may be, and the place in the document."""

    connection: str
    types: tuple[str, ...]
    path: str
    plugin: str | None = None
    """The owner of the connection's secrets."""


Outcome: TypeAlias = Passed | Discarded | Failure | ValidationStop
Told: TypeAlias = tuple[str, Expr | Predicate | None]
"""Expressions that are evaluated for each row, each with its purpose; None for one that only the interpreter evaluates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage. `path` is its place in the document, e.g. `pipeline[2].$tumblingWindow`: in errors, dead letters and plans."""

    path: str

    @property
    def name(self) -> str:
        """The stage's operator, e.g. `$match`."""
        return self.path.rpartition(".")[2]

    def written(self, names: Fields) -> Fields:
        """The top-level fields that may come out, no others, where `names` come in; None where the text does not tell."""
        return None

    def declared(self, schema: Schema) -> Schema:
        """The declared fields behind the stage, where those of `schema` come in.

        A field stays declared while the stage cannot change its type; a computed field has a declared type only where it is another
        declared field under a new name. To forget a field is always right: it then travels untyped.
        """
        return NO_SCHEMA

    def needs(self) -> Iterable[ConnectionNeed]:
        """The connections that it names."""
        return ()

    def plugins(self) -> Iterable[PluginUse]:
        """The plug-ins that it names."""
        return ()

    def told(self) -> Iterable[Told]:
        """The expressions that `explain` tells of: by a kernel or interpreted."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassesOn(Stage):
    """A stage that changes no document."""

    def written(self, names: Fields) -> Fields:
        """The fields that came in."""
        return names

    def declared(self, schema: Schema) -> Schema:
        """The fields that came in."""
        return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Stage):
    """The further contract of a stage that may stand inside a window."""

    def reads(self) -> Fields:
        """The top-level fields that it looks at to do its work; fields that it passes on untouched are not among them."""
        return None

    def paths(self) -> set[Path]:
        """The paths that a source may read for it in the pass that decodes."""
        return set()

    @property
    def shows_others(self) -> bool:
        """Whether a source may read for the stages behind it, too: they see the records' fields that it does not name."""
        return False

    def named(self) -> frozenset[str]:
        """The top-level fields that it writes, keeps by name or takes away."""
        return frozenset()

    @property
    def is_sure(self) -> bool:
        """Whether it fails on no document, whatever that holds. False is always right."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stateless(Inner, ABC):
    """A stage that does its work on each document by itself."""

    def apply(self, document: Document, env: Environment) -> Outcome:
        """The outcome for a document; `env` gives time, metadata and variables, its own document is not looked at."""
        try:
            return self._apply(document, env.on(document))
        except ExpressionError as e:
            return Failure(e.reason, e.code, e.path or self.path, document)

    @abstractmethod
    def _apply(self, document: Document, env: Environment) -> Outcome:
        """The same, with the document in the environment. ExpressionError: the document fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched(PassesOn, Stateless):
    """A stage that lets documents through as they are, if at all."""

    @property
    def shows_others(self) -> bool:
        """True: all fields stay."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering(Inner, ABC):
    """A stage that looks at all documents of a window, or of a lookup's answer, together."""

    @abstractmethod
    def gather(self, documents: Sequence[Document], env: Environment) -> list[Document]:
        """The output for documents in their order. ExpressionError where an expression fails on one of them."""


def too_deep() -> ExpressionError:
    """A stage makes a document of more levels than documents have (D21)."""
    return ExpressionError(f"the document nests more than {DEPTH_MAX} deep", SIZE)


def within_depth(document: Document) -> Document:
    """A document that a stage has made of deep parts. ExpressionError where it nests too deep."""
    if is_deeper(document, DEPTH_MAX):
        raise too_deep()
    return document


InnerStage: TypeAlias = Stateless | Gathering
"""A stage that may stand inside a window."""


def apply_stages(stages: Sequence[Stateless], document: Document, env: Environment) -> Iterator[Outcome]:
    """A chain's outcomes for a document, and failures on the way; in order, one by one."""
    if not stages:
        yield Passed((document,))
        return
    outcome = stages[0].apply(document, env)
    if not isinstance(outcome, Passed):
        yield outcome
        return
    for item in outcome.documents:
        yield from apply_stages(stages[1:], item, env)


def written(stages: Iterable[Stage]) -> Fields:
    """The top-level fields that may come out of a pipeline, no others; None where its text does not tell."""
    names: Fields = None
    for stage in stages:
        names = stage.written(names)
    return names


def declared(schema: Schema, stages: Iterable[Stage]) -> Schema:
    """The declared fields behind stages."""
    for stage in stages:
        schema = stage.declared(schema)
    return schema


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection by name: its type and settings, `${NAME}` references not yet replaced (`documents.connections.resolve`)."""

    name: str
    type: Literal["kafka", "files", "sql", "mongodb", "gateway", "sample", "schemaRegistry", "https", "plugin"]
    settings: Mapping[str, Value] = field(default_factory=dict, repr=False)
