"""Elements of HTML and SVG as text: whatever is not markup already is escaped."""

from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias

Value: TypeAlias = str | float | bool | None


class Html(str):
    """Text that is markup already, and so is not escaped again."""

    __slots__ = ()


Child: TypeAlias = "str | float | Iterable[Child] | None"
_VOID: Final = frozenset({"meta", "link", "input"})


def tag(name: str, /, *children: Child, **attributes: Value) -> Html:
    """An element. An attribute's `_` is a hyphen, one at its end falls away; True is the bare name, False and None leave it out."""
    shown = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    return Html(f"<{name}{shown}>" if name in _VOID else f"<{name}{shown}>{_inner(children)}</{name}>")


def table(label: str, heads: Iterable[str], rows: Iterable[Iterable[Child]], empty: str = "None.") -> Html:
    """Rows below their heads; the first cell of a row is its head. It scrolls by itself where the screen is narrow."""
    body = [
        tag("tr", [tag("th", cell, scope="row") if i == 0 else tag("td", cell) for i, cell in enumerate(r)])
        for r in rows
    ]
    if not body:
        return tag("p", empty, class_="none")
    head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in heads]))
    inner = tag("table", tag("caption", label), head, tag("tbody", body))
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=label)


def pairs(items: Iterable[tuple[str, Child]]) -> Html:
    """A list of names and values."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in items])


def _attribute(name: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def _inner(child: Child) -> str:
    if isinstance(child, Html):
        return str(child)
    if child is None:
        return ""
    return escape(str(child)) if isinstance(child, str | int | float) else "".join(map(_inner, child))


NONE: Final = "–"
_KIB: Final = 1024


def number(value: float | None) -> str:
    """With separators; large rates without their fraction."""
    if value is None:
        return NONE
    if isinstance(value, int):  # beyond 2^53 a float is another number
        return f"{value:,}"
    whole = abs(value) >= 100 or value == int(value)  # noqa: PLR2004 - three digits
    return f"{value:,.0f}" if whole else f"{value:,.1f}"


def rate(value: float | None) -> str:
    """A rate, in rows a second."""
    return NONE if value is None else f"{number(value)}/s"


def share(value: float | None) -> str:
    """A fraction as percent."""
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
    """A number of bytes, in the unit that suits it."""
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
