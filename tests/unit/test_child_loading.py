"""What a computation's child loads reserves no gigabyte of the memory that bounds users' code: no machine code, no columns of Arrow's."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import pyarrow as pa
import tidemark.services.operator.child
from tidemark.shared.operators.base import ARRIVAL, PART, POS, TS
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import LATE, LATE_CODE, RowFailure, dead_letters

cells = {name: pa.array([1], kind) for name, kind in ((TS, "int64"), (PART, "int32"), (POS, "int64"), (ARRIVAL, "int64"))}
letters = dead_letters(batch_of([{"k": 1}], cells), [RowFailure(0, LATE, LATE_CODE)], "$compute", TaskContext("p", topic="t"))
print(len(letters), *sys.modules)
"""
ROOT = Path(__file__).parents[2]
LOADING = """
import importlib
import pathlib
import pyarrow as pa

root = pathlib.Path("ROOT")
paths = [path for top in ("services/operator", "shared") for path in sorted((root / top).rglob("*.py"))]
names = [path.relative_to(root).with_suffix("").parts for path in paths]
for name in names:
    if name[-1] != "__main__":
        importlib.import_module(".".join(("tidemark", *name)).removesuffix(".__init__"))
        if pa.default_memory_pool().max_memory():
            print(".".join(name))
            break
else:
    print(len(names), "modules")
"""


def said(script: str) -> list[str]:
    """The words that a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    return done.stdout.split()


def test_a_child_loads_no_machine_code() -> None:
    """Neither to begin nor to write a dead letter does it take compiled readers and writers."""
    letters, *modules = said(SCRIPT)
    assert letters == "1"
    assert "tidemark.services.operator.child" in modules
    assert [name for name in modules if name.startswith(("tidemark.shared.compiled", "numba", "llvmlite"))] == []


def test_no_module_makes_columns_when_it_is_loaded() -> None:
    """Arrow's allocator reserves a gigabyte at its first byte, in a child's server before the child chooses another."""
    first, *modules = said(LOADING.replace("ROOT", str(ROOT)))
    assert modules == ["modules"], f"{first} makes columns when it is loaded"
    assert int(first) > 300
