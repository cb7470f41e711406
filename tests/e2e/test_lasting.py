"""Failures that last and failures that pass, drawn at random, with real servers: the short form of `make lasting`."""

from pathlib import Path

import pytest

from tests.harness.lasting.kinds import Delta, FilesTarget, Sqlite
from tests.harness.lasting.running import Case, cases, drawn
from tests.harness.lasting.sqls import Changes, PostgresLookup, PostgresTarget
from tests.harness.lasting.webs import HttpsLookup, HttpsTarget
from tests.harness.lasting.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]

_KINDS = (Delta, FilesTarget, Sqlite, PostgresTarget, PostgresLookup, Changes, HttpsLookup, HttpsTarget)
_SILENT = "silent"
"""Such a server is known by the time that it takes."""


async def test_what_lasts_is_told_from_what_passes(tmp_path: Path) -> None:
    """Each of eight cases ends as its failure does, with a reason that names the place; what was mended goes on exactly."""
    async with World(tmp_path) as world:
        chosen: list[Case] = []
        seed = 1
        while len(chosen) < 8:
            case = await drawn(seed, world, _KINDS)
            chosen += [case] if case.trouble != _SILENT and case not in chosen else []
            seed += 1
        assert await cases(chosen, world) == []
