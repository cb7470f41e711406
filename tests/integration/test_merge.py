"""`$merge` through the real services: a table holds what the stream said last of each row, however many tasks write it."""

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.harness.installation import NAME, installed
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor

BATCHES = 10
KEYS = 7


def _add(path: Path, numbers: range) -> None:
    with path.open("a") as out:
        for number in numbers:
            event = {"t": 1_700_000_000_000 + number, "name": f"n{number % KEYS}", "level": number}
            out.write(json.dumps(event) + "\n")


def _document(folder: Path, url: str) -> dict[str, Any]:
    return {
        "name": NAME,
        "connections": {"table": {"type": "sql", "url": url}},
        "pipeline": [
            {
                "$source": {
                    "path": str(folder / "in.json"),
                    "format": "json",
                    "follow": True,
                    "timeField": {"$toDate": {"$toLong": "$t"}},
                }
            },
            {"$project": {"name": 1, "level": 1}},
            {
                "$merge": {
                    "into": {"connectionName": "table", "table": "levels"},
                    "on": ["name"],
                    "whenMatched": "replace",
                }
            },
        ],
        "options": {"checkpoint": {"interval": {"size": 100, "unit": "ms"}}},
    }


@pytest.mark.parametrize("sinks", [1, 3])
async def test_the_last_word_on_a_row_stays(tmp_path: Path, sinks: int) -> None:
    """Rows of one key reach the table in their order, with one sink task and with three."""
    url = f"sqlite:///{tmp_path}/target.db"
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("create table levels (name text primary key, level integer)"))
    (tmp_path / "in.json").touch()

    # The machine's time: releases of several tasks wait for one another's locks, on threads.
    async with installed(SystemClock(), AsyncExecutor()) as there:
        await there.create(_document(tmp_path, url), sink=sinks)
        await there.start()
        for batch in range(BATCHES):
            _add(tmp_path / "in.json", range(batch * KEYS, (batch + 1) * KEYS))
            await there.committed(1)
        assert (await there.stop(drain=True)).state == "FINISHED"
    with sa.create_engine(url).connect() as connection:
        rows = connection.execute(sa.text("select name, level from levels")).all()
    assert {row.name: row.level for row in rows} == {f"n{n % KEYS}": n for n in range(BATCHES * KEYS)}
