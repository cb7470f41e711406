"""Ranges of records that markers claim."""

import pytest

from tidemark.services.audit.history import AuditFailed
from tidemark.services.audit.outputs import _Owners
from tidemark.services.sink.connectors.kafkamarkers import WrittenRange
from tidemark.shared.model.ids import Epoch, Offset


def test_offsets_that_two_commits_claim_are_lost_records() -> None:
    """A leader that lacked records has given their offsets to later ones."""
    ranges = [(WrittenRange("out", 0, Offset(first), 10), Epoch(epoch)) for first, epoch in ((0, 1), (10, 2), (5, 3))]
    with pytest.raises(AuditFailed, match=r"out partition 0 offset 5: .*1 and 3 both claim it: the topic has lost"):
        _Owners(ranges)
