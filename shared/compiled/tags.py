"""The type of a cell in a column with rows that may differ in type."""

from typing import Final

MISSING: Final = 0
"""The document has no such field."""
NULL: Final = 1
BOOL: Final = 2
INT: Final = 3
LONG: Final = 4
DOUBLE: Final = 5
STRING: Final = 6
DATE: Final = 7
OBJECT: Final = 8
ARRAY: Final = 9
OTHER: Final = 10
"""Any other typed value: a decimal, an id, binary data, …"""
SPREAD: Final = 11
"""An array is on the way to the path: the path's value is made of its items."""
COUNT: Final = 12
"""How many tags there are."""
