"""What holds for each page and each answer of the console, whatever an installation holds and whoever looks."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.harness.visits.pages import Element, Page
from tidemark.services.control.routes import ROUTES, Route
from tidemark.shared.process.users import User
from tidemark.shared.process.web import Problem, allow

PAGE_BYTES_MAX: Final = 2 << 20
"""Of a page, whatever stands in records, letters and log lines; it is laid out anew once a second."""
SAYING: Final = (503, 504)
"""Answers of 5xx that may be: they say what is away."""
_TAGS: Final = frozenset(
    re.findall(
        r"\w+",
        "html head meta title link script noscript body header main nav ul ol li a strong span h1 h2 p div details"
        " summary table caption thead tbody tr th td dl dt dd form label select option input textarea button pre svg g"
        " defs marker path rect text figure figcaption",
    )
)
"""All that the console's pages are made of: another one came out of what they show."""
_SHOWN: Final = 100
"""Characters of a text that a page shows surely, wherever it cuts the text."""


def route_of(method: str, path: str) -> tuple[Route, str | None] | None:
    """The route of a request, and the name in its path."""
    for route in ROUTES:
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path)
        found = re.fullmatch(pattern, path)
        if found and route.method == method:
            return route, found.groupdict().get("name")
    return None


def may(user: User, method: str, path: str) -> bool:
    """Whether the table of routes lets the user ask this."""
    found = route_of(method, path)
    if found is None:
        return False
    try:
        allow(user, found[0].rule(found[1]))
    except Problem:
        return False
    return True


def of_answer(status: int, kind: str, text: str) -> Iterator[str]:
    """What is wrong with an answer of REST."""
    if status >= 500 and status not in SAYING:
        yield f"answers {status}: {text[:200]}"
    if status >= 400 and kind == "application/json":
        error = json.loads(text).get("error", {})
        yield from (
            f"answers {status} without {key}" for key in ("place", "expectation", "finding") if not error.get(key)
        )


def of_page(page: Page, status: int, kind: str, user: User) -> Iterator[str]:
    """What is wrong with a page."""
    if kind != "text/html":
        yield f"answers {status} as {kind}, not as a page: {page.source[:200]}"
        return
    if status >= 500 and status not in SAYING:
        yield f"answers {status}"
    if len(page.source.encode()) > PAGE_BYTES_MAX:
        yield f"has {len(page.source.encode()):,} bytes"
    yield from page.troubles
    root = page.root
    for element in root:
        yield from _of_element(element)
    ids = [each.attributes["id"] for each in root if "id" in each.attributes]
    yield from (f"has the id {each} twice" for each in sorted({i for i in ids if ids.count(i) > 1}))
    if not root.all("h1") or root.one("id", "main") is None:
        yield "has no heading or no main part"
    if status >= 400 and not any("expected" in e.text for e in root if "trouble" in e.attributes.get("class", "")):
        yield f"answers {status} and says no expectation"
    yield from _unlabelled(root)
    for button in page.buttons:
        path, method = button.attributes["data-path"], button.attributes["data-method"]
        if path != "/console/logout" and not may(user, method, path):
            yield f"shows {user.role} a button for {method} {path}"


def _of_element(element: Element) -> Iterator[str]:
    if element.name and element.name not in _TAGS:
        yield f"has an element <{element.name}>"
    if element.name == "script" and (element.text or not element.attributes.get("src", "").startswith("/console/")):
        yield "has a script of its own"
    for name, value in element.attributes.items():
        if name.startswith("on") or name == "style" or value == "injected":
            yield f"has {name}={value!r} at <{element.name}>"
        if name in ("href", "src", "action") and not re.match(r"/(?!/)|#|data:,$|\?", value):
            yield f"leads to {value!r}"


def _unlabelled(root: Element) -> Iterator[str]:
    labelled = {e.attributes["for"] for e in root.all("label") if "for" in e.attributes}
    inside = {id(e) for label in root.all("label") for e in label}
    for each in (e for name in ("input", "select", "textarea") for e in root.all(name)):
        if id(each) not in inside and each.attributes.get("id") not in labelled:
            yield f"has a {each.name} without a label"


# --- agreement with REST ----------------------------------------------------------------------------------------------------

Told = Iterator[str]


def _plain(text: object) -> str:
    return " ".join(str(text).split())[:_SHOWN].strip()


def _processors(found: Any) -> Told:
    for each in found["processors"]:
        yield from (
            each["name"],
            each["state"],
            each["reason"],
            f"{each['epoch']:,} ({each['releasedEpoch']:,} released)",
        )


def _processor(found: Any) -> Told:
    yield from (found["state"], found["reason"], f"{found['epoch']:,}, {found['releasedEpoch']:,} released")
    for task in found["tasks"]:
        counts = (task[key] for key in ("inputMessageCount", "outputMessageCount"))
        yield from (f"{task['vertex']}/{task['index']}", *("–" if each is None else f"{each:,}" for each in counts))


def _stats(found: Any) -> Told:
    stats = found["stats"]
    for key in ("inputMessageCount", "outputMessageCount", "dlqMessageCount"):
        yield "–" if stats[key] is None else f"{stats[key]:,}"
    yield from (stats["diagnosis"], *((stats["watermark"] or "–").removesuffix("Z").split("T")))


def _plan(found: Any) -> Told:
    for vertex in found["vertices"]:
        yield from (vertex["name"], *vertex["operators"], *vertex["waits"])
    yield from (edge["text"] for edge in found["edges"])


def _letters(found: Any) -> Told:
    yield from (f"{code} ({count})" for code, count in found["codes"].items())
    for letter in found["letters"]:
        info = letter.get("errInfo")
        if isinstance(info, dict) and isinstance(info.get("reason"), str):
            yield info["reason"]


def _lines(found: Any) -> Told:
    yield from (line["event"] for line in found["lines"] if isinstance(line.get("event"), str))


def _kept(found: Any) -> Told:
    yield from (each["name"] for each in found["kept"])
    yield from (each["state"] for each in found["checkpoints"])


def _watermark(found: Any) -> Told:
    told = found["watermark"]
    yield told["summary"] or ""
    yield from (step["why"] for step in told["steps"])


def _connections(found: Any) -> Told:
    yield from found["connections"]


def _workers(found: Any) -> Told:
    for each in found["workers"]:
        yield from (each["place"], f"{each['host']}, {each['pid']}", *each["tasks"])


REST: Final[dict[str, tuple[tuple[str, Callable[[Any], Told]], ...]]] = {
    "/": (("/v1/processors", _processors),),
    "/console/processors/{name}": (("", _processor), ("/stats", _stats), ("/plan", _plan)),
    "/console/processors/{name}/checkpoints": (("/checkpoints", _kept),),
    "/console/processors/{name}/time": (("/watermark", _watermark),),
    "/console/processors/{name}/dead-letters": (("/dead-letters", _letters),),
    "/console/processors/{name}/logs": (("/logs", _lines),),
    "/console/connections": (("/v1/connections", _connections),),
    "/console/workers": (("/v1/workers", _workers),),
}
"""By page: what REST answers to the same question, and the words that both must have."""


def missing(page: Page, told: Told) -> list[str]:
    """Of what REST tells, the words that the page has not."""
    shown = " ".join(page.root.text.split())
    return [each for text in told if (each := _plain(text)) and each not in shown]
