"""Clicks of users: `python -m tidemark.deploy.pipelines.counts.data FOLDER [CLICKS]` writes them to `clicks.jsonl`.

A few users click much, many click little, and each click arrives up to ten seconds after it was made. A function of the seed alone.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

SEED = 55
BEGIN_MS = 1_709_287_200_000
"""2024-03-01T10:00:00Z."""
CLICKS = 40_000
USERS = 500
_SPAN_MS = 30 * 60_000


def write(folder: Path, clicks: int = CLICKS) -> int:
    """The file; how many lines it has."""
    folder.mkdir(parents=True, exist_ok=True)
    found = events(clicks)
    (folder / "clicks.jsonl").write_text("".join(json.dumps(click) + "\n" for click in found))
    return len(found)


def events(clicks: int) -> list[dict[str, Any]]:
    """Clicks in the order in which they arrive; `at` is when they were made, ms since 1970."""
    random = np.random.default_rng(SEED)
    at = BEGIN_MS + random.integers(0, _SPAN_MS, clicks)
    arrived = at + random.integers(0, 10_000, clicks)
    users = np.minimum(random.zipf(1.3, clicks), USERS)
    return [{"user": f"u{int(users[i]):03d}", "at": int(at[i])} for i in np.argsort(arrived, kind="stable")]


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.stdout.write(f"{write(Path(arguments[0]), *map(int, arguments[1:]))} clicks\n")
