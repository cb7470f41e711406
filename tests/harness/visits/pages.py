"""A page as a person finds it: its elements, and what one can follow, fill in and press."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

VOID: Final = frozenset({"meta", "link", "input"})


@dataclass
class Element:
    """One, with what is in it."""

    name: str
    attributes: dict[str, str]
    children: "list[Element | str]" = field(default_factory=list)

    def __iter__(self) -> "Iterator[Element]":
        """Itself and all in it, in their order."""
        stack = [self]
        while stack:
            found = stack.pop()
            yield found
            stack += [each for each in reversed(found.children) if isinstance(each, Element)]

    def all(self, name: str) -> "list[Element]":
        """Those of a kind in it."""
        return [each for each in self if each.name == name]

    def one(self, key: str, value: str) -> "Element | None":
        """The first with this attribute."""
        return next((each for each in self if each.attributes.get(key) == value), None)

    @property
    def text(self) -> str:
        """All words in it."""
        return "".join(each if isinstance(each, str) else f"{each.text} " for each in self.children)


class Page(HTMLParser):
    """The elements of a page; `troubles`: where it is no tree."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = text
        self.root = Element("", {})
        self.troubles: list[str] = []
        self._open = [self.root]
        self.feed(text)
        self.close()
        if len(self._open) > 1:
            self.troubles.append(f"<{self._open[-1].name}> is not closed")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        found = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(found)
        if tag not in VOID:
            self._open.append(found)

    def handle_endtag(self, tag: str) -> None:
        """The last one ends."""
        if self._open[-1].name == tag:
            self._open.pop()
        else:
            self.troubles.append(f"</{tag}> in <{self._open[-1].name}>")

    def handle_data(self, data: str) -> None:
        """Words."""
        self._open[-1].children.append(data)

    @property
    def links(self) -> list[str]:
        """Addresses, without those of this page's parts."""
        return [a.attributes["href"] for a in self.root.all("a") if not a.attributes.get("href", "#").startswith("#")]

    @property
    def buttons(self) -> list[Element]:
        """Those that ask REST."""
        return [each for each in self.root.all("button") if "data-path" in each.attributes]

    def fields(self) -> dict[str, str]:
        """What stands in the fields that have an id."""
        areas = {e.attributes["id"]: e.text for e in self.root.all("textarea") if "id" in e.attributes}
        inputs = {
            e.attributes["id"]: e.attributes.get("value", "") for e in self.root.all("input") if "id" in e.attributes
        }
        return {**areas, **inputs}

    def choices(self) -> list[tuple[str, list[str]]]:
        """The fields of forms that lead to a page again: name, and values that can be chosen."""
        return [
            (select.attributes.get("name", ""), [o.attributes.get("value", "") for o in select.all("option")])
            for form in self.root.all("form")
            for select in form.all("select")
        ]
