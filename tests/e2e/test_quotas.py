"""Quotas of a namespace change while records flow, on an installation of real processes; `tests/harness/quotas.py` draws more of it."""

from pathlib import Path

import pytest

from tests.harness.quotas import told
from tests.harness.share import CI

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]

_SEED = 2
"""Lowered with a kill of the leader and of the source, then taken away with a kill of the control service (in CI the first alone)."""


async def test_E4_a_changed_quota_is_followed_and_nothing_is_lost(tmp_path: Path) -> None:  # noqa: N802 -- a rule's name
    """Sources follow within seconds and use what they may, no processor begins anew for it, figures say who waits, the output is whole."""
    assert await told(_SEED, tmp_path, steps=1 if CI else 2) == []
