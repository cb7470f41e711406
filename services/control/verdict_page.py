"""The console's page of a processor's audits and redrives."""

from tidemark.services.control.html import Child, pairs, tag
from tidemark.services.control.pages import Answer, Drawn, View, actions, button
from tidemark.services.control.words import NONE, moment, number

_MEANT = {
    "held": "each record was counted once",
    "unchecked": "what could be compared was counted once; there is no statement about the rest",
    "differs": "a discrepancy",
    "cannot": "no statement",
    "away": "a part of the installation did not answer",
    "done": "done",
}


def verdict(view: View, audit: Answer, redrive: Answer) -> Drawn:
    """The last of both; a user with the right begins one here."""
    living = (
        tag("h2", "Audit"),
        _state(audit),
        _audited(audit["verdict"]),
        tag("h2", "Redrive"),
        _state(redrive),
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


def _state(found: Answer) -> Child:
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
