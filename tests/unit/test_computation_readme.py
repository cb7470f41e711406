"""The README of `shared/computation` runs as it stands."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.shared.computation import Computation
from tidemark.shared.computation.base import NoConfig
from tidemark.shared.computation.harness import Harness

README = Path(__file__).parents[2] / "shared" / "computation" / "README.md"


@dataclass
class Total:
    """What the batch form's example keeps."""

    total: int = 0


def test_the_examples_run_and_hold_what_they_assert() -> None:
    """The class, its test with the harness, and the batch form give what the text says."""
    names: dict[str, Any] = {
        "dataclass": dataclass, "Computation": Computation, "NoConfig": NoConfig, "Harness": Harness, "Total": Total,
        "pa": pa, "np": np, "__name__": __name__,
    }  # fmt: skip
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    h = Harness(names["Sums"], key="k")
    for at, value in enumerate([3, 4, 5]):
        h.record({"k": 1, "v": value}, at)
    h.end()
    assert [d["total"] for d in h.documents] == [3, 7, 12]
