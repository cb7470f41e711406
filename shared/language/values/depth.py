"""How deep documents nest (D21): behind every stage no deeper than they are read."""

from typing import Final

DEPTH_MAX: Final = 180
"""Arrays and objects in each other, the document among them: less than half of what the codec and Python's own stack have room for."""


def is_deeper(value: object, most: int) -> bool:
    """Whether more than so many arrays and objects lie in each other."""
    level = [value] if type(value) is dict or type(value) is list else []
    while level and most > 0:
        most -= 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
    return bool(level)
