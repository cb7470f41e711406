"""Readings of sensors, some broken: `python -m tidemark.deploy.pipelines.validation.data FOLDER [READINGS]` writes `readings.jsonl`.

Of a hundred readings some have a temperature that cannot be, no unit, a unit that nobody knows, a text for a number, or no time that can
be read; and now and then a line is no JSON at all. A function of the seed alone.
"""

import json
import sys
from pathlib import Path

import numpy as np

SEED = 12
BEGIN_MS = 1_709_287_200_000
"""2024-03-01T10:00:00Z."""
READINGS = 5_000
KINDS = ("good", "impossible", "no unit", "unknown unit", "text", "no time", "torn")
_ODDS = (0.9, 0.03, 0.02, 0.02, 0.01, 0.01, 0.01)


def write(folder: Path, readings: int = READINGS) -> dict[str, int]:
    """The file; how many lines of each kind it has."""
    folder.mkdir(parents=True, exist_ok=True)
    found = lines(readings)
    (folder / "readings.jsonl").write_text("".join(text + "\n" for _, text in found))
    return {kind: sum(1 for k, _ in found if k == kind) for kind in KINDS}


def lines(readings: int) -> list[tuple[str, str]]:
    """(kind, line) in the order of time, a reading a second."""
    random = np.random.default_rng(SEED)
    kinds = random.choice(len(KINDS), size=readings, p=_ODDS)
    found = []
    for number, which in enumerate(kinds.tolist()):
        kind = KINDS[which]
        celsius = round(float(random.normal(18, 6)), 1)
        reading = {
            "id": number,
            "sensor": f"s{int(random.integers(0, 20)):02d}",
            "at": BEGIN_MS + 1_000 * number if kind != "no time" else "yesterday",
            "value": "warm" if kind == "text" else 900.0 if kind == "impossible" else celsius,
            "unit": "X" if kind == "unknown unit" else "C",
        }
        if kind == "no unit":
            del reading["unit"]
        text = json.dumps(reading)
        found.append((kind, text[: len(text) // 2] if kind == "torn" else text))
    return found


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.stdout.write(f"{write(Path(arguments[0]), *map(int, arguments[1:]))}\n")
