"""Formats: the bytes of a topic's records as documents, and documents as bytes."""

from abc import ABC, abstractmethod

from tidemark.shared.model.values import Document
from tidemark.shared.plugins.base import C, NoConfig, Plugin


class Format(Plugin[C, NoConfig], ABC):
    """Derive from `Format[Config]`, and write `decode` and `encode`. A format is never opened: what it gives follows from what it is given.

    A record or document for which either raises anything becomes a dead letter, with what was raised as the reason.
    """

    @abstractmethod
    def decode(self, data: bytes) -> Document | bytes:
        """The document of a record, or its JSON in bytes. ValueError where the bytes are no record."""

    @abstractmethod
    def encode(self, document: Document) -> bytes:
        """The record of a document, always the same. ValueError where it has none."""
