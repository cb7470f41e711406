"""Plug-ins for Tidemark: documents on the shelves of a SQLite file, and as labels; and keys at rest."""

from tidemark_shelf.labels import Labels
from tidemark_shelf.lookup import ShelfLookup
from tidemark_shelf.quiet import Quiet
from tidemark_shelf.sink import ShelfSink
from tidemark_shelf.source import ShelfSource

__all__ = ["Labels", "Quiet", "ShelfLookup", "ShelfSink", "ShelfSource"]
