"""A split that was idle is away until every receiver that could judge its rows has read of its return."""

from tidemark.shared.model.ids import EdgeId, Epoch, SplitId
from tidemark.shared.runtime.ahead import Returns

EDGE, OTHER, SPLIT = EdgeId("a>b"), EdgeId("a:dlq>dlq"), SplitId("t-0")


def returns() -> Returns:
    return Returns(frozenset({(EDGE, 0), (EDGE, 1), (OTHER, 0)}))


def test_every_receiver_has_to_have_taken_the_epoch_of_the_return() -> None:
    """Reports of earlier epochs, and of some receivers only, say nothing yet; then the highest watermark of all counts, once."""
    waits = returns()
    waits.heard(EDGE, 0, Epoch(6), 900)
    waits.note({SPLIT: 1}, Epoch(7))
    waits.heard(EDGE, 0, Epoch(7), 1_000)
    waits.heard(EDGE, 1, Epoch(6), 5_000)
    waits.heard(OTHER, 0, Epoch(8), 10)
    assert list(waits.reported()) == []
    waits.heard(EDGE, 1, Epoch(7), 5_500)
    assert list(waits.reported()) == [(SPLIT, 5_500)]
    waits.note({SPLIT: 1}, Epoch(9))
    assert list(waits.reported()) == []


def test_a_second_return_waits_anew() -> None:
    """A split that was idle again meanwhile waits for the epoch of its last return."""
    waits = returns()
    waits.note({SPLIT: 1}, Epoch(3))
    waits.note({SPLIT: 2}, Epoch(5))
    for place in waits.places:
        waits.heard(*place, Epoch(4), 100)
    assert list(waits.reported()) == []
    for place in waits.places:
        waits.heard(*place, Epoch(5), 200)
    assert list(waits.reported()) == [(SPLIT, 200)]


def test_a_late_report_takes_nothing_back() -> None:
    """Reports may repeat and come out of order."""
    waits = returns()
    waits.note({SPLIT: 1}, Epoch(3))
    for place in waits.places:
        waits.heard(*place, Epoch(4), 100)
        waits.heard(*place, Epoch(2), 90)
    assert list(waits.reported()) == [(SPLIT, 100)]
