"""The console's pages: each a function of REST's answers."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from tidemark.services.control import drawing
from tidemark.services.control.html import NONE, Child, Html, moment, number, pairs, rate, share, size, span, table, tag
from tidemark.shared.language.redaction import HIDDEN
from tidemark.shared.process.users import User

Answer = dict[str, Any]
_NEW: Final = {
    "pipeline": [
        {"$source": {"connectionName": "broker", "topic": "in", "timeField": "$at"}},
        {"$emit": {"connectionName": "broker", "topic": "out"}},
    ]
}
_LINE_MAX: Final = 120
"""Characters of a document beside its other figures; more of it can be unfolded."""
_TEXT_MAX, _WHOLE_MAX = 500, 5_000
"""Characters of a text of others (a reason, a field of a log line) and of a document that is unfolded: a record may have a megabyte, and
a page has a hundred of them."""
_NEAR: Final = 10
"""The clock is drawn where it is not further from the watermarks than so many times their own range."""


@dataclass(frozen=True, slots=True)
class PageContext:
    """The user, and the processor that the page is for."""

    name: str
    """Of the processor; "": of the installation."""
    user: User
    query: Mapping[str, str]
    """The query of the page's address, which narrows a page."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The part of a page that is drawn anew while one looks, and the part below it that stays, with fields and buttons."""

    living: Child
    staying: Child = None


# --- processors -----------------------------------------------------------------------------------------------------------


def processors(view: PageContext, found: Answer) -> Drawn:
    """The list; a user with the right makes one here."""
    rows = (
        (
            tag("a", p["name"], href=f"/console/processors/{p['name']}"),
            _state(p["state"]),
            rate(p["inputPerSecond"]),
            moment(p["watermark"]),
            span(p["lagMillis"]),
            f"{p['epoch']:,} ({p['releasedEpoch']:,} released)",
            _cut(p["reason"]) or NONE,
        )
        for p in found["processors"]
    )
    heads = ("Processor", "State", "Input", "Watermark", "Lag of work", "Checkpoint", "Why")
    listed = table("Processors", heads, rows, "No processor is registered.")
    if not view.user.may("operator"):
        return Drawn(listed)
    path = "/v1/processors"
    made = tag(
        "details",
        tag("summary", "New processor"),
        tag("p", tag("label", "Name ", tag("input", id="name", autocomplete="off"))),
        _editor(json.dumps(_NEW, indent=2)),
        actions(
            button("Validate", "POST", "/v1/validate", document="document"),
            button("Create", "POST", path, document="document", name="name"),
            button("Create and start", "POST", path, {"start": True}, document="document", name="name"),
        ),
    )
    return Drawn(listed, made)


def graph(view: PageContext, shown: Answer, stats: Answer, plan: Answer) -> Drawn:
    """One processor: its figures, its graph, its vertices; a user with the right starts and stops it here."""
    s, vertices = stats["stats"], plan["vertices"]
    figures = (
        ("State", _state(shown["state"])),
        ("Watermark", moment(s["watermark"])),
        ("Event-time lag", span(s["eventTimeLagMillis"])),
        ("Lag of work", span(s["processingTimeLagMillis"])),
        ("Late or slow", s["diagnosis"]),
        ("In", number(s["inputMessageCount"])),
        ("Out", number(s["outputMessageCount"])),
        ("Late", f"{number(s['lateMessageCount'])} ({share(s['lateFraction'])})"),
        ("Dead letters", number(s["dlqMessageCount"])),
        ("Checkpoint", f"{number(shown['epoch'])}, {number(shown['releasedEpoch'])} released"),
        ("State size", size(s["stateSize"])),
        *_quota(vertices),
    )
    why = _cut(shown["reason"], _WHOLE_MAX)
    reason = tag("p", why, class_="trouble" if shown["state"] == "FAILED" else "hint") if why else None
    waits = [tag("p", f"{v['name']} waits: {_cut(text)}", class_="trouble") for v in vertices for text in v["waits"]]
    placed = (
        (
            f"{t['vertex']}/{t['index']}",
            t["worker"],
            number(t["inputMessageCount"]),
            number(t["outputMessageCount"]),
            moment(t["watermark"]),
            span(t["lagMillis"]),
            size(t["stateSize"]),
        )
        for t in shown["tasks"]
    )
    more = tag(
        "details",
        tag("summary", "Edges, operators, tasks"),
        tag("ul", [tag("li", edge["text"], " ", _sample_of(view, edge)) for edge in plan["edges"]]),
        table("Operators", ("Vertex", "Operators"), ((v["name"], "; ".join(v["operators"])) for v in vertices)),
        table("Tasks", ("Task", "Worker", "Rows in", "Rows out", "Watermark", "Lag of work", "State"), placed),
    )
    drawn = drawing.graph(vertices, plan["edges"])
    return Drawn((reason, pairs(figures), waits, drawn, _vertices(vertices), more), _deeds(view))


def _quota(vertices: Iterable[Answer]) -> Iterable[tuple[str, str]]:
    """Of a processor whose namespace has a quota of bytes: what its sources take now, and may."""
    under = [v for v in vertices if v.get("quotaBytesPerSecond")]
    if under:
        taken = sum(v["inputBytesPerSecond"] or 0 for v in under)
        yield "Quota", f"{size(taken)}/s of {size(sum(v['quotaBytesPerSecond'] for v in under))}/s"


def _vertices(vertices: Iterable[Answer]) -> Html:
    rows = (
        (
            v["name"],
            drawing.state_of(v),
            f"{v['service']} × {v['tasks']}",
            rate(v["inputPerSecond"]),
            rate(v["outputPerSecond"]),
            moment(v.get("watermark")),
            span(v["lagMillis"]),
            share(v["busyFraction"]),
            drawing.held_of(v),
            number(v["lateMessageCount"]),
            number(v.get("dlqMessageCount")),
            number(v.get("executionMicrosPerMessage")),
            size(v.get("stateSize")),
            ", ".join(v["interpreted"]) or "none",
        )
        for v in vertices
    )
    heads = (
        "Vertex", "Is", "Runs as", "In", "Out", "Watermark", "Lag of work", "Busy", "Held back", "Late", "Dead", "µs a row", "State",
        "Interpreted",
    )  # fmt: skip
    return table("Vertices", heads, rows)


def _deeds(view: PageContext) -> Html | None:
    name, path = view.name, f"/v1/processors/{view.name}"
    deeds = []
    if view.user.may("operator", view.name):
        anew = f"Start {name} without state? It reads its input from the beginning, and writes its output again."
        ends = f"Drain {name}? Its input ends where it ends now, all windows close, and it finishes."
        deeds += [
            button("Start", "POST", f"{path}/start"),
            button("Start without state", "POST", f"{path}/start", {"resume": False}, risky=True, confirm=anew),
            button("Stop", "POST", f"{path}/stop", confirm=f"Stop {name} at a checkpoint?"),
            button("Drain", "POST", f"{path}/stop", {"drain": True}, risky=True, confirm=ends),
        ]
    if view.user.may("admin", view.name):
        lost = f"Drop {name}? Its checkpoints and all that it stored are deleted; its output stays."
        deeds.append(button("Drop", "DELETE", path, confirm=lost, next="/", risky=True))
    return actions(*deeds) if deeds else None


def checkpoints(view: PageContext, found: Answer) -> Drawn:
    """A bar and a row each; those that are kept, and a field for the name of another one."""
    seen = found["checkpoints"]
    drawn = [
        (c["durationMillis"] or 0, _bar(c), f"{c['epoch']}: {span(c['durationMillis'])}")
        for c in reversed(seen)
        if c["durationMillis"] is not None or c["state"] == "aborted"
    ]
    longest = max((value for value, _, _ in drawn), default=0)
    rows = (
        (
            f"{c['epoch']:,}",
            _state(c["state"]),
            moment(c["began"]),
            span(c["durationMillis"]),
            span(c["releaseMillis"]),
            NONE if c["aligned"] is None else "aligned" if c["aligned"] else "unaligned",
            size(c["stateBytes"]),
            size(c["writtenBytes"]),
            tag("details", tag("summary", _slowest(c["tasks"])), tag("ul", [tag("li", _part(t)) for t in c["tasks"]])),
        )
        for c in seen
    )
    heads = ("Checkpoint", "Is", "Began", "Took", "Then released in", "Barriers", "State", "Written", "By task")
    label = f"How long the last {len(drawn)} checkpoints took; the longest {span(longest)}"
    picture = drawing.bars(label, drawn) if drawn else None
    empty = "None has been seen since this service began."
    may, path = view.user.may("operator", view.name), f"/v1/processors/{view.name}"
    kept = table(
        "Kept under a name",
        ("Name", "Checkpoint", *(["Begin from it, or forget it"] if may else [])),
        ((k["name"], f"{k['epoch']:,}", *([_kept(view.name, path, k["name"])] if may else [])) for k in found["kept"]),
        "None is kept under a name.",
    )
    named = actions(
        tag("label", "Keep the last checkpoint as ", tag("input", id="name", autocomplete="off")),
        button("Keep", "POST", f"{path}/checkpoints", name="name"),
    )
    return Drawn((picture, kept, table("Checkpoints, the newest first", heads, rows, empty)), named if may else None)


def _kept(name: str, path: str, checkpoint: str) -> Html:
    again = f"Start {name} from {checkpoint}? It has the document and the state of then, and what came out since comes out again."
    lost = f"Forget {checkpoint}? Nothing can begin from it any more."
    return actions(
        button("Start from it", "POST", f"{path}/start", {"checkpoint": checkpoint}, risky=True, confirm=again),
        button("Forget", "DELETE", f"{path}/checkpoints/{quote(checkpoint, safe='')}", risky=True, confirm=lost),
    )


def _bar(checkpoint: Answer) -> str:
    if checkpoint["state"] == "aborted":
        return "aborted"
    return "unaligned" if checkpoint["aligned"] is False else "aligned"


def _slowest(tasks: Iterable[Answer]) -> str:
    known = [task for task in tasks if task["durationMillis"] is not None]
    found = max(known, key=lambda task: int(task["durationMillis"]), default=None)
    return "none" if found is None else f"{found['task']} last, {span(found['durationMillis'])}"


def _part(task: Answer) -> str:
    aligned = "" if task["aligned"] else ", unaligned"
    return f"{task['task']}: {span(task['durationMillis'])}, {size(task['stateBytes'])}{aligned}"


def event_time(_view: PageContext, history: Answer, watermark: Answer) -> Drawn:
    """The plot, and in words what holds the watermark."""
    told = watermark["watermark"]
    held = tag("strong", told["summary"] or "Nothing holds it.")
    summary = tag("p", f"The watermark at the sinks is {moment(told['watermark'])}. ", held)
    steps = [
        tag(
            "li",
            tag("strong", f"{s['vertex']}/{s['task']}" + (f" {s['split']}" if s["split"] else "")),
            f" {s['why']}. It gives out {moment(s['watermark'])}; of the delay, {span(s['keepsMillis'])} arise here.",
            f" Last event {moment(s['lastEvent'])}." if s["lastEvent"] else "",
            f" It stands there since {moment(s['since'])}." if s["since"] else "",
            aria_current="true" if place == told["culprit"] else None,
        )
        for place, s in enumerate(told["steps"])
    ]
    words = (tag("h2", "What holds the watermark"), summary, tag("ol", steps, class_="steps"))
    return Drawn((_plot(history["points"]), words))


def _plot(points: list[Answer]) -> Html:
    """Event time against processing time, with the clock where it is near."""
    names = {"watermark": "watermark at the sinks", "sourceWatermark": "watermark of the sources"}
    known = sorted((_ms(p[key]), p[key]) for p in points for key in names if p[key])
    if not known:
        return tag("p", "No watermark has been seen yet; figures are kept while this service runs.", class_="none")
    xs = [_ms(p["time"]) for p in points]
    lines: dict[str, list[float | None]] = {
        text: [_ms(p[key]) if p[key] else None for p in points] for key, text in names.items()
    }
    label = f"Event time (up) against processing time (right): watermarks from {moment(known[0][1])} to {moment(known[-1][1])}"
    if xs[-1] - known[-1][0] < _NEAR * max(known[-1][0] - known[0][0], 60_000):
        lines["the clock"] = list(xs)
        known = sorted([*known, *((x, p["time"]) for x, p in zip(xs, points, strict=True))])
    ends = (moment(points[0]["time"]), moment(points[-1]["time"]))
    return drawing.plot(label, xs, lines, ends, (moment(known[0][1]), moment(known[-1][1])))


def _ms(time: str) -> float:
    """Of an instant as REST shows it: milliseconds alone, where its year has no four digits."""
    try:
        return float(time)
    except ValueError:
        return datetime.fromisoformat(time).timestamp() * 1000


def sample(view: PageContext, plan: Answer, found: Answer | None = None) -> Drawn:
    """Of the edge that is chosen. `found`: None: nobody has asked."""
    chosen = view.query.get("edge", "")
    options = [
        tag("option", f"{e['from']} to {e['to']}", value=e["id"], selected=e["id"] == chosen) for e in plan["edges"]
    ]
    select = tag("select", tag("option", "output", value=""), options, name="edge")
    asked = tag("form", tag("label", "Rows of ", select), tag("button", "Show"), method="get", class_="actions")
    hint = "The newest rows; not all of them need be committed yet. To look at them does not disturb the processor."
    top = (asked, tag("p", hint, class_="hint"))
    if found is None:
        return Drawn(top)
    if "documents" in found:
        rows = [(_json(document),) for document in reversed(found["documents"])]
        return Drawn((top, table("Output, the newest first", ("Document",), rows, "No documents yet.")))
    troubles = [tag("p", trouble, class_="hint") for trouble in found["troubles"]]
    shown = ((moment(row["eventTime"]), _json(row["document"], _origin(row))) for row in reversed(found["rows"]))
    caption = f"Rows of {chosen}, the newest first"
    return Drawn((top, troubles, table(caption, ("Event time", "Row, and where it comes from"), shown, "No rows.")))


def _origin(row: Answer) -> str:
    kind = "Partial aggregate of a window, by columns" if row["partial"] else "Document"
    return f"{kind}; sent by {row['sender']} in epoch {row['epoch']:,} to partition {row['partition']}."


def _sample_of(view: PageContext, edge: Answer) -> Html:
    href = f"/console/processors/{view.name}/sample?{urlencode({'edge': edge['id']})}"
    return tag("a", "sample", href=href, aria_label=f"sample of {edge['id']}")


def _json(document: object, about: str = "", summary: str = "") -> Html:
    """Unfolds; folded it shows the summary, or how it begins."""
    text = json.dumps(document, ensure_ascii=False)
    whole = tag("pre", _cut(json.dumps(document, indent=2, ensure_ascii=False), _WHOLE_MAX), tabindex=0)
    short = summary or (text if len(text) <= _LINE_MAX else f"{text[:_LINE_MAX]}…")
    return tag("details", tag("summary", short), tag("p", about, class_="hint") if about else None, whole)


def _cut(found: object, most: int = _TEXT_MAX) -> str:
    """A text of others, as it is shown: its begin."""
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters: REST has them)"


def letters(view: PageContext, found: Answer) -> Drawn:
    """Dead letters, which can be narrowed to one code."""
    options = [
        tag("option", f"{_cut(code, _LINE_MAX)} ({count})", value=code, selected=code == view.query.get("code"))
        for code, count in found["codes"].items()
    ]
    select = tag("select", tag("option", "all", value=""), options, name="code")
    chosen = tag("form", tag("label", "Code ", select), tag("button", "Show"), method="get", class_="actions")
    rows = ((_arrival(letter), _cut(letter.get("operatorName", NONE)), *_error(letter)) for letter in found["letters"])
    hint = tag("p", "A redrive takes late records through the windows that they missed, each once.", class_="hint")
    asked = f"Redrive {view.name}? Corrections of its windows go to a topic of their own."
    deed = button("Redrive", "POST", f"/v1/processors/{view.name}/redrive", confirm=asked)
    staying = (hint, actions(deed) if view.user.may("operator", view.name) else None)
    heads = ("Arrived", "Operator", "Code", "Reason, and the letter")
    code, counts = view.query.get("code", ""), found["codes"]
    count, shown = counts.get(code, 0) if code else sum(counts.values()), len(found["letters"])
    more = f", {shown:,} of the last {count:,}" if shown < count else ""
    return Drawn((chosen, table(f"Dead letters, the newest first{more}", heads, rows, "No dead letters.")), staying)


def _arrival(letter: Answer) -> str:
    found = letter.get("dlqTime", NONE)
    return moment(_cut(found["$date"] if isinstance(found, dict) and "$date" in found else found))


def _error(letter: Answer) -> tuple[str, Html]:
    """Code, and reason with the letter: anyone may write to the topic, so nothing is sure to be there."""
    info = letter.get("errInfo")
    known = info if isinstance(info, dict) else {}
    return _cut(known.get("code", NONE)), _json(letter, summary=_cut(known.get("reason", NONE)))


def logs(_view: PageContext, found: Answer) -> Drawn:
    """Log lines, the newest first."""
    own = ("timestamp", "level", "event")
    rows = (
        (
            moment(_cut(line.get("timestamp", NONE))),
            tag("span", _cut(line.get("level", NONE)), class_=_cut(line.get("level", ""))),
            _cut(line.get("event", NONE)),
            _cut(", ".join(f"{key}={_cut(value)}" for key, value in line.items() if key not in own), _WHOLE_MAX),
        )
        for line in reversed(found["lines"])
    )
    return Drawn(table("Log lines, the newest first", ("Time", "Level", "Event", "With"), rows, "No lines."))


def document(view: PageContext, shown: Answer) -> Drawn:
    """A document, to be read; a user with the right changes it here."""
    text = json.dumps(shown["document"], indent=2, ensure_ascii=False)
    if not view.user.may("operator", view.name):
        return Drawn(None, tag("pre", text, tabindex=0))
    deeds = [
        button("Validate and compare", "POST", "/v1/validate", {"against": view.name}, document="document"),
        button("Try out", "POST", "/v1/try", document="document", rows="rows"),
    ]
    hint = None
    if HIDDEN in text:
        words = (
            f"It holds secrets, shown as {HIDDEN}: name secrets of the installation instead, or use `tidemark modify`."
        )
        hint = tag("p", words, class_="hint")
    else:
        asked = f"Modify {view.name}? If it runs, it goes on with this document at its next checkpoint."
        path, own = f"/v1/processors/{view.name}", f"/console/processors/{view.name}"
        made = {"replaces": shown["documentDigest"]}
        deeds.append(button("Modify", "PATCH", path, made, confirm=asked, document="document", next=own))
    label = tag("label", "Records to try it out on, a JSON list; empty: the newest of its topic", for_="rows")
    rows = (label, tag("textarea", "", id="rows", class_="rows", spellcheck="false"))
    return Drawn(None, (_editor(text), rows, actions(*deeds), hint))


# --- the installation -----------------------------------------------------------------------------------------------------


def connections(view: PageContext, found: Answer) -> Drawn:
    """The registry; a user with the right tests connections here."""
    tests = view.user.may("operator")
    rows = (
        (
            name,
            _cut(each.get("type", NONE)),
            *((button(f"Test {name}", "POST", f"/v1/connections/{quote(name, safe='')}/test"),) if tests else ()),
            ", ".join(f"{k}: {_cut(v)}" for k, v in each.items() if k != "type"),
        )
        for name, each in sorted(found["connections"].items())
    )
    heads = ("Connection", "Type", *(("Test",) if tests else ()), "Settings")
    return Drawn(table("Connections of the registry", heads, rows, "The registry has no connection."))


def workers(_view: PageContext, found: Answer) -> Drawn:
    """Their slots, and what they host."""
    rows = (
        (
            w["place"],
            w["service"],
            f"{w['host']}, {w['pid']}",
            f"{len(w['processors'])} of {w['slots']}",
            ", ".join(w["tasks"]) or NONE,
        )
        for w in found["workers"]
    )
    heads = ("Worker", "Service", "Host, process", "Slots taken", "Tasks")
    return Drawn(table("Workers heard of lately", heads, rows, "No worker has been heard of lately."))


def audit(_view: PageContext, found: Answer) -> Drawn:
    """What users did, the newest first."""
    rows = (
        (
            moment(d["time"]),
            f"{d['user']} ({d['role']})" if d["user"] else "nobody known",
            d["what"],
            d.get("status", NONE),
            _cut(d.get("finding") or NONE),
        )
        for d in found["deeds"]
    )
    heads = ("Time", "User", "Asked for", "Answer", "Finding")
    return Drawn(table("Changes through this process, the newest first", heads, rows, "Nothing has been changed."))


# --- parts ----------------------------------------------------------------------------------------------------------------


def _state(state: str) -> Html:
    return tag("span", state, class_=f"state {state.replace(' ', '-')}")


def _editor(text: str) -> Child:
    label = tag("label", "Document (YAML or JSON)", for_="document")
    keys = "In JSON, Ctrl and Space propose words, and so does writing them; down and up choose, Enter takes one, Escape closes."
    described = {"aria_autocomplete": "list", "aria_controls": "proposals", "aria_describedby": "keys"}
    field = tag("textarea", text, id="document", spellcheck="false", autocomplete="off", **described)
    found = tag("div", id="proposals", role="listbox", aria_label="Proposals", hidden=True)
    return (
        label,
        field,
        found,
        tag("p", keys, id="keys", class_="hint"),
        tag("p", id="heard", role="status", class_="unseen"),
    )


def actions(*buttons: Html) -> Html:
    """A row of buttons."""
    return tag("div", buttons, class_="actions")


def button(
    text: str, method: str, path: str, body: dict[str, Any] | None = None, *, risky: bool = False, **data: str
) -> Html:
    """Asks REST. data: `confirm`, a question; `document` and `name`, ids of fields; `next`, where to go when it is done."""
    given = {f"data_{key}": value for key, value in data.items()}
    shown = json.dumps(body) if body else None
    kind = "risky" if risky else None
    return tag("button", text, type="button", data_method=method, data_path=path, data_body=shown, class_=kind, **given)


_MEANT = {
    "held": "each record was counted once",
    "unchecked": "what could be compared was counted once; there is no statement about the rest",
    "differs": "a discrepancy",
    "cannot": "no statement",
    "away": "a part of the installation did not answer",
    "done": "done",
}


def verdict(view: PageContext, audit: Answer, redrive: Answer) -> Drawn:
    """The last of both; a user with the right begins one here."""
    living = (
        tag("h2", "Audit"),
        _verdict_state(audit),
        _audited(audit["verdict"]),
        tag("h2", "Redrive"),
        _verdict_state(redrive),
        _redriven(redrive["verdict"]),
    )
    text = "An audit computes the outputs again from the source's records, and compares them with what is there. It reads all of a job."
    path = f"/v1/processors/{view.name}/audit"
    return Drawn(
        living,
        (
            tag("p", text, class_="hint"),
            actions(button("Audit", "POST", path)) if view.user.may("operator", view.name) else None,
        ),
    )


def _verdict_state(found: Answer) -> Child:
    if found["running"]:
        return tag("p", f"It runs since {moment(found['began'])}, by {found['by']}.", role="status")
    return None if found["verdict"] else tag("p", "None has ended yet.")


def _audited(verdict: Answer | None) -> Child:
    if verdict is None:
        return None
    figures = (
        ("Outcome", f"{verdict['outcome']}: {_MEANT[verdict['outcome']]}"),
        ("Why", verdict["why"] or NONE),
        ("Up to checkpoint", number(verdict["epoch"])),
        ("Records", number(verdict["records"])),
        ("Counted", number(verdict["counted"])),
        ("Late", number(verdict["late"])),
        ("Repeated", number(verdict["repeated"])),
        ("Dead for other reasons", number(verdict["dead"])),
        ("Documents", ", ".join(f"{sink} {number(rows)}" for sink, rows in verdict["outputs"].items()) or NONE),
        ("Not compared yet", number(verdict["waiting"])),
    )
    sentences = [f"not checked: {each}" for each in verdict["unchecked"]] + verdict["notes"]
    return (pairs(figures), tag("ul", [tag("li", each) for each in sentences]) if sentences else None)


def _redriven(verdict: Answer | None) -> Child:
    if verdict is None:
        return None
    figures = (
        ("Outcome", f"{verdict['outcome']}: {verdict['why'] or _MEANT[verdict['outcome']]}"),
        ("Letters", number(verdict["letters"])),
        ("Corrections", number(verdict["corrections"])),
        ("In topic", verdict["topic"] or NONE),
    )
    return pairs(figures)
