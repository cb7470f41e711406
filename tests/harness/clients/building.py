"""Fetches and builds the clients by the ordinary tools of their languages: Go, Cargo, npm, Maven and javac, pip."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.harness.clients.running import HERE
from tidemark.services.local.jars import ensure_jars

BUILT: Final = Path(__file__).resolve().parents[3] / ".tidemark" / "clients"
_PYTHON: Final = "confluent-kafka==2.16.1"
_STEPS_S: Final = 3_000.0
"""For one step: Rust compiles a hundred crates."""


def _run(words: Sequence[str], folder: Path, more: Mapping[str, str] | None = None) -> None:
    sys.stdout.write(f"{' '.join(words)}\n")
    sys.stdout.flush()
    subprocess.run(words, cwd=folder, check=True, timeout=_STEPS_S, env={**os.environ, **(more or {})})


def build(built: Path = BUILT) -> Path:
    """All clients, in a folder; what is there and current stays."""
    for name in ("go", "node", "rust", "java", "maven"):
        (built / name).mkdir(parents=True, exist_ok=True)
    _run(["go", "build", "-o", str(built / "go" / "clients"), "."], HERE / "go")
    shutil.copytree(HERE / "rust", built / "rust", dirs_exist_ok=True)  # Cargo writes its lock beside the manifest
    _run(["cargo", "build", "--release", "--target-dir", str(built / "rust")], built / "rust")
    shutil.copy(HERE / "node" / "package.json", built / "node" / "package.json")
    _run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], built / "node")
    jars = ":".join(map(str, ensure_jars()))
    _run(["javac", "-cp", jars, "-d", str(built / "java"), str(HERE / "java" / "Clients.java")], HERE)
    jars_of_programs = built / "maven" / "jars"
    output = f"-Dmdep.outputFile={jars_of_programs}"
    _run(["mvn", "-q", "-B", "-f", str(HERE / "maven" / "pom.xml"), "dependency:build-classpath", output], HERE)
    words = ["javac", "-cp", jars_of_programs.read_text().strip(), "-d", str(built / "maven")]
    _run([*words, str(HERE / "java" / "Counting.java")], HERE)
    if not (built / "python").exists():
        _run([sys.executable, "-m", "venv", str(built / "python")], HERE)
        _run([str(built / "python" / "bin" / "python"), "-m", "pip", "install", "-q", _PYTHON], HERE)
    return built
