"""Figures in words, as the console shows them. None is a dash."""

from typing import Final

NONE: Final = "–"
_KIB: Final = 1024


def number(value: float | None) -> str:
    """With separators; large rates without their fraction."""
    if value is None:
        return NONE
    whole = abs(value) >= 100 or value == int(value)  # noqa: PLR2004 - three digits
    return f"{value:,.0f}" if whole else f"{value:,.1f}"


def rate(value: float | None) -> str:
    """Rows a second."""
    return NONE if value is None else f"{number(value)}/s"


def share(value: float | None) -> str:
    """A fraction."""
    return NONE if value is None else f"{100 * value:.0f} %"


def span(ms: float | None) -> str:
    """A time span, of milliseconds."""
    if ms is None:
        return NONE
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= unit:
            return f"{ms / unit:,.1f} {name}"
    return f"{ms:.0f} ms"


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return NONE
    for name in ("B", "KiB", "MiB", "GiB"):
        if count < _KIB or name == "GiB":
            return f"{count:,.0f} B" if name == "B" else f"{count:,.1f} {name}"
        count /= _KIB
    return NONE


def moment(time: str | None) -> str:
    """An instant of REST, without the letter between date and time."""
    return NONE if time is None else time.replace("T", " ").removesuffix("Z")
