"""Stories run, read and judged."""

import asyncio
import json
import pickle
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.harness.readers.drawing import Story
from tests.harness.readers.limits import ROWS, excused
from tests.harness.readers.rules import differences
from tests.harness.readers.writing import Written, write

PROGRAMS: Final = Path(__file__).with_name("programs.py")
SUFFIX: Final = {"parquet": "parquet", "iceberg": "parquet", "json": "jsonl", "csv": "csv"}


DIED: Final = "the process died"


class Programs:
    """A process with the readers of one environment."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [str(Path(python).absolute()), str(PROGRAMS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
        )

    def read(self, written: Written, readers: Sequence[str], out: Path) -> dict[str, Any]:
        """By reader its rows, or its error as a text."""
        story = written.story
        job = {
            "form": story.form,
            "root": str(written.root),
            "glob": f"{written.root}/**/*.{SUFFIX[story.form]}",
            "catalog": written.catalog,
            "delimiter": story.options.get("delimiter", ","),
            "readers": list(readers),
            "out": str(out),
        }
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(job) + "\n")
        stdin.flush()
        while (line := stdout.readline()) and line != "answered\n":
            pass
        if not line:
            self.process.wait()
            return dict.fromkeys(readers, DIED)
        with out.open("rb") as file:
            found: dict[str, Any] = pickle.load(file)
        return found

    def close(self) -> None:
        """End it."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait()


@dataclass
class Finding:
    """What a reader found otherwise."""

    story: Story
    reader: str
    name: str
    value: Any = None
    found: Any = None

    @property
    def excuse(self) -> str:
        """Why the reader cannot carry it; "" where something is wrong."""
        return excused(self.story, self.reader, self.name, self.value, self.found)

    def __str__(self) -> str:
        return f"{self.story.seed}: {self.reader}: {self.name!r:.60}: {self.value!r:.120} is {self.found!r:.300}"


GUESSES: Final = (
    "pandas_csv", "pandas_json", "pyarrow_csv", "pyarrow_json", "polars_json_glob", "polars_csv_glob", "duckdb_csv", "duckdb_json",
    "chdb_csv", "chdb_json", "daft_csv", "daft_json", "spark_csv", "spark_json",
)  # fmt: skip
"""Readers that guess types and columns, in files that have none: they are asked for ordinary documents alone."""


def asked(written: Written, names: Sequence[str]) -> list[str]:
    """Those of the readers that can carry a story."""
    story = written.story
    return [
        name
        for name in names
        if name.startswith(f"{story.form}: ") and written.released and (story.ordinary or not name.endswith(GUESSES))
    ]


def judge(written: Written, reader: str, rows: Any) -> list[Finding]:
    """What is wrong with a reader's answer, and what it cannot carry."""
    story = written.story
    if isinstance(rows, str):
        return [Finding(story, reader, ROWS, found=rows)]
    ids = [_id(row.get("id")) for row in rows]
    counts = Counter(ids)
    if counts != Counter(list(written.released)):
        missing = sorted(set(written.released) - set(counts))
        more = {key: times for key, times in counts.items() if times > 1 or key not in written.released}
        return [
            Finding(
                story,
                reader,
                ROWS,
                found=f"{len(missing)} rows missing: {missing[:9]}; too many: {list(more.items())[:9]}",
            )
        ]
    guesses = reader.endswith(GUESSES)
    return [
        Finding(story, reader, *difference)
        for key, row in zip(ids, rows, strict=True)
        for difference in differences(story, written.released[key], row, guesses=guesses)
    ]


def _id(value: Any) -> Any:
    if isinstance(value, dict):  # canonical JSON
        value = next(iter(value.values()), None)
    try:
        return int(value)
    except (TypeError, ValueError):
        return value


class Reading:
    """Some readers and their environment. A process that dies is told, reader by reader, and another takes its place."""

    def __init__(self, python: str, names: Sequence[str]) -> None:
        self._python = python
        self.names = names
        self._programs: Programs | None = None

    def findings(self, written: Written, asked_of: Counter[str]) -> list[Finding]:
        """What the readers of a story's form found otherwise. asked_of: counts readers."""
        names = asked(written, self.names)
        if not names:
            return []
        asked_of.update(names)
        answers = self._answers(written, names)
        if DIED in answers.values():
            answers = {name: self._answers(written, [name])[name] for name in names}
        return [found for name in names for found in judge(written, name, answers[name])]

    def read(self, written: Written, name: str) -> Any:
        """A reader's rows, or its error as a text."""
        return self._answers(written, [name])[name]

    def _answers(self, written: Written, names: Sequence[str]) -> dict[str, Any]:
        if self._programs is None:
            self._programs = Programs(self._python)
        answers = self._programs.read(written, names, written.root.parent.parent / "answers.pickle")
        if DIED in answers.values():
            self.close()
        return answers

    def close(self) -> None:
        """End the process."""
        if self._programs is not None:
            self._programs.close()
        self._programs = None


def written_in(story: Story, folder: Path) -> Written:
    """The story, written below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = Written.at(story, folder)
    asyncio.run(write(written))
    return written
