"""Regular expressions in the linear-time engine (RE2): no pattern can take more than time linear in its input.

Options: `i` ignores case, `m` lets ^ and $ match at lines, `s` lets the dot match a line's end, `x` ignores blanks and comments in the
pattern, `u` is accepted (text is always Unicode). What RE2 leaves out (look-around, back references) is an error when the document is
read, or of the expression where the pattern comes out of data.
"""

from functools import lru_cache
from typing import Any, Final

import re2

OPTIONS: Final = frozenset("imsxu")
PATTERN_MAX_CHARS: Final = 10_000
"""A regular expression's text: part of the language."""
KEPT_DEFAULT: Final = 1_024


class BadPattern(ValueError):
    """A pattern or options that the engine does not take; the text says why."""


def compile_pattern(pattern: str, options: str = "") -> Any:
    """The engine's program for a pattern, kept for the next that asks; BadPattern if there is none."""
    return _kept.compile(pattern, options)


def keep_patterns(most: int) -> None:
    """How many programs the process keeps: those asked for longest ago are made anew. None of them changes what a pattern means."""
    _kept.compile = lru_cache(maxsize=most)(_compiled)


def _compiled(pattern: str, options: str) -> Any:
    if len(pattern) > PATTERN_MAX_CHARS:
        raise BadPattern(f"a regular expression has at most {PATTERN_MAX_CHARS} characters")
    unknown = set(options) - OPTIONS
    if unknown:
        raise BadPattern(
            f"unknown option {''.join(sorted(unknown))} of a regular expression; known are i, m, s, x and u"
        )
    if "\0" in pattern:
        raise BadPattern("a regular expression must not contain a null byte")
    text = _without_blanks(pattern) if "x" in options else pattern
    flags = "".join(letter for letter in "ims" if letter in options)
    settings = re2.Options()
    settings.log_errors = False
    try:
        return re2.compile(f"(?{flags}){text}" if flags else text, settings)
    except re2.error as e:
        why = e.args[0] if e.args else e
        why = why.decode(errors="replace") if isinstance(why, bytes) else why
        raise BadPattern(
            f"the regular expression {pattern[:60]!r} does not compile: {why} (the engine runs in linear time: no look-around, "
            "no back references)"
        ) from e


def _without_blanks(pattern: str) -> str:
    """A pattern of option `x` without its blanks and comments; those in classes and after a backslash stay."""
    kept: list[str] = []
    in_class = in_comment = False
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if in_comment:
            in_comment = char != "\n"
        elif char == "\\" and i + 1 < len(pattern):
            kept.append(pattern[i : i + 2])
            i += 1
        elif in_class or not (char.isspace() or char == "#"):
            in_class = (in_class or char == "[") and not (in_class and char == "]")
            kept.append(char)
        elif char == "#":
            in_comment = True
        i += 1
    return "".join(kept)


class _Kept:
    """The process' programs."""

    def __init__(self) -> None:
        self.compile = lru_cache(maxsize=KEPT_DEFAULT)(_compiled)


_kept: Final = _Kept()
