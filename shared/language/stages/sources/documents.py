"""`$source` of documents that stand in the text itself."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tidemark.shared.language.kinds import DOCUMENT, Option, list_of
from tidemark.shared.language.stages.sources.base import TIMING, SourceBase, SourceKind
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsSource(SourceBase):
    """The documents themselves, for tests: one split, bounded."""

    one_task: ClassVar[bool] = True
    documents: tuple[Document, ...]


_OPTIONS: Final = (Option("documents", list_of(DOCUMENT), "the documents", required=True), *TIMING)
KIND: Final = SourceKind(DocumentsSource, _OPTIONS)
