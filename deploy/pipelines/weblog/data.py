"""Lines of a web server's access log: `python -m tidemark.deploy.pipelines.weblog.data FOLDER [LINES]` writes them to `access.jsonl`.

Common Log Format with the time that the answer took, wrapped as `{"line": …}`, as log shippers send it. A line is written when its
request is answered, so a slow one comes after those that began later. For some minutes one section of the site fails. A function of
the seed alone.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

SEED = 80
BEGIN_MS = 1_709_287_200_000
"""2024-03-01T10:00:00Z."""
LINES = 12_000
SECTIONS = ("", "search", "item", "cart", "pay", "static")
_ODDS = (0.2, 0.2, 0.3, 0.1, 0.05, 0.15)
_FAILS, _LOST, _CRAWLS = 0.7, 0.02, 0.1
"""Odds: of a failure of the section that fails, of a page that is not there, of a crawler."""
_SPAN_MS = 30 * 60_000
FAILING = ("pay", 12, 17)
"""The section that fails, and from which minute to which."""


def write(folder: Path, lines: int = LINES) -> int:
    """The file; how many lines it has."""
    folder.mkdir(parents=True, exist_ok=True)
    found = access(lines)
    (folder / "access.jsonl").write_text("".join(json.dumps({"line": line}) + "\n" for line in found))
    return len(found)


def access(lines: int) -> list[str]:
    """The log, in the order in which requests were answered; a line has the second in which its request began."""
    random = np.random.default_rng(SEED)
    began = BEGIN_MS + random.integers(0, _SPAN_MS, lines)
    took = np.minimum(random.lognormal(4, 1, lines), 20_000).astype(np.int64)
    found = []
    for i in np.argsort(began + took, kind="stable").tolist():
        section = SECTIONS[int(random.choice(len(SECTIONS), p=_ODDS))]
        minute = (int(began[i]) - BEGIN_MS) // 60_000
        fails = section == FAILING[0] and FAILING[1] <= minute < FAILING[2] and random.random() < _FAILS
        status = 503 if fails else 404 if random.random() < _LOST else 200
        at = datetime.fromtimestamp(int(began[i]) // 1000, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        agent = "crawler" if random.random() < _CRAWLS else "browser"
        address = f"10.0.{int(random.integers(0, 8))}.{int(random.integers(1, 250))}"
        path = f"/{section}/{int(random.integers(1, 99))}" if section else "/"
        size = int(random.integers(200, 50_000))
        found.append(f'{address} - - [{at}] "GET {path} HTTP/1.1" {status} {size} "{agent}" {int(took[i])}')
    return found


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.stdout.write(f"{write(Path(arguments[0]), *map(int, arguments[1:]))} lines\n")
