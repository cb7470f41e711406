"""What must come of the records that a client reads: written apart from the product, by Python's own JSON."""

import json
import math
from typing import Any

from tests.harness.clients.running import Row

TARGET_BYTES_MAX = 1_000_000
"""Of a record that a topic with Kafka's defaults takes, without what a stage adds."""
_LEAST, _MOST = -(2**63), 2**63 - 1


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _number(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError(text)
    return found


def _whole(text: str) -> int | float:
    found = int(text)
    return found if _LEAST <= found <= _MOST else _number(text)


def document(value: bytes | None) -> dict[str, Any] | None:
    """The document that a value is, of JSON in UTF-8; None: it is none, and goes to the dead letters."""
    if value is None:
        return None
    try:
        found = json.loads(value.decode(), parse_constant=_refuse, parse_float=_number, parse_int=_whole)
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except ValueError:
        return None
    return found if type(found) is dict else None


def expected(
    rows: dict[str, list[Row]], bytes_max: float = math.inf
) -> tuple[dict[tuple[str, int, int], dict[str, Any]], set[tuple[str, int, int]]]:
    """By place (topic, partition, offset): the documents that come out, and the places of the dead letters. Times are the records' own.

    bytes_max: of a document that the target takes.
    """
    good: dict[tuple[str, int, int], dict[str, Any]] = {}
    dead = set()
    for topic, some in rows.items():
        for row in some:
            place = (topic, row.partition, row.offset)
            found = None if row.time_ms == -1 or len(row.value or b"") > bytes_max else document(row.value)
            if found is None:
                dead.add(place)
            else:
                good[place] = found
    return good, dead
