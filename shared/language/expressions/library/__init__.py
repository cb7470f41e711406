"""The operators: importing this package declares them all. Take OPERATORS from here, where it is complete."""

from tidemark.shared.language.expressions.library import arithmetic, arrays, convert, dates, logic, strings
from tidemark.shared.language.expressions.registry import OPERATORS

MODULES = (arithmetic, arrays, convert, dates, logic, strings)
__all__ = ["MODULES", "OPERATORS"]
