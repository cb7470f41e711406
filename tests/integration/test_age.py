# ruff: noqa: N802 -- a test carries its rule's name
"""Time to lead, to restore and what is kept depend on what lives, not on how long it has lived (C9, C11, L1)."""

from tests.harness.ageing import cost, taken_over
from tests.harness.keeping import growth, kept
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings


def test_C9_a_year_of_commits_costs_what_an_hour_costs() -> None:
    """Leaders and sinks read the mirror from the oldest commit that waits; dead generations and old commits are forgotten."""
    young, old = cost(200_000, 2), cost(31_500_000, 2)
    assert old == young
    assert old.rows < 1_000
    assert old.mirrored < 2 * (CoordinatorSettings().mirror_rows_kept + 100), "what audits go on from"
    assert (old.lineage <= 2 * 10, old.retained <= 2 * 10) == (True, True)


def test_C8_a_lease_is_renewed_while_a_long_mirror_is_read_and_taken_over() -> None:
    """A leader that reads for many leases keeps its own; when it is cut off, the next reads all of it again, leads, and commits."""
    found = taken_over(31_500_000, 60_000)
    assert found.leases == 2
    assert (found.first >= 30_000, found.second >= 60_000) == (True, True)
    assert found.lead_ms > 2 * CoordinatorSettings().lease_ms
    assert found.commits > 2


def test_C12_what_is_kept_does_not_grow_with_the_epochs() -> None:
    """Of objects in each process, records on the brokers, rows of the store, blobs and manifests: less than one in two commits."""
    few, many = kept((100, 300))
    assert growth(few, many, 100) == {}
