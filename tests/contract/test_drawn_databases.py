"""A database that lives while Tidemark works with it: the short form of `make databases`."""

from pathlib import Path

import pytest

from tests.harness.databases.__main__ import PARTS, SERVER, told
from tests.harness.postgres import postgres_server

pytestmark = [pytest.mark.asyncio, pytest.mark.postgres, pytest.mark.filterwarnings("ignore:Did not recognize type")]
_SEEDS = {"changes": range(2, 3), "targets": range(1, 5)}


async def test_drawn_stories_of_a_database(tmp_path: Path) -> None:
    """Events are those that each committed transaction made; what fits is in the table once, and what does not is told by its column."""
    with postgres_server(SERVER) as server:
        for part in PARTS:
            assert await told(part, _SEEDS[part], server, tmp_path) == []
