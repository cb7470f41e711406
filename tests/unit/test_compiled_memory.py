"""Compiled code writes into what its caller holds, and nowhere else: other threads go on beside it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOM = Path(__file__).parents[2] / "shared" / "compiled"
STORY = """
import threading
import numpy as np, pyarrow as pa
from tidemark.shared.compiled import documents
from tidemark.shared.operators.rendered import rendered
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.language.values import encode_value
from tidemark.shared.operators.base import RAW, REST

text = b'{"a": {"b": [1, {"c": "e\\\\n"}]}, "d": 1.5}'
texts = pa.array([text] * 40_000, pa.binary())
packed = pa.array([encode_value({"a": {"b": [1]}, "d": 1.5})] * 40_000, pa.binary())
batches = [pa.RecordBatch.from_arrays([pa.array([1] * 40_000), c], names=["x", n]) for c, n in ((texts, RAW), (packed, REST))]
WORK = {
    "json": lambda: documents.read(texts, [("a", "b"), ("d",)]),
    "packed": lambda: documents.read_packed(packed, [("a", "b"), ("d",)]),
    "rendered": lambda: [rendered(batch) for batch in batches],
    "encoded": lambda: [encoded(batch) for batch in batches],
}
done = threading.Event()

def read():
    for _ in range(6):
        WORK[WHICH]()
    done.set()

threading.Thread(target=read).start()
held = [np.zeros(n, np.uint8) for n in (8, 16, 48, 96, 1024, 24_024, 32_032, 32_776) for _ in range(4)]
while not done.wait(0.0005):
    assert not any(each.any() for each in held), "somebody else wrote here"
    held = [np.zeros(len(each), np.uint8) for each in held]
"""


@pytest.mark.parametrize("which", ["json", "packed", "rendered", "encoded"])
def test_readers_and_writers_leave_the_memory_of_other_threads_alone(which: str) -> None:
    """With one heap for all threads, as the services nearly have it: what another thread takes meanwhile stays as that one wrote it."""
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-c", STORY.replace("WHICH", repr(which))]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr


def compiled_functions() -> list[tuple[str, ast.FunctionDef]]:
    """All that is compiled, by file."""
    found = []
    for path in sorted(ROOM.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            marks = {
                getattr(d.func if isinstance(d, ast.Call) else d, "id", "") for d in getattr(node, "decorator_list", [])
            }
            if isinstance(node, ast.FunctionDef) and marks & {"compiled", "part", "rare"}:
                found.append((path.name, node))
    return found


def test_compiled_code_makes_no_arrays() -> None:
    """CC5: what `borrowed` lends has a holder outside; of an array made inside nobody would know that it is still in use."""
    made = [
        f"{name}:{call.lineno}"
        for name, function in compiled_functions()
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("empty", "zeros", "ones", "full")
    ]
    assert len(compiled_functions()) > 20
    assert made == []
