"""Watermarks, idleness, processing time, end of input: W1, W3, W5, E1."""
# ruff: noqa: N802 -- a test carries its rule's name

import pytest

from tests.harness.task_story import (
    Answers,
    Barrier,
    BrokerHas,
    Durable,
    End,
    Expect,
    Holds,
    MayRead,
    Produces,
    Rows,
    Says,
    emission,
    play,
    started,
    task,
    ticked,
)
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.protocol.errors import LocalError, PeerError
from tidemark.shared.protocol.watermarks import InputProgress, all_idle, combined_watermark

ENDS = ("watermark max to 0", "end to 0", "ended")


# --- W1 ------------------------------------------------------------------------------------------------------------------


def test_W1_an_input_watermark_never_falls() -> None:
    """A lower watermark on a channel changes nothing."""
    play(
        task(),
        Says(0, 9),
        Says(0, 5),
        Rows(0, "a", watermark=7),
        Says(0, 10),
        Expect("advance 9", "apply a", "advance 10"),
    )


def test_W1_a_channels_watermark_never_falls() -> None:
    """What a channel once said counts in the minimum, whatever it says later."""
    play(task(senders=2), Says(0, 9), Says(0, 5), Says(1, 7), Expect("advance 7"))


def test_W1_an_input_that_comes_back_does_not_lower_the_watermark() -> None:
    """An idle channel that is active again behind the others holds the watermark; it does not take it back."""
    play(
        task(senders=2),
        Says(0, 3, idle=True),
        Says(1, 9),
        Rows(0, "a"),
        Says(1, 12),
        Says(0, 10),
        Expect("advance 9", "apply a", "advance 10"),
    )


def test_W1_an_output_watermark_never_falls() -> None:
    """Whatever the operators say, what was once said stays."""
    play(
        task(source=True),
        Produces(["a"], watermark=9),
        Produces(["b"], watermark=5),
        ticked(1),
        Expect("a at 9 to 0", "b at 9 to 0"),
    )


def test_W1_a_watermark_goes_behind_all_that_it_lets_fire() -> None:
    """Rows first, on the partition that gets some; the others learn of it with the next tick."""
    play(
        task(receivers=2),
        Says(0, 5),
        ticked(1),
        ticked(2),
        Expect("advance 5", "fired at none to 1", "more at 5 to 1", "watermark 5 to 0"),
        emits={"advance 5": [emission("fired", 1), emission("more", 1)]},
    )


def test_W1_a_restored_task_says_no_lower_watermark() -> None:
    """Both watermarks go on from the snapshot, and its operators hear the restored one first."""
    first = play(task(), Says(0, 7), Barrier(0, 1), Durable(1), BrokerHas())
    start = task(generation=2, lineage=[(1, 0), (2, 1)], restored={0: first.snapshots[1]})
    story = play(start, Rows(0, "a", watermark=7), Says(0, 8), Expect("advance 7", "apply a", "x at 7 to 0", "advance 8"),
                 emits={"apply a": [emission("x")]}, log=first.log)  # fmt: skip
    assert story.sent[0].header.watermark_ms == 7


def test_W1_a_restored_source_says_no_lower_watermark() -> None:
    """Though it has read nothing yet."""
    first = play(task(source=True), Produces(watermark=5), started(1), Durable(1), BrokerHas())
    start = task(source=True, generation=2, lineage=[(1, 0), (2, 1)], restored={0: first.snapshots[1]})
    play(start, Produces(["a"]), Expect("a at 5 to 0"))


# --- W3 ------------------------------------------------------------------------------------------------------------------


def _inputs(*said: tuple[int, str]) -> list[InputProgress]:
    return [InputProgress(w, idle=how == "idle", ended=how == "ended") for w, how in said]


def test_W3_the_minimum_is_taken_over_those_neither_idle_nor_ended() -> None:
    """An idle or ended input holds nobody back."""
    assert combined_watermark(_inputs((5, ""), (7, ""))) == 5
    assert combined_watermark(_inputs((5, "idle"), (7, ""), (9, ""))) == 7
    assert combined_watermark(_inputs((5, "ended"), (7, ""), (9, "idle"))) == 7


def test_W3_without_an_active_input_the_highest_of_the_idle_counts() -> None:
    """Ended inputs do not raise it to the end while any idle one may come back."""
    assert combined_watermark(_inputs((5, "idle"), (7, "idle"), (MAX_TIME, "ended"))) == 7


def test_W3_tasks_that_hear_the_same_are_one_input() -> None:
    """The lowest of them holds rows that the others do not know of: it counts, idle or not, until all of them are idle beside another."""
    held, free = InputProgress(2, idle=True, together="join"), InputProgress(5, together="join")
    assert combined_watermark([held, free]) == 2
    free.idle = True
    assert combined_watermark([held, free]) == 2
    assert combined_watermark([held, free, InputProgress(4, idle=True)]) == 4
    assert combined_watermark([held, free, InputProgress(9)]) == 9
    free.idle = False
    assert combined_watermark([held, free, InputProgress(9)]) == 2
    held.ended = True
    assert combined_watermark([held, free]) == 5


def test_W3_an_idle_task_that_holds_rows_is_not_passed_by_those_that_hear_the_same() -> None:
    """Neither while they are active, nor once they are idle, nor after a restore; a source, which hears nothing, is."""
    said = Says(0, 2, idle=True), Says(1, 5)
    idle = Says(1, 5, idle=True), Expect("idle 2 to 0"), Says(0, 4, idle=True), Expect("advance 4")
    play(task(senders=2, sharing=True), *said, Expect("advance 2"), *idle)
    play(task(senders=2), *said, Expect("advance 5"))
    saved = play(task(senders=2, sharing=True), *said, Barrier(0, 1), Barrier(1, 1), Durable(1), BrokerHas()).snapshots
    again = play(task(senders=2, sharing=True, generation=2, lineage=[(1, 0), (2, 1)], restored={0: saved[1]}))
    assert [c.progress for c in again.machine.receiver.channels()] == [
        InputProgress(2, idle=True, together="up"),
        InputProgress(5, together="up"),
    ]


def test_W3_only_when_all_have_ended_is_it_the_end() -> None:
    """And a task without inputs of this kind has nothing to wait for."""
    assert combined_watermark(_inputs((5, "ended"), (7, "ended"))) == MAX_TIME
    assert combined_watermark([]) == MAX_TIME


def test_W3_an_input_at_the_end_of_time_does_not_speak_for_the_idle() -> None:
    """The maximum watermark comes in front of END; meanwhile an idle input may still come back with rows that are on time."""
    assert combined_watermark(_inputs((5, "idle"), (MAX_TIME, ""))) == 5
    play(
        task(senders=2),
        Says(0, 5, idle=True),
        Says(1, MAX_TIME),
        Expect("advance 5"),
        End(1),
        Rows(0, "a", watermark=6),
        End(0),
        Expect("idle 5 to 0", "apply a", "watermark 5 to 0", "advance 6", "advance max", *ENDS),
    )


def test_W3_the_end_of_time_is_the_end_of_input() -> None:
    """The operators hear of it once, when the last END has come."""
    play(task(senders=2), Says(0, MAX_TIME), Says(1, MAX_TIME), End(1), Expect(), End(0), Expect("advance max", *ENDS))


def test_W3_a_task_is_idle_when_all_inputs_are_idle_or_ended_but_not_all_ended() -> None:
    """Without inputs: idle."""
    assert all_idle(_inputs((5, "idle"), (7, "ended")))
    assert all_idle([])
    assert not all_idle(_inputs((5, "ended"), (7, "ended")))
    assert not all_idle(_inputs((5, "idle"), (7, "")))


def test_W3_idleness_is_handed_on() -> None:
    """All inputs idle: the receivers are told, on every partition; rows on one of them make the sender active there."""
    play(
        task(senders=2, receivers=2),
        Says(0, 4, idle=True),
        Expect(),
        Says(1, 6, idle=True),
        Expect("idle none to 0", "idle none to 1", "advance 6"),
        Rows(0, "a", watermark=6),
        Expect("apply a", "x at 6 to 0", "watermark 6 to 1"),
        emits={"apply a": [emission("x", 0)]},
    )


def test_W3_a_task_that_holds_rows_is_not_idle_before_its_epoch_ends() -> None:
    """Else receivers would be past them; behind the rows that the end of the epoch gives out it says that it is."""
    play(
        task(),
        Says(0, 4),
        Rows(0, "a", watermark=6),
        Says(0, 6, idle=True),
        Expect("advance 4", "apply a", "advance 6"),
        ticked(1),
        Expect("watermark 6 to 0"),
        Barrier(0, 1),
        Expect("flush 1", "x at 6 to 0", "idle 6 to 0", "snapshot 1 after 0", "barrier 1 after 0 to 0"),
        emits={"flush 1": [emission("x", 0)]},
        batches=True,
    )


def test_W3_a_source_that_goes_idle_and_comes_back_says_so() -> None:
    """Also when its watermark has not moved."""
    play(
        task(source=True),
        Produces(watermark=MIN_TIME, idle=True),
        Produces(watermark=MIN_TIME, idle=True),
        Produces(watermark=MIN_TIME),
        Expect("idle none to 0", "watermark none to 0"),
    )


def test_W3_rows_of_an_idle_source_are_followed_by_its_idleness() -> None:
    """A partition that saw rows takes the sender for active until it hears again."""
    play(
        task(source=True),
        Produces(idle=True),
        Produces(["a"], idle=True),
        ticked(1),
        Expect("idle none to 0", "a at none to 0", "idle none to 0"),
    )


def test_W3_an_ended_channel_holds_nobody_back() -> None:
    """END on one channel derives the watermark anew."""
    play(task(senders=2), Says(1, 8), Says(0, 3), End(0), Expect("advance 3", "advance 8"))


def test_W3_all_partitions_know_watermark_and_idleness_at_a_barrier() -> None:
    """In front of BARRIER n stands what a restored sender takes as told."""
    play(
        task(source=True, receivers=2),
        Produces(["a"], watermark=5),
        started(1),
        Expect(
            *("a at 5 to 0", "flush 1", "watermark 5 to 1", "snapshot 1 after 0"),
            *("barrier 1 after 0 to 0", "barrier 1 after 0 to 1"),
        ),
    )


# --- W5 ------------------------------------------------------------------------------------------------------------------


def test_W5_processing_time_never_falls() -> None:
    """A clock that goes back, or was ahead before a restore, does not take time back."""
    first = play(task(), ticked(9), ticked(5), Rows(0, "a"), ticked(8), ticked(12), Barrier(0, 1), Durable(1), BrokerHas(),
                 Expect("apply a", "fire 9", "fire 12", "flush 1", "snapshot 1 after 0", "barrier 1 after 0 to 0", "ack 1"),
                 timers=[7, 12])  # fmt: skip
    start = task(generation=2, lineage=[(1, 0), (2, 1)], restored={0: first.snapshots[1]})
    assert play(start, ticked(3)).machine.processing_time_ms == 12


def test_W5_timers_fire_when_they_are_due_and_not_before() -> None:
    """Nor twice, nor in the middle of other work."""
    play(
        task(),
        Rows(0, "a"),
        ticked(4),
        Holds(),
        Rows(0, "b"),
        ticked(5),
        Expect("apply a", "apply b"),
        Answers(go_on=True),
        ticked(6),
        Expect("fire 5"),
        timers=[5, 5],
    )


def test_W5_restored_timers_fire_though_no_input_comes() -> None:
    """The first tick after a restore asks the operators."""
    first = play(task(), Rows(0, "a"), Barrier(0, 1), Durable(1), BrokerHas(), timers=[50])
    start = task(generation=2, lineage=[(1, 0), (2, 1)], restored={0: first.snapshots[1]})
    play(start, ticked(40), ticked(45), ticked(50), Expect("fire 40", "fire 50"), timers=[50], log=first.log)


# --- E1 ------------------------------------------------------------------------------------------------------------------


def test_E1_the_end_fires_everything_before_the_next_barrier() -> None:
    """END on all channels: the maximum watermark, its output, END; only then the barrier's snapshot."""
    play(
        task(senders=2),
        End(0),
        Rows(1, "a"),
        Expect("apply a"),
        Barrier(0, 1),
        End(1),
        Barrier(1, 1),
        Expect(
            "advance max",
            "last at max to 0",
            "end to 0",
            "ended",
            "flush 1",
            "snapshot 1 after 0",
            "barrier 1 after 0 to 0",
        ),
        emits={"advance max": [emission("last")]},
    )


def test_E1_barriers_go_on_behind_the_end() -> None:
    """A task that has ended still takes part in every checkpoint, and reads no input."""
    taken = ("flush 1", "snapshot 1 after 0", "barrier 1 after 0 to 0")
    play(
        task(source=True),
        Produces(watermark=MAX_TIME, ended=True),
        MayRead(may=False),
        started(1),
        Expect(*ENDS, *taken),
    )
    play(task(), End(0), Barrier(0, 1), Expect("advance max", *ENDS, *taken))


def test_E1_no_timer_fires_behind_the_end() -> None:
    """A tick that falls into the last work finds nothing to do: END says that no rows follow."""
    play(
        task(),
        Rows(0, "a"),
        Holds(),
        End(0),
        ticked(10),
        Answers(go_on=True),
        ticked(11),
        Expect("apply a", "advance max", *ENDS),
        timers=[5, 5],
    )


def test_E1_rows_behind_the_end_are_a_mistake_on_either_side() -> None:
    """A peer's rows behind its END fail the task; our own operators' are refused."""
    with pytest.raises(PeerError, match=r"behind its END \(E1\)"):
        play(task(senders=2), End(0), Rows(0, "a"))
    with pytest.raises(LocalError, match=r"behind END \(E1\)"):
        play(task(), End(0), Barrier(0, 1), emits={"flush 1": [emission("x")]})


def test_E1_a_restored_end_stays() -> None:
    """A task that had ended at the checkpoint takes no input, says nothing again, and takes part in checkpoints."""
    first = play(task(source=True), Produces(watermark=MAX_TIME, ended=True), started(1), Durable(1), BrokerHas())
    start = task(source=True, generation=2, lineage=[(1, 0), (2, 1)], restored={0: first.snapshots[1]})
    play(
        start,
        MayRead(may=False),
        ticked(5),
        Expect(),
        started(2, 1),
        Expect("flush 2", "snapshot 2 after 1", "barrier 2 after 1 to 0"),
    )


def test_E1_input_behind_the_end_is_a_mistake() -> None:
    """A source that said it had ended produces nothing more."""
    with pytest.raises(LocalError, match="may not be read"):
        play(task(source=True), Produces(ended=True), Produces(["a"]))
