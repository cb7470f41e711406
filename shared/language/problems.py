"""Errors in the user's document: all of them at once, each with its place, the expectation and the finding."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.shared.model.failures import Lasting

ERRORS_MAX = 100
"""After so many errors the rest is not looked at: a document that is wrong throughout need not be listed throughout."""


@dataclass(frozen=True, slots=True)
class DocumentError:
    """One error. `path` is the place, such as `pipeline[2].$tumblingWindow.interval.unit`; `line` counts from 1, where YAML gave one."""

    path: str
    message: str
    line: int | None = None
    accepted: tuple[str, ...] = ()
    nearest: str | None = None

    def __str__(self) -> str:
        """One line: place, line, error, the accepted values, the nearest name."""
        line = "" if self.line is None else f"line {self.line}"
        place = f"{self.path} ({line})" if self.path and line else self.path or line
        text = f"{place}: {self.message}" if place else self.message
        if self.nearest is not None:
            text += f"; did you mean {self.nearest}?"
        if self.accepted:
            text += f"{'' if text.endswith(('?', '.')) else '.'} Accepted: {', '.join(self.accepted)}."
        return text


class InvalidDocument(ValueError, Lasting):
    """A document with errors, or with `${…}` that its reader's environment lacks; `errors` has them all."""

    def __init__(self, errors: Sequence[DocumentError]) -> None:
        super().__init__("\n".join(str(e) for e in errors))
        self.errors = tuple(errors)


@dataclass(slots=True)
class Problems:
    """Collects errors while a document is read. `lines` maps document paths to lines."""

    lines: Mapping[str, int] = field(default_factory=dict)
    errors: list[DocumentError] = field(default_factory=list)
    warnings: list[DocumentError] = field(default_factory=list)
    """Parts of a document that are valid, but hardly meant."""

    def warn(self, path: str, message: str) -> None:
        """Note a part that is no error, but does not do what it seems to."""
        if len(self.warnings) < ERRORS_MAX:
            self.warnings.append(DocumentError(path, message, self.line_of(path)))

    def add(self, path: str, message: str, *, accepted: Iterable[str] = (), found: str | None = None) -> None:
        """Note an error; with `found`, the nearest of the accepted names is suggested."""
        if len(self.errors) >= ERRORS_MAX:
            return
        names = tuple(accepted)
        nearest = None if found is None else meant_by(found, names) or nearest_of(found, names)
        shown = names if len(names) <= _SHOWN_MAX or nearest is None else ()
        self.errors.append(DocumentError(path, message, self.line_of(path), shown, nearest))

    def line_of(self, path: str) -> int | None:
        """The line of a place, or of the nearest place around it that has one."""
        while path and path not in self.lines:
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return self.lines.get(path)

    def check(self) -> None:
        """Raise InvalidDocument if there were errors."""
        if self.errors:
            raise InvalidDocument(self.errors)


_SHOWN_MAX = 40
"""Names that an error lists: for readers."""
_NAME_MAX_CHARS = 100
"""A name within an error: for readers."""
_STEM_CHARS = 3
"""The length of the common beginning by which two names are near: for readers."""
_ALIKE, _VERY_ALIKE = 0.66, 0.8
_MEANT: Final[Mapping[str, str]] = {
    "$total": "$sum", "$add": "$sum", "$mean": "$avg", "$average": "$avg", "$len": "$size", "$length": "$size", "$collect": "$push",
    "$list": "$push", "$distinct": "$addToSet", "$unique": "$addToSet", "$lower": "$toLower", "$upper": "$toUpper", "$if": "$cond",
    "$case": "$switch", "$coalesce": "$ifNull", "$equals": "$eq", "$equal": "$eq", "$str": "$toString", "$float": "$toDouble",
    "$number": "$toDouble", "$date": "$toDate", "$replace": "$replaceAll", "$substring": "$substrCP", "$filterBy": "$filter",
    "$exists": "$ifNull", "$remove": "$unset", "$drop": "$unset", "$rename": "$project", "$select": "$project", "$where": "$match",
    "$filter": "$match", "$groupBy": "$group", "$window": "$tumblingWindow", "$tumble": "$tumblingWindow", "$hop": "$hoppingWindow",
    "$slidingWindow": "$hoppingWindow", "$sink": "$emit", "$output": "$emit", "$write": "$emit", "$into": "$merge",
}  # fmt: skip
"""Names of other languages, and their names here; looked at where the second is accepted and the first is not."""


def meant_by(found: str, names: Sequence[str]) -> str | None:
    """The accepted name for a name of other languages."""
    name = _MEANT.get(found)
    return name if name in names else None


def nearest_of(found: str, names: Sequence[str]) -> str | None:
    """The name that is most like the one found, in any case; None if none is."""
    if len(found) > _NAME_MAX_CHARS:  # a look at each would take as long as the text is
        return None
    close = difflib.get_close_matches(found, names, n=1, cutoff=_ALIKE)
    if not close or difflib.SequenceMatcher(None, found, close[0]).ratio() < _VERY_ALIKE:
        # `integer` is meant to be `int`, though more letters are those of `dbPointer`.
        begun = [name for name in names if len(name) >= _STEM_CHARS and found.lower().startswith(name.lower())]
        close = sorted(begun, key=len)[-1:] or close
    if not close:
        lower = {name.lower(): name for name in names}
        close = [lower[c] for c in difflib.get_close_matches(found.lower(), lower, n=1, cutoff=_ALIKE)]
    return close[0] if close else None


def join(path: str, name: str) -> str:
    """The path of a field inside a place."""
    return f"{path}.{name}" if path else name
