"""`python -m tests.harness.bench.peers.plotted out/bench/peers.json FOLDER`: the table and the plots of a run, for `tests/bench/README.md`.

One plot of the rates and one of the processor time an event, a group of bars a shape, from the run's first linger and number of partitions.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import figure as figures

from tests.harness.bench.peers.shapes import SHAPES

_NAMES: Final = {"tidemark": "Tidemark", "flink": "Flink", "streams": "Kafka Streams", "spark": "Spark"}
_COLOURS: Final = {"tidemark": "#1f5fa8", "flink": "#ef8a17", "streams": "#2e8b57", "spark": "#8a94a0"}
_WORDS: Final = {
    "map": "$addFields, topic to topic",
    "map-1k": "$addFields, documents of 1 KiB",
    "window": "count and sum, 1,000 keys",
    "window-1k": "count and sum, documents of 1 KiB",
    "window-100k": "count and sum, 100,000 keys",
    "hop": "hopping, a minute by ten seconds",
    "join": "join with itself, then count and sum",
    "staged": "$match, $addFields, $project, window",
}
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "peers",
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> str:
    """A row a measurement, in Markdown."""
    lines = [
        "| row | system | events/s | first result | MiB, broker included | us an event | load |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    before = ""
    for row in rows:
        shape = row["shape"]
        parts: Counter[str] = Counter()
        for place, us in row["us_by_part"].items():
            parts[_part(place)] += us
        told = ", ".join(f"{name} {us:.1f}" for name, us in parts.most_common() if us >= 0.05)
        up = " (up)" if row["system"] == "tidemark" else ""
        first = f"{row['first_s']:.1f} s{up}"
        words = re.sub(r"(\$\w+)", r"`\1`", _WORDS[shape]) if shape != before else ""
        us = f"{_us(row):.1f}: {told}"
        cells = [
            words,
            _NAMES[row["system"]],
            f"{row['events_per_s']:,}",
            first,
            f"{row['rss_mib']:,}",
            us,
            f"{row['load']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        before = shape
    return "\n".join(lines)


def _part(place: str) -> str:
    """A process as people call it: `sink-0 python` is the sink, a peer's own program goes by its name."""
    name = place.split(maxsplit=1)[0].removesuffix("-0")
    return _NAMES.get(name, name)


def _us(row: Row) -> float:
    return float(sum(row["us_by_part"].values()))


def plot(rows: Sequence[Row], path: Path, title: str, *, of: str) -> None:
    """Bars of `rate` (thousand events/s) or `us` (an event), a group a shape, with the rate's aim where a shape has one."""
    shapes = [shape for shape in SHAPES if any(row["shape"] == shape for row in rows)]
    systems = [system for system in _NAMES if any(row["system"] == system for row in rows)]
    with mpl.rc_context(_STYLE):
        figure: Any = figures.Figure(figsize=(9, 1.2 + 0.75 * len(shapes)), layout="constrained")
        axes = figure.add_subplot()
        high = 0.8 / len(systems)
        for place, system in enumerate(systems):
            found = {row["shape"]: row for row in rows if row["system"] == system}
            at = [y - 0.4 + (place + 0.5) * high for y, shape in enumerate(shapes) if shape in found]
            there = [found[shape] for shape in shapes if shape in found]
            values = [row["events_per_s"] / 1_000 if of == "rate" else _us(row) for row in there]
            bars = axes.barh(at, values, high * 0.9, color=_COLOURS[system], label=_NAMES[system])
            axes.bar_label(
                bars, [f"{value:,.0f}" if of == "rate" else f"{value:.1f}" for value in values], padding=3, fontsize=8
            )
        axes.set_yticks(range(len(shapes)), [_WORDS[shape] for shape in shapes])
        axes.invert_yaxis()
        axes.set_xlabel("thousand events/s" if of == "rate" else "us of processor time an event, all processes")
        axes.set_title(title, loc="left", fontsize=11)
        axes.legend(loc="lower right")
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """Read, draw, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("found", type=Path)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    found = json.loads(asked.found.read_text())
    first = found["rows"][0]
    same = [r for r in found["rows"] if (r["linger_ms"], r["partitions"]) == (first["linger_ms"], first["partitions"])]
    where = f"{first['partitions']} partitions, linger {first['linger_ms']} ms"
    plot(same, asked.folder / "peers-rate.svg", f"Results a second, {where}", of="rate")
    plot(same, asked.folder / "peers-time.svg", f"Processor time, {where}", of="us")
    print(*(f"{name}: {value}" for name, value in found["machine"].items()), "", table(found["rows"]), sep="\n")


if __name__ == "__main__":
    main()
