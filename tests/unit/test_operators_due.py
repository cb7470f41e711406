"""What is noted about times stays as small as what counts of it."""

from tidemark.shared.computation.timers import Timers
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.operators.computation_keys import Due


def test_DU1_a_key_is_noted_under_its_last_time_alone() -> None:  # noqa: N802
    """Earlier and later times that were taken back are passed over; what was taken is noted no more."""
    due = Due()
    for key, time_ms in ((b"b", 5), (b"a", 9), (b"b", 7), (b"c", 1), (b"a", 6), (b"c", None)):
        due.note(key, time_ms)
    assert due.first_ms() == 6
    assert due.keys() == {b"a", b"b"}
    assert due.take(7) == {b"a": 6}
    assert due.take(8) == {b"b": 7}
    assert (due.first_ms(), due.take(MAX_TIME)) == (MAX_TIME, {})


def test_DU2_what_was_forgotten_takes_no_room_for_long() -> None:  # noqa: N802
    """A key whose time moves to and fro behind one that stands leaves no trail."""
    due = Due()
    due.note(b"first", 0)
    for number in range(10_000):
        due.note(b"moved", 10 + number % 2)
    assert len(due) < 100
    assert due.first_ms() == 0
    assert due.take(12) == {b"first": 0, b"moved": 11}


def test_a_timer_that_is_moved_again_and_again_takes_no_room_for_long() -> None:
    """Behind a timer that is due first, others may be set anew as often as there are records; the order stays."""
    timers = Timers()
    timers.begin(0, None)
    timers.set("first", 1)
    for number in range(10_000):
        timers.set("moved", 10_000 + number)
    assert len(timers._heap) < 100
    for wanted in ("first", "moved"):
        found = timers.first("event")
        assert found is not None
        assert found.name == wanted
        timers.take(found)
    assert timers.first("event") is None
