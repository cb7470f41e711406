"""Slips of YAML's own: why a text is none, in its author's words; and what is some, and hardly meant."""

import re
import unicodedata
from typing import Any, Final

_TRUTHS: Final = {
    **{word: "true" for yes in ("yes", "on") for word in (yes, yes.title(), yes.upper())},
    **{word: "false" for no in ("no", "off") for word in (no, no.title(), no.upper())},
}
"""The words that YAML 1.1 takes for truth values, without the single letters."""
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")
_NUMBER: Final = re.compile(
    r"[-+]?(0b[01_]+|[0-9][0-9_]*(:[0-5]?[0-9])+|[0-9]+(_[0-9]+)+(\.[0-9_]*)?|[0-9]{1,3}(,[0-9]{3})+)"
)
"""Numbers of YAML 1.1, and of people, that YAML 1.2 has not: 0b11, 1:30, 1_000, 1,000."""
_NO_NUMBER: Final = re.compile(r"[-+]?(nan|inf|infinity)", re.IGNORECASE)
_UNSEEN: Final = re.compile("[\u00a0\u00ad\u1680\u2000-\u200b\u200e\u200f\u202f\u205f\u2060\u3000\ufeff]")
"""Blanks that YAML takes for letters, and characters that nobody sees; joiners, which some scripts need, are none of them."""
_QUOTES: Final = "“”„‟‘’‚«»"  # noqa: RUF001 - it looks for what looks alike
_DASHES: Final = "–—−•*·"
_UNQUOTED: Final = "@`%"


def doubt_of(text: str, *, name: bool, secret: bool) -> str:
    """Why a text without quotes is hardly what its author means; "" if nothing is odd.

    name: it is a field's. secret: it may be a password, and is not shown.
    """
    shown = "the text" if secret else text
    unseen = _UNSEEN.search(text)
    if unseen is not None:
        return f"{_named(unseen[0])} stands in {shown!r}, and is part of it: write a blank, or quotes if it is meant"
    if not text:
        return ""
    if text[0] in _QUOTES or text[-1] in _QUOTES:
        return f"{shown}: such quotes are part of the text: write \"…\" or '…'"
    if text[-1] in "'\"" and text.count(text[-1]) == 1:
        return f"{shown} ends with a quote that does not begin: it is part of the text"
    if name:
        bracket = next((each for each in text if each in "{}[]"), "")
        if bracket:
            return f"the name {text} has {bracket} in it: a colon is missing in front, or quotes"
        return f"the name {text} ends with a colon: one is enough" if text.endswith(":") else ""
    return _other_value(text, shown)


def _other_value(text: str, shown: str) -> str:
    if text in _TRUTHS:
        return f"{text} is a text here, as in YAML 1.2: write {_TRUTHS[text]}, or '{text}' in quotes"
    if text[-1] in ",;":
        return f"{shown} ends with {text[-1]!r}, which is part of the text: take it away, or write quotes"
    if (text[-1] == "}" and "{" not in text) or (text[-1] == "]" and "[" not in text):
        return f"{shown} ends with {text[-1]!r}, which is part of the text, for none begins before: take it away, or write quotes"
    if _DATE.fullmatch(text):
        return f"{shown} is a text here, as in YAML 1.2: write {{$date: '{shown}'}} for an instant, or quotes"
    if _NUMBER.fullmatch(text):
        return f"{shown} is a text here, and no number: write its digits alone, or quotes"
    if _NO_NUMBER.fullmatch(text):
        return f"{shown} is a text here: write .nan or .inf for the number, or quotes"
    return ""


def doubt_of_nothing(name: str) -> str:
    """Why a field is hardly meant that has no value at all, not even null."""
    for sign in (":", "：", ";", "="):  # noqa: RUF001 - it looks for what looks alike
        before, found, behind = name.partition(sign)
        if found and before and behind:
            return f"{name} is a name without a value, which is null: is {before.strip()}: {behind.strip()} meant?"
    before, blank, behind = name.partition(" ")
    if blank:
        return f"{name} is a name without a value, which is null: is {before}: {behind.strip()} meant?"
    return f"{name} has no value, which is null: write null if it is meant"


def unreadable(text: str, error: Any) -> tuple[str, int | None]:
    """What the parser has found where it stopped, what it expected, and what to do; and the line."""
    character = getattr(error, "character", None)
    if character is not None:
        sign = chr(character) if isinstance(character, int) else str(character)
        return f"not YAML: {_named(sign)} is not allowed", text.count("\n", 0, text.find(sign)) + 1
    mark, problem = error.problem_mark, error.problem or error.context or "unreadable"
    if mark is None:
        return f"not YAML: {problem}", None
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    rest = line[mark.column :].strip()
    # One character: what stands there may be a password.
    found = f"{rest[0]!r}" if rest else "the end of the line" if mark.line < len(lines) else "the end of the text"
    begun = error.context_mark
    within = (
        f" {error.context} that begins in line {begun.line + 1}"
        if begun is not None and begun.line != mark.line
        else ""
    )
    before = next((each for each in reversed(lines[: mark.line]) if each.strip()), "")
    return (
        f"not YAML: {problem}{within}, at {found} in column {mark.column + 1}{_hint(problem, line, rest, before)}",
        mark.line + 1,
    )


def _hint(problem: str, line: str, rest: str, before: str) -> str:
    """What people do most often that ends so."""
    indent = line[: len(line) - len(line.lstrip())]
    unseen = _UNSEEN.search(line) or _UNSEEN.search(before)
    if "\t" in indent:
        return ": a tab cannot indent, write blanks"
    if unseen is not None:
        return f": {_named(unseen[0])} stands there, write a blank"
    if "another document" in problem or "document start" in problem:
        return ": a file has one document, take away what stands behind --- or ..."
    if line.lstrip()[:1] in _DASHES:
        return ": an item begins with - and a blank"
    if re.match(r"-[^\s-]", line.lstrip()):
        return ": a blank belongs behind the -"
    if any(sign in _QUOTES for sign in line):
        return ": quotes are \" or '"
    if rest[:1] in _UNQUOTED and "token" in problem:
        return f": a text that begins with {rest[0]} needs quotes"
    if "mapping values" in problem:
        return ": a text with a colon and a blank needs quotes; else a line's indentation, or a colon in the line before, is wrong"
    if "expected ',' or" in problem:
        return ": a comma, a bracket or a quote is missing before it"
    if "expected key" in problem or "indicator" in problem or "could not find expected ':'" in problem:
        return ": it stands in as many blanks as nothing around it, or a colon or a bracket is missing in front of it"
    return ""


def _named(sign: str) -> str:
    """A character that is not seen."""
    return f"U+{ord(sign):04X} ({unicodedata.name(sign, 'a control character')})"
