"""What people do to topics, drawn at random, on a real installation: the short form of `make topics`."""

from pathlib import Path

import pytest

from tests.harness.drawn_topics.running import stories
from tests.harness.share import share

pytestmark = pytest.mark.e2e

_SEEDS = {"growAndLose": 1, "anewRunning": 2, "outSmall": 3}
"""By what each begins with."""


@pytest.mark.parametrize("act", share(sorted(_SEEDS), 2))
async def test_topics_change_and_nothing_is_lost_without_a_word(tmp_path: Path, act: str) -> None:
    """Each record is in the output once, or the processor says what it could not read; and the audit accuses nothing."""
    assert await stories([_SEEDS[act]], tmp_path, at_once=1, act=act, acts=1) == {}
