"""Where figures were taken: a figure without its machine, versions and command says nothing."""

import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path

import psutil

_PACKAGES = ("tidemark", "pyspark", "aiokafka", "pyarrow", "numba", "numpy", "msgspec")


def described() -> dict[str, str]:
    """Machine, versions and command."""
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.platform()}",
        "versions": f"Python {platform.python_version()}, {versions}, Kafka {_broker()}",
        "command": " ".join(sys.orig_argv),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _broker() -> str:
    lock = Path(__file__).resolve().parents[3] / "deploy" / "broker" / "jars.lock"
    names = re.search(r"org\.apache\.kafka:kafka_[\d.]+:([\d.]+)", lock.read_text())
    return names[1] if names else "unknown"
