"""Readers while the sink commits, compacts, and is killed: whole commits of a table, rows of no other, none twice, no part of a file.

The sink is a process of its own, killed at any moment. Its journal is the coordinator: what stands there is committed, and the next
process releases it. A commit of JSON lines or CSV may have several files, which get their names one by one; a table's comes at once.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.harness.readers.drawing import Story, drawn
from tests.harness.readers.running import Reading
from tests.harness.readers.writing import Written
from tidemark.services.library.release_world import IDENTITY, row_of
from tidemark.shared.language.stages import EmitFormat
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Document
from tidemark.shared.operators.batches import batch_of

EPOCHS: Final = 30
TABLES: Final = ("parquet", "iceberg")
FOLDERS: Final = ("pandas_folder", "pyarrow_folder", "polars_glob", "duckdb_glob", "spark_folder")
"""Readers of a table's folder: a compaction may show them rows twice."""
GONE: Final = ("No such file", "not found", "NotFound", "does not exist", "Not Found", "os error 2", "FileNotFound")
"""How readers say that a file went away: it was compacted, and they have to begin again."""


def story_of(seed: int, form: EmitFormat) -> Story:
    """Small commits of ordinary documents, some in several files."""
    story = drawn(seed, form)
    while not story.ordinary:
        seed += 1_000
        story = drawn(seed, form)
    rng = random.Random(seed)
    documents = [document for batches in story.epochs for batch in batches for document in batch]
    story.epochs = []
    for _ in range(EPOCHS):
        rows: list[Document] = [{**rng.choice(documents), "id": 0} for _ in range(rng.randint(1, 4))]
        for row in rows:
            row["id"] = 4 * len(story.epochs) + rows.index(row)
        story.epochs.append([rows])
    story.deaths = {}
    return story


async def write_on(written: Written, journal: Path, attempt: str) -> None:
    """From where the journal ends, to the end of the story."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    commits = [json.loads(line) for line in lines if line.endswith("}")]
    done = len(commits)
    sink = written.sink(attempt)
    await sink.open(IDENTITY, Epoch(done))
    if done:
        staged = bytes.fromhex(commits[-1]["staged"])
        await sink.release(row_of(done, done - 1, staged), staged)
        (journal.parent / "released").write_text(str(done))
    with journal.open("a") as file:
        for number in range(done, len(written.story.epochs)):
            for batch in written.story.epochs[number]:
                assert not await sink.accept(batch_of(batch))
            staged = await sink.stage(Epoch(number + 1), Epoch(number))
            file.write("\n" + json.dumps({"staged": staged.hex()}) + "\n")
            file.flush()
            os.fsync(file.fileno())
            await sink.release(row_of(number + 1, number, staged), staged)
            (journal.parent / "released").write_text(str(number + 1))
    await sink.close()


class Watch:
    """One story, written by processes that are killed, and read meanwhile."""

    def __init__(self, seed: int, form: EmitFormat, folder: Path) -> None:
        self.story = story_of(seed, form)
        self.rng = random.Random(seed)
        self.written = Written.at(self.story, folder)
        self.written.released = {row["id"]: row for (rows,) in self.story.epochs for row in rows}
        self.journal = folder / "journal"
        self.words = [sys.executable, "-m", "tests.harness.readers.watched", str(seed), form, str(folder)]
        self.reads = Counter[str]()
        self.wrong: list[str] = []

    def counts(self) -> tuple[int, int]:
        """Commits that are released for sure, and those that may be."""
        released = self.journal.parent / "released"
        told = released.read_text() if released.exists() else ""
        committed = self.journal.read_text().count("}\n") if self.journal.exists() else 0
        return int(told or 0), committed

    def run(self, reading: Reading, names: Sequence[str], kills: int) -> None:
        """Until all is written; so many kills, each after a while that is drawn."""
        attempt = 0
        while True:
            process = subprocess.Popen(
                [*self.words, str(attempt)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            end = time.monotonic() + self.rng.uniform(1.5, 5) if attempt < kills else None
            try:
                while process.poll() is None and (end is None or time.monotonic() < end):
                    self.look(reading, [self.rng.choice(names)])
            finally:
                process.send_signal(signal.SIGKILL)
                code = process.wait()
            self.look(reading, names)
            attempt += 1
            if code == 0:
                break
            if code != -signal.SIGKILL:
                self.wrong.append(f"the sink ended with {code}")
                break
        if self.counts()[0] != EPOCHS:
            self.wrong.append(f"{self.counts()} of {EPOCHS} commits are released")

    def look(self, reading: Reading, names: Sequence[str]) -> None:
        """Read, and compare with what was there before and behind it."""
        for name in names:
            least, _ = self.counts()
            rows = reading.read(self.written, name)
            _, most = self.counts()
            self.reads[name] += 1
            if said := self._judge(name, rows, least, most):
                self.wrong.append(f"{name}: {least} to {most} commits: {said}")

    def _judge(self, name: str, rows: Any, least: int, most: int) -> str:
        if isinstance(rows, str):
            may_go = self.story.compact <= EPOCHS and self.story.form in TABLES and any(word in rows for word in GONE)
            self.reads["begins again"] += may_go and least > 0
            return "" if not least or may_go else rows[:300]
        ids = [int(row["id"]) for row in rows]
        sure, may = ({row["id"] for (rows,) in self.story.epochs[:n] for row in rows} for n in (least, most))
        compacts = name.endswith(FOLDERS) and self.story.compact <= EPOCHS
        if len(ids) != len({*ids}) and not compacts:
            return f"twice: {[key for key, times in Counter(ids).items() if times > 1]}"
        if not sure <= {*ids} <= may:
            return f"missing {sorted(sure - {*ids})}, too many {sorted({*ids} - may)}"
        if self.story.form in TABLES and not name.endswith(FOLDERS) and not self._is_whole({*ids}):
            return f"a part of a commit: {sorted(ids)}"
        return ""

    def _is_whole(self, ids: set[int]) -> bool:
        wholes = [{row["id"] for row in rows} for (rows,) in self.story.epochs]
        seen = [whole <= ids for whole in wholes]
        return sum(map(len, wholes[: sum(seen)])) == len(ids) and all(seen[: sum(seen)])


def main(words: list[str]) -> None:
    """The sink's process."""
    seed, form, folder, attempt = words
    written = Written.at(story_of(int(seed), form), Path(folder))  # type: ignore[arg-type]
    asyncio.run(write_on(written, Path(folder) / "journal", f"p{attempt}"))


if __name__ == "__main__":
    main(sys.argv[1:])
