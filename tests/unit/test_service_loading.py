"""What a service does not need its process does not load: a hundred megabytes and a second of each start."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from tidemark.shared.process import host

def serve(build):
    import pyarrow as pa
    assert pa.array([1, None]).null_count == 1
    print(build.__module__, *sys.modules)
    return 0

host.serve = serve
import tidemark.services.SERVICE.__main__
"""


@pytest.mark.parametrize("service", ["coordinator", "source", "operator", "sink"])
def test_a_process_loads_neither_compiler_nor_data_frames(service: str) -> None:
    """Numba is for who compiles, and pandas for who asks for data frames; Arrow would load it with the first list."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("SERVICE", service)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    built, *modules = done.stdout.split()
    assert built == f"tidemark.services.{service}.service"
    assert [name for name in modules if name in ("numba", "pandas", "llvmlite.binding")] == []


FORKING = """
import asyncio, signal, sys, threading
from tidemark.services.local.fork_server import load
from tidemark.services.local.supervisor import CONTROL, SERVICES
load([*SERVICES, CONTROL])
import pyarrow as pa
print(pa.default_memory_pool().max_memory(), threading.active_count(), asyncio._get_running_loop(), signal.getsignal(signal.SIGTERM))
print(*sys.modules)
"""


def test_what_is_forked_has_no_thread_and_no_column_of_the_servers() -> None:
    """A thread is not there after a fork, and its locks stay taken; Arrow's memory would be another for each. And no library of Spark's."""
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, env=env)
    made, loaded = done.stdout.splitlines()
    assert made == "0 1 None 0"
    assert {
        f"tidemark.services.{service}.service" for service in ("coordinator", "source", "operator", "sink", "control")
    } <= {*loaded.split()}
    assert {"numba", "pandas", "llvmlite.binding", "pyspark", "faust"}.isdisjoint(loaded.split())


READING = """
import sys
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from tidemark.shared.adapters.kafka_reader import Batches

data = b""
for codec in (0, 1):
    made = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    made.append(0, 5, None, b"value" * 100, [])
    data += bytes(made.build())
batches = Batches(MemoryRecords(data), None)
while batches.has_next():
    for record in batches.next_batch():
        assert record.value == b"value" * 100
        print(record.timestamp)
print(*sys.modules)
"""


def test_a_reader_of_single_records_loads_no_machine_code() -> None:
    """Who reads the internal topics alone, as a coordinator does, needs no compiled function, and so no LLVM: it is 50 MiB."""
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", READING], capture_output=True, text=True, check=True, env=env)
    first, second, modules = done.stdout.split("\n", 2)
    assert (first, second) == ("5", "5")
    assert not [name for name in modules.split() if name.startswith("llvmlite")]


IN_PROCESS = """
import sys
from tidemark.shared.process import host
host.serve = lambda build: 0
try:
    import tidemark.services.operator.__main__
except SystemExit:
    pass
try:
    import pandas
except ModuleNotFoundError as error:
    print(error)
host.allow_pandas()
import pandas
print(pandas.__name__)
"""


def test_users_code_in_the_operators_process_has_pandas() -> None:
    """It is kept from Arrow's search alone, and only where users' code runs in processes of its own."""
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout.splitlines() == [
        "pandas is not for the processes of services; users' code has it in a process of its own",
        "pandas",
    ]
