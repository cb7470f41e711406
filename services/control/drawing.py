"""Drawings of the console, as SVG: a plan with its figures, and lines over time. Colours are the style sheet's."""

from collections.abc import Mapping, Sequence
from typing import Any

from tidemark.services.control.html import Html, rate, share, span, tag

WIDTH, HEIGHT, GAP_X, GAP_Y = 236, 84, 24, 40
BUSY, HELD = 0.8, 0.2
"""Fractions of the time from which a vertex is shown as busy, or as held back by receivers or commits."""
PLOT_WIDTH, PLOT_HEIGHT, LEFT, BELOW = 480, 240, 8, 24


def graph(vertices: Sequence[dict[str, Any]], edges: Sequence[dict[str, str]]) -> Html:
    """Data flow from top to bottom, dead letters to the right. The table of vertices has the figures, too, for readers of screens."""
    layers = _layers(vertices, edges)
    widest = max(map(len, layers), default=1)
    width, height = widest * (WIDTH + GAP_X) + GAP_X, len(layers) * (HEIGHT + GAP_Y)
    places = {
        name: (GAP_X / 2 + x * (WIDTH + GAP_X), GAP_Y / 2 + y * (HEIGHT + GAP_Y))
        for y, layer in enumerate(layers)
        for x, name in enumerate(layer)
    }
    queues = {vertex["name"] for vertex in vertices if vertex["isDeadLetterQueue"]}
    tip = tag("path", d="M0 0 8 4 0 8z")
    arrow = tag("marker", tip, id="arrow", markerWidth=8, markerHeight=8, refX=8, refY=4, orient="auto")
    lines = [_line(places[edge["from"]], places[edge["to"]], aside=edge["to"] in queues) for edge in edges]
    boxes = [_box(vertex, *places[vertex["name"]]) for vertex in vertices]
    label = f"Graph of {len(vertices)} vertices; the table below has its figures"
    box = f"0 0 {width} {height}"
    inner = (tag("defs", arrow), lines, boxes)
    drawn = tag("svg", inner, role="img", aria_label=label, viewBox=box, width=width, height=height)
    return tag("div", drawn, class_="scroll", tabindex=0, role="region", aria_label="Graph")


def state_of(vertex: dict[str, Any]) -> str:
    """A vertex' state: `waits` for something outside, `held back`, `busy`; else `calm`."""
    if vertex["waits"]:
        return "waits"
    if (vertex["heldBackFraction"] or 0) >= HELD:
        return "held back"
    return "busy" if (vertex["busyFraction"] or 0) >= BUSY else "calm"


def held_of(vertex: dict[str, Any]) -> str:
    """The fraction of the time that its input waited; and whether a quota of bytes is the reason (E4)."""
    by_quota = (vertex["heldByQuotaFraction"] or 0) >= HELD
    return share(vertex["heldBackFraction"]) + (" (quota)" if by_quota else "")


def _layers(vertices: Sequence[dict[str, Any]], edges: Sequence[dict[str, str]]) -> list[list[str]]:
    """Each vertex one below the lowest of its senders, dead letters' at the end of the last layer; given in the order of the data."""
    depth: dict[str, int] = {}
    for vertex in vertices:
        senders = [depth[e["from"]] for e in edges if e["to"] == vertex["name"] and e["from"] in depth]
        last = max(depth.values(), default=0)
        depth[vertex["name"]] = last if vertex["isDeadLetterQueue"] else max(senders, default=-1) + 1
    found: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, layer in depth.items():
        found[layer].append(name)
    return found


def _line(begin: tuple[float, float], end: tuple[float, float], *, aside: bool) -> Html:
    """From the bottom of a box to the top of another; `aside`: from its side, around the boxes below it."""
    (x1, y1), (x2, y2) = begin, end
    if y1 == y2:
        path = f"M{x1 + WIDTH} {y1 + HEIGHT / 2}H{x2 - 1}"
    elif aside:
        path = f"M{x1 + WIDTH} {y1 + HEIGHT / 2}H{x2 + WIDTH / 2 - 12}q12 0 12 12V{y2 - 1}"
    else:
        top, bottom, middle = y1 + HEIGHT, y2 - 1, (y1 + HEIGHT + y2) / 2
        left, right = x1 + WIDTH / 2, x2 + WIDTH / 2
        path = f"M{left} {top}C{left} {middle} {right} {middle} {right} {bottom}"
    return tag("path", d=path, class_="edge", marker_end="url(#arrow)")


def _box(vertex: dict[str, Any], x: float, y: float) -> Html:
    state = state_of(vertex)
    busy, held = share(vertex["busyFraction"]), held_of(vertex)
    lost = [
        f"{vertex[field]:,} {word}"
        for field, word in (("lateMessageCount", "late"), ("dlqMessageCount", "dead"))
        if vertex.get(field)
    ]
    lines = (
        f"in {rate(vertex['inputPerSecond'])}, out {rate(vertex['outputPerSecond'])}",
        f"busy {busy}, held back {held}",
        ", ".join([f"lag {span(vertex['lagMillis'])}", *lost]),
    )
    head = f"{vertex['name']} × {vertex['tasks']}"
    return tag(
        "g",
        tag("title", f"{vertex['name']}: {vertex['label']}"),
        tag("rect", x=x, y=y, width=WIDTH, height=HEIGHT, rx=6),
        tag("text", head, x=x + 12, y=y + 21, class_="head"),
        [tag("text", text, x=x + 12, y=y + 41 + 16 * i) for i, text in enumerate(lines)],
        class_=f"vertex {state.replace(' ', '-')}",
    )


def plot(
    label: str,
    xs: Sequence[float],
    lines: Mapping[str, Sequence[float | None]],
    x_text: tuple[str, str],
    y_text: tuple[str, str],
) -> Html:
    """Lines over `xs`, by their names; None breaks a line. Texts: the least and the largest value of each axis, in words."""
    values = [y for line in lines.values() for y in line if y is not None]
    low_y, high_y = min(values), max(values)
    low_x, high_x = xs[0], max(xs[-1], xs[0] + 1)

    def at(x: float, y: float) -> str:
        across = LEFT + (x - low_x) / (high_x - low_x) * (PLOT_WIDTH - 2 * LEFT)
        up = (y - low_y) / max(high_y - low_y, 1) * (PLOT_HEIGHT - 4 * BELOW)
        return f"{across:.1f} {PLOT_HEIGHT - 2 * BELOW - up:.1f}"

    drawn = []
    for number, (name, line) in enumerate(lines.items()):
        points = [at(x, y) if y is not None else "" for x, y in zip(xs, line, strict=True)]
        path = " ".join(f"{'L' if i and points[i - 1] else 'M'}{point}" for i, point in enumerate(points) if point)
        drawn.append(tag("path", tag("title", name), d=path or "M0 0", class_=f"line line-{number}"))
    texts = [
        tag("text", y_text[1], x=LEFT, y=16),
        tag("text", y_text[0], x=LEFT, y=PLOT_HEIGHT - BELOW - 4),
        tag("text", x_text[0], x=LEFT, y=PLOT_HEIGHT - 4),
        tag("text", x_text[1], x=PLOT_WIDTH - LEFT, y=PLOT_HEIGHT - 4, text_anchor="end"),
    ]
    axis = tag("path", d=f"M{LEFT} 0V{PLOT_HEIGHT - BELOW}H{PLOT_WIDTH - LEFT}", class_="axis")
    keys = [tag("li", tag("span", class_=f"key key-{i}", aria_hidden="true"), name) for i, name in enumerate(lines)]
    svg = tag(
        "svg",
        axis,
        drawn,
        texts,
        viewBox=f"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}",
        role="img",
        aria_label=label,
        class_="plot",
    )
    return tag("figure", svg, tag("figcaption", label, tag("ul", keys, class_="keys")))


def bars(label: str, values: Sequence[tuple[float, str, str]]) -> Html:
    """Bars side by side: (height, its class, its words)."""
    most = max((value for value, _, _ in values), default=0) or 1
    wide = PLOT_WIDTH / max(len(values), 20)
    drawn = [
        tag("rect", tag("title", words), x=round(i * wide, 2), y=round(120 - 110 * value / most, 2), width=round(0.8 * wide, 2),
            height=round(max(1, 110 * value / most), 2), class_=f"bar {kind}")
        for i, (value, kind, words) in enumerate(values)
    ]  # fmt: skip
    svg = tag("svg", drawn, viewBox=f"0 0 {PLOT_WIDTH} 120", role="img", aria_label=label, class_="plot")
    return tag("figure", svg, tag("figcaption", label))
