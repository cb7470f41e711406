"""What is written of metrics is what is measured: the page, the dashboard, the alert rules, and every measure in the code."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from tidemark.shared.model.spans import BOUNDS_MS, Spans
from tidemark.shared.process.health import families
from tidemark.shared.runtime.measures import METRICS, Measure

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
FUNCTIONS = {
    "and", "avg", "by", "histogram_quantile", "increase", "max", "on", "or", "rate", "sum", "vector", "le",
    "process_resident_memory_bytes", "job", "m", "__rate_interval",
}  # fmt: skip


def expressions() -> list[str]:
    """Of all panels and rules."""
    board = json.loads((MONITORING / "dashboard.json").read_text())
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    panels = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return panels + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def series() -> dict[str, tuple[str, ...]]:
    """Every name that a scrape can have, with its labels."""
    found: dict[str, tuple[str, ...]] = {}
    for name, metric in METRICS.items():
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found |= {f"tidemark_{name}{end}": metric.labels for end in ends}
    return found


def test_the_page_lists_every_metric() -> None:
    """Name, kind, labels and meaning of each, and of no other."""
    rows = re.findall(
        r"^\| `tidemark_(\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*?) \|$",
        (ROOT / "docs" / "metrics.md").read_text(),
        re.MULTILINE,
    )
    told = {name: (kind, tuple(re.findall(r"`(\w+)`", labels)), of, text) for name, kind, labels, of, text in rows}
    assert told == {name: (m.kind, m.labels, m.of, m.text) for name, m in METRICS.items()}


@pytest.mark.parametrize("expression", expressions())
def test_dashboard_and_alerts_ask_for_what_there_is(expression: str) -> None:
    """Each name is a metric's, of a histogram with its end, and each label one that the metric has."""
    plain = re.sub(r'"[^"]*"', "", expression)
    names = set(re.findall(r"[A-Za-z_]\w*", plain))
    asked = {name for name in names if name.startswith("tidemark_")}
    assert asked | {"process_resident_memory_bytes"} & names
    assert asked <= series().keys()
    labels = {label for name in asked for label in series()[name]}
    assert names - asked - FUNCTIONS <= labels
    for selected, body in re.findall(r"(tidemark_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*=", body)) <= set(series()[selected])
    assert ("histogram_quantile" in names) == any(name.endswith("_bucket") for name in asked)
    counters = {name for name in asked if name.endswith(("_total", "_bucket"))} - {"tidemark_processor_state"}
    assert not counters or {"rate", "increase"} & names, "a counter says something by its growth alone"


def measured() -> Iterator[tuple[str, str]]:
    """(file, name) of each measure that the code makes."""
    for path in [*(ROOT / "shared").rglob("*.py"), *(ROOT / "services").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Measure":
                yield str(path.relative_to(ROOT)), ast.unparse(node.args[0]).strip("'")


def test_every_measure_is_declared_and_every_declared_one_is_measured() -> None:
    """No figure without kind and meaning, and none that is only promised."""
    made = {name for _, name in measured() if not name.startswith("f")}
    counted = re.findall(
        r'^    \(["\w]+, "(\w+)", \S+\),$', (ROOT / "shared/runtime/measures.py").read_text(), re.MULTILINE
    )
    assert made | {f"task_{name}" for name in counted} == set(METRICS)


def test_a_histogram_counts_up_to_each_bound() -> None:
    """A span on a bound is within it; one beyond all is in the last; sum and count are of all."""
    spans = Spans()
    for span in (0, BOUNDS_MS[0], BOUNDS_MS[0] + 1, BOUNDS_MS[-1] + 1, -3):
        spans.add(span)
    registry = CollectorRegistry()

    class Given(Collector):
        def collect(self) -> Iterator[object]:  # type: ignore[override]
            yield from families([Measure("checkpoint_seconds", spans, {"processor": "p"})])

    registry.register(Given())
    text = generate_latest(registry).decode()
    shown = [("0.005", 3.0), ("0.01", 4.0), ("86400.0", 4.0), ("+Inf", 5.0)]
    for line in (*(f'le="{bound}",processor="p"}} {count}' for bound, count in shown), '_count{processor="p"} 5.0'):
        assert line in text, line
    assert f'_sum{{processor="p"}} {(2 * BOUNDS_MS[0] + 1 + BOUNDS_MS[-1] + 1) / 1000}' in text


def test_labels_are_those_declared() -> None:
    """A figure with another label than its metric's is a fault that names both."""
    with pytest.raises(ValueError, match="checkpoint_seconds: expected the labels"):
        list(families([Measure("checkpoint_seconds", Spans(), {"vertex": "v"})]))
