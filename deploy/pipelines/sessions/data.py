"""Scores of players on two kinds of device: `python -m tidemark.deploy.pipelines.sessions.data FOLDER [PLAYERS]` writes them.

A player plays in sittings: scores some seconds to some minutes apart, then nothing for half an hour and more. A console tells its scores
at once. A mobile device is out of reach now and then, in the underground or on a flight, and tells all that it has kept when it is back.
So `console.jsonl` is almost in the order of its times, and `mobile.jsonl` is not. A function of the seed alone.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

SEED = 33
BEGIN_MS = 1_709_287_200_000
"""2024-03-01T10:00:00Z."""
PLAYERS = 60
AWAY = 0.05
"""How often a mobile device is out of reach."""
_HOURS = 6


def write(folder: Path, players: int = PLAYERS) -> dict[str, int]:
    """Both files; how many lines each has."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for number, device in enumerate(("mobile", "console")):
        scores = events(device, players, SEED + number)
        (folder / f"{device}.jsonl").write_text("".join(json.dumps(score) + "\n" for score in scores))
        counts[device] = len(scores)
    return counts


def events(device: str, players: int, seed: int) -> list[dict[str, Any]]:
    """Scores in the order in which they arrive; `at` is when they were made, ms since 1970."""
    random = np.random.default_rng(seed)
    found: list[tuple[int, dict[str, Any]]] = []
    for player in range(players):
        at = BEGIN_MS + int(random.integers(0, 3_600_000))
        while at < BEGIN_MS + _HOURS * 3_600_000:
            back_ms = at + int(random.exponential(20 * 60_000)) if device == "mobile" and random.random() < AWAY else 0
            for _ in range(int(random.integers(3, 40))):
                delay = int(random.exponential(1_500 if device == "mobile" else 100))
                score = {
                    "id": f"{device}-{player}-{at}",
                    "user": f"{device[0]}{player}",
                    "at": at,
                    "score": int(random.integers(1, 20)),
                }
                found.append((max(at + delay, back_ms), score))
                at += int(random.exponential(45_000)) + 1
            at += int(random.exponential(40 * 60_000)) + 20 * 60_000
    return [score for _, score in sorted(found, key=lambda each: each[0])]


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.stdout.write(f"{write(Path(arguments[0]), *map(int, arguments[1:]))}\n")
