"""A computation's child loads no machine code: it would reserve a gigabyte of the memory that bounds users' code."""

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
from tidemark.shared.operators.dead_letters import LATE, LATE_CODE, Failure, dead_letters

cells = {name: pa.array([1], kind) for name, kind in ((TS, "int64"), (PART, "int32"), (POS, "int64"), (ARRIVAL, "int64"))}
letters = dead_letters(batch_of([{"k": 1}], cells), [Failure(0, LATE, LATE_CODE)], "$compute", TaskContext("p", topic="t"))
print(len(letters), *sys.modules)
"""


def test_a_child_loads_no_machine_code() -> None:
    """Neither to begin nor to write a dead letter does it take compiled readers and writers."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    letters, *modules = done.stdout.split()
    assert letters == "1"
    assert "tidemark.services.operator.child" in modules
    assert [name for name in modules if name.startswith(("tidemark.shared.compiled", "numba", "llvmlite"))] == []
