"""What a command does not need it does not load: seconds of start-up and a hundred megabytes are paid by who uses them."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "pandas",
    "numpy",
    "pyarrow",
    "sqlalchemy",
    "aiokafka",
    "fsspec",
    "requests",
    "jgo",
    "structlog",
    "pyspark",
    "faust",
)
LANGUAGE = ("yaml", "re2", "tidemark.shared.language.documents", "tidemark.shared.planning")
SCRIPT = """
import sys
from tidemark.services.cli.__main__ import main
sys.argv = ["tidemark", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    print(f"status {ended.code}", file=sys.stderr)
print("loaded", *sys.modules, file=sys.stderr)
"""


def loaded(folder: Path, *command: str) -> tuple[str, set[str]]:
    """What a command said, and the modules of its process, a fresh one."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "TIDEMARK_CONTROL": ""},
        cwd=folder,
    )
    said, _, modules = done.stderr.rpartition("loaded ")
    return done.stdout + said, set(modules.split())


@pytest.mark.parametrize(
    ("command", "says", "absent"),
    [
        (["--help"], "Usage", (*HEAVY, *LANGUAGE)),
        (["departures", "--help"], "Usage", (*HEAVY, *LANGUAGE)),
        (["processors"], "no control service runs", (*HEAVY, *LANGUAGE)),
        (["status", "p"], "no control service runs", (*HEAVY, *LANGUAGE)),
        (["--version"], "tidemark 0.", (*HEAVY, *LANGUAGE)),
        (["schema"], '"title": "Tidemark processor"', HEAVY),
        (["validate", "p.yaml"], "2 stages, no errors", HEAVY),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_loads_what_it_needs(tmp_path: Path, command: list[str], says: str, absent: tuple[str, ...]) -> None:
    """Asking what runs or checking a document takes no data frames, no database, no broker's client."""
    (tmp_path / "p.yaml").write_text(
        "connections: {k: {type: kafka, bootstrapServers: 'b:1'}}\n"
        "pipeline: [{$source: {connectionName: k, topic: t}}, {$emit: {connectionName: k, topic: o}}]"
    )
    said, modules = loaded(tmp_path, *command)
    assert says in said
    assert "tidemark.services.cli.__main__" in modules
    assert sorted(modules.intersection(absent)) == []


RUN = """
import asyncio, sys
from tidemark.services.cli.run import check_surroundings, read_document, parse
from tidemark.services.local.jars import ensure_jars
from pathlib import Path
processor = parse(read_document(Path("p.yaml")))
asyncio.run(check_surroundings(processor))
ensure_jars()
print("loaded", *sys.modules)
"""


def test_a_run_loads_the_clients_of_places_that_its_document_names(tmp_path: Path) -> None:
    """Of files: no database's, no web client, nor what fetches jars that are there."""
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "p.yaml").write_text(
        "pipeline: [{$source: {path: 'a*.json', format: json}}, {$emit: {path: o, format: json}}]"
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, check=True, env=env, cwd=tmp_path
    )
    modules = set(done.stdout.split())
    assert "tidemark.services.source.connectors.filecursors" in modules
    absent = (
        "sqlalchemy",
        "psycopg",
        "pymongo",
        "deltalake",
        "pyiceberg",
        "jgo",
        "requests",
        "pandas",
        "numba",
        "pyspark",
    )
    assert modules.intersection((*absent, "tidemark.services.sink.connecting", "tidemark.services.operator")) == set()
