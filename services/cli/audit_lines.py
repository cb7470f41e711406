"""Documents as an audit compares them: canonical JSON texts."""

import json
from typing import Any

from tidemark.shared.operators.dead_letters import WOULD_REFUSE

Line = str
"""A document as canonical JSON text: what is compared."""


def line_of(tree: Any) -> Line:
    """Canonical text of a JSON tree. Of a letter that a sink made, without the time at which it did: no record tells it."""
    if isinstance(tree, dict) and isinstance(tree.get("errInfo"), dict) and tree["errInfo"].get("code") == WOULD_REFUSE:
        tree = {name: value for name, value in tree.items() if name != "dlqTime"}
    return json.dumps(tree, sort_keys=True, ensure_ascii=False)


def line_of_record(key: bytes | None, value: bytes | None) -> Line:
    """A record of a topic; without a value its key tells it. ValueError if the value is no JSON."""
    if value is None:
        return line_of({"tombstone": None if key is None else key.hex()})
    return line_of(json.loads(value))
