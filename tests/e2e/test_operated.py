"""What operators do to an installation that stays, right and wrong, drawn from a seed: the short form of `make operated`."""

from pathlib import Path

import pytest

from tests.harness.operated.story import told
from tests.harness.share import CI

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]

_SEED = 1
_ACTS = 4 if CI else 8
"""Of each of three processors' operators, before all drain and are compared; the installation ends and begins again in between."""


async def test_operators_are_answered_and_nothing_is_lost(tmp_path: Path) -> None:
    """By the command line, REST and messages: each answer is true, and says what is wrong; each record counts once."""
    asker = await told(_SEED, tmp_path, _ACTS)
    assert asker.faults == []
