"""Texts that people type and that records, errors and log lines hold: right, nearly right, empty, huge, hostile."""

import random
from typing import Final

HOSTILE: Final = (
    "<b id=injected>bold</b>",
    "<script>document.title='injected'</script>",
    "</textarea><img src=x onerror=\"document.title='injected'\">",
    "</title></style></pre></table><svg onload=alert(1)>",
    '" onfocus=alert(1) autofocus x="',
    "' OR 1=1; DROP TABLE processors; --",
    "{{7*7}} ${7*7} %s %n {0} &lt;&amp;&#60;",
    "javascript:alert(1)",
    "//elsewhere.example/%2e%2e/",
    "\u202egnp.exe\u202c \u2066hidden\u2069 \u200b\ufeff",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 mixed 123",
    "e\u0301\u0323 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001d518 \ufffd",
    "\x1b[31mred\x1b[0m \x07\x08\x7f\x85",
    "line one\nline two\r\nline three\u2028four",
    "  spaces  and\ttabs  ",
    "a" * 400,
    "\u00e4" * 300,
)
NAMES: Final = (
    "clicks", "a", "Z.9_-", "n" * 128, "n" * 129, "", " ", ".", "..", "-x", "a/b", "a b", "team.one", "ä", "x\0y", "a%2Fb", "a?b#c",
)  # fmt: skip
DOCUMENTS: Final = (
    "",
    "{",
    "pipeline: [",
    '{"pipeline": []}',
    '{"pipeline": [{"$macth": {}}]}',
    '{"pipeline": [{"$source": {"connectionName": "broker", "topic": "in"}}, {"$emit": {"connectionName": "broker", "topic": "out"}}]}',
    "pipeline:\n  - $source: {connectionName: broker, topic: in}\n  - $emit: {connectionName: nowhere, topic: out}\n",
    "&a [*a]",
    "a: !!python/object/apply:os.system [id]",
    '{"pipeline": 1e999}',
    "[" * 5_000,
    "null",
    '"\\ud800"',
    "\ufeff{}",
)
ROWS: Final = (
    "",
    "[]",
    "[{}]",
    "[{",
    "{}",
    "[1]",
    '[{"user": "a", "at": 1700000000000}]',
    '[{"user": 9007199254740993, "at": 1.5e308}]',
    '[{"user": "<b id=injected>", "at": {"$numberLong": "9223372036854775807"}}]',
)


def typed(chooser: random.Random, kind: str) -> str:
    """For a field: mostly of its kind (`name`, `document`, `rows`), else anything."""
    of_kind = {"name": NAMES, "document": DOCUMENTS, "rows": ROWS}.get(kind, HOSTILE)
    found = chooser.choice(of_kind if chooser.random() < 0.8 else HOSTILE)
    return found if chooser.random() < 0.97 else found * (1 + 200_000 // max(1, len(found)))


def hostile(chooser: random.Random, most: int = 2_000) -> str:
    """Some of those, joined; now and then as long as `most`."""
    found = " ".join(chooser.choice(HOSTILE) for _ in range(chooser.randint(1, 3)))
    return found if chooser.random() < 0.8 else (found * (most // len(found) + 1))[:most]
