"""Recorded answers of brokers with what clients of other languages wrote: a source has the records that Kafka's own client reads there."""

import pytest

from tests.harness.clients.recording import Recording, recordings, replayed

RECORDED = recordings()


@pytest.mark.parametrize("max_bytes", [1, 10**9], ids=["batch by batch", "at once"])
@pytest.mark.parametrize("recording", RECORDED, ids=lambda recording: recording.name)
def test_a_source_has_the_records_that_kafkas_client_reads(recording: Recording, max_bytes: int) -> None:
    """Offsets, times, keys and values of each client, compression and format of messages."""
    assert replayed(recording, max_bytes) == list(recording.rows)


def test_recordings_have_what_is_rare() -> None:
    """Each compression in each format, aborted transactions, and messages whose times are the broker's or missing."""
    formats = {(a.data[16], a.data[22] & 7 if a.data[16] == 2 else a.data[17] & 7) for r in RECORDED for a in r.answers}
    assert formats == {(2, codec) for codec in range(5)} | {(old, codec) for old in (0, 1) for codec in range(4)}
    assert sum(bool(answer.aborted) for recording in RECORDED for answer in recording.answers) > 3
    assert any(row.time_ms == -1 for recording in RECORDED for row in recording.rows)
