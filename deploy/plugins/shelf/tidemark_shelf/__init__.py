"""Plug-ins for Tidemark: documents on the shelves of a SQLite file."""

from tidemark_shelf.sink import ShelfSink
from tidemark_shelf.source import ShelfSource

__all__ = ["ShelfSink", "ShelfSource"]
