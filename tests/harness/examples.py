"""The example pipelines of `deploy/pipelines` over little data, each as it stands in the repository: for tests that run all of them."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.deploy.pipelines.counts import data as counts
from tidemark.deploy.pipelines.departures.data import departures
from tidemark.deploy.pipelines.sessions import data as sessions
from tidemark.deploy.pipelines.validation import data as validation
from tidemark.deploy.pipelines.weather import data as weather
from tidemark.deploy.pipelines.weblog import data as weblog
from tidemark.shared.language.documents.load import load
from tidemark.shared.language.values import to_json
from tidemark.shared.model.values import Document

FOLDER = Path(__file__).parents[2] / "deploy" / "pipelines"
_WITHOUT = ("dlqTime", "_stream_meta", "processorName", "instanceName")


@dataclass(frozen=True)
class Example:
    """A document, and who writes its data into a folder; `sources` are the files of each source, a split a file."""

    name: str
    write: Callable[[Path], Any]
    sources: tuple[tuple[str, ...], ...]

    def tree(self) -> dict[str, Any]:
        """The document; where it reads a topic, it reads files with the topic's records instead."""
        tree, _ = load((FOLDER / self.name / "pipeline.yaml").read_text())
        source = tree["pipeline"][0]["$source"]
        if "topic" in source:
            del source["topic"], source["config"]
            source |= {"connectionName": "data", "path": f"{self.name}-*.jsonl", "format": "json", "ordered": False}
            tree["connections"]["data"] = {"type": "files", "path": "${DATA}"}
        return dict(tree)

    def splits(self, folder: Path) -> list[list[list[bytes]]]:
        """By source and split: the records that `write` has written."""
        return [[(folder / name).read_bytes().splitlines() for name in names] for names in self.sources]


def _departures(folder: Path) -> None:
    for number, records in enumerate(departures(days=4).partitions):
        (folder / f"departures-{number}.jsonl").write_bytes(b"".join(value + b"\n" for _, value in records))


EXAMPLES: Mapping[str, Example] = {
    e.name: e
    for e in (
        Example("departures", _departures, (tuple(f"departures-{n}.jsonl" for n in range(4)),)),
        Example("weather", lambda folder: weather.write(folder, 2), (("departures.jsonl",), ("measurements.jsonl",))),
        Example("sessions", lambda folder: sessions.write(folder, 8), (("mobile.jsonl",), ("console.jsonl",))),
        Example("counts", lambda folder: counts.write(folder, 1_500), (("clicks.jsonl",),)),
        Example("validation", lambda folder: validation.write(folder, 400), (("readings.jsonl",),)),
        Example("weblog", lambda folder: weblog.write(folder, 800), (("access.jsonl",),)),
    )
}


def rows(documents: Iterable[Document]) -> Counter[str]:
    """Outputs as multisets."""
    return Counter(json.dumps(to_json(d, canonical=True), sort_keys=True) for d in documents)


def letters(documents: Iterable[Document]) -> Counter[str]:
    """Dead letters without what belongs to the run: when it was, and how its positions are counted."""
    return rows({n: v for n, v in d.items() if n not in _WITHOUT} for d in documents)
