# ruff: noqa: N802 -- a test carries its rule's name
"""Requests, the end of input, starts without state: rules E1 to E3; and how requests are answered."""

from itertools import pairwise

import pytest

from tests.unit.protocol_coordinator_support import DOCUMENT, NAME, Fate
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.ids import Epoch, ProcessorName, VertexId
from tidemark.shared.model.messages import (
    CreateProcessor,
    Drain,
    DropProcessor,
    ForgetCheckpoint,
    KeepCheckpoint,
    ModifyProcessor,
    Request,
    SkipRelease,
    StartProcessor,
    StartSources,
    StopProcessor,
)
from tidemark.shared.model.processors import document_digest
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.wire.messages import encode_message

EMIT = VertexId("emit")


def answers(world: World) -> dict[str, str]:
    """Of the first coordinator."""
    return world.nodes[0].answers


def drained(world: World) -> None:
    """Drain the processor and wait."""
    world.request(StopProcessor("drain", NAME, drain=True))
    world.pass_ms(3_000)


def test_E1_finished_only_when_the_final_checkpoint_is_released() -> None:
    """The commit that covers END everywhere is not enough: its output must be out."""
    world = started()
    world.pass_ms(1_500)
    world.releasing = False
    drained(world)
    final = world.store.history[world.row.job][-1]
    assert final.final
    assert world.row.state != "FINISHED"
    world.releasing = True
    world.pass_ms(300)
    assert world.row.state == "FINISHED"
    assert world.judge.outputs[world.row.job, EMIT, 0][-1] == final.epoch


def test_E1_a_checkpoint_that_not_every_task_had_ended_in_is_not_final() -> None:
    """Barriers go on until END is covered everywhere."""
    world = started(parallelism={"source": 2})
    world.pass_ms(1_500)
    _, task = world.holder("read", 0)
    task.draining = True
    world.pass_ms(2_000)
    assert world.row.state == "RUNNING"
    assert not any(c.final for c in world.store.history[world.row.job])


def test_E1_no_checkpoint_follows_the_final_one() -> None:
    """Nothing is left to take one of."""
    world = started()
    world.pass_ms(1_500)
    world.releasing = False
    drained(world)
    world.pass_ms(5_000)
    assert [c.final for c in world.store.history[world.row.job]].count(True) == 1


def test_E1_a_final_commit_is_released_after_a_failure() -> None:
    """If tasks are lost between the final commit and its release, a generation that only releases follows."""
    world = started()
    world.pass_ms(1_500)
    world.releasing = False
    drained(world)
    world.fail("emit")
    world.releasing = True
    world.pass_ms(2_000)
    assert world.row.state == "FINISHED"
    assert [a.release_only for a in world.assigned(2).values()] == [True]
    assert len(world.said(StartSources)) == 1


def test_E2_a_drain_is_told_again_after_recovery() -> None:
    """It is durable: each generation of a draining processor hears of the same ends."""
    world = started()
    world.pass_ms(1_500)
    world.acking = lambda _: False
    world.request(StopProcessor("drain", NAME, drain=True, until={"t-0": 500}))  # type: ignore[dict-item]
    world.settle()
    world.fail("count")
    world.pass_ms(1_000)
    told = [(c.generation, c.splits["t-0"].end) for c in world.said(Drain)]  # type: ignore[union-attr,index]
    assert told == [(1, 500), (2, 500)]


def test_E2_a_drained_processor_cannot_be_resumed() -> None:
    """It has finished; it can be started without state."""
    world = started()
    world.pass_ms(1_500)
    drained(world)
    world.request(StartProcessor("again", NAME))
    world.settle()
    assert "finished" in answers(world)["again"]
    old = world.row.job
    world.request(StartProcessor("anew", NAME, resume=False))
    world.pass_ms(2_000)
    assert answers(world)["anew"] == ""
    assert world.row.job != old
    assert world.row.state == "RUNNING"


def test_E2_a_stop_without_drain_waits_for_what_it_committed() -> None:
    """STOPPED when the checkpoint that it took is released, or after a while all the same."""
    world = started(CoordinatorSettings(stop_release_wait_ms=3_000))
    world.pass_ms(1_500)
    world.releasing = False
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(2_000)
    assert world.row.state != "STOPPED"
    world.pass_ms(2_000)
    assert world.row.state == "STOPPED"


def test_E2_a_start_without_state_first_releases_what_is_committed() -> None:
    """A generation that only releases, under the old job id; then a new job id, checkpoint 0, a lineage of its own."""
    world = started(CoordinatorSettings(stop_release_wait_ms=500))
    world.pass_ms(1_500)
    world.releasing = False
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(2_000)
    old = world.row.job
    world.request(StartProcessor("anew", NAME, resume=False))
    world.pass_ms(1_000)
    assert world.row.job == old
    assert [a.release_only for a in world.assigned(2).values()] == [True]
    world.releasing = True
    world.pass_ms(1_000)
    assert world.judge.outputs[old, EMIT, 0] == [1, 2]
    assert world.row.job != old
    assert [(e.generation, e.restored_from) for e in world.store.lineages[world.row.job]] == [(3, 0)]
    assert {a.job for a in world.assigned(3).values()} == {world.row.job}
    assert all(not a.handles and a.new_identity == (a.vertex == "emit") for a in world.assigned(3).values())


def test_E2_a_drain_asked_for_while_the_old_life_is_released_is_of_the_new_one() -> None:
    """The new life ends its input as soon as it runs."""
    world = started(CoordinatorSettings(stop_release_wait_ms=500))
    world.pass_ms(1_500)
    world.releasing = False
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(2_000)
    world.request(StartProcessor("anew", NAME, resume=False))
    world.pass_ms(1_000)
    world.request(StopProcessor("drain", NAME, drain=True))
    world.settle()
    world.releasing = True
    world.pass_ms(3_000)
    assert [c.job for c in world.said(Drain)] == [world.row.job]  # type: ignore[union-attr]
    assert world.row.state == "FINISHED"


def test_E2_of_the_old_life_nothing_stays() -> None:
    """Its topics, blobs and commit rows go."""
    world = started(CoordinatorSettings(cleanup_interval_ms=100))
    world.pass_ms(1_500)
    old, topics = world.row.job, set(world.topics)
    world.request(StopProcessor("stop", NAME))
    world.settle()
    world.request(StartProcessor("anew", NAME, resume=False))
    world.pass_ms(2_000)
    assert not topics & world.topics.keys()
    assert not [b for b in world.blobs if b.startswith(old)]
    assert not world.store.commits[old]


def test_E2_numbers_go_on_over_a_start_without_state() -> None:
    """A new life does not use a number of the old one."""
    world = started()
    world.pass_ms(1_500)
    world.request(StopProcessor("stop", NAME))
    world.settle()
    world.request(StartProcessor("anew", NAME, resume=False))
    world.pass_ms(2_000)
    assert world.store.history[world.row.job][0].epoch == 65
    assert world.store.history[world.row.job][0].predecessor == 0


def test_E3_a_change_waits_for_a_checkpoint() -> None:
    """The new generation is restored from a commit made after the request."""
    world = started()
    world.pass_ms(1_500)
    world.acking = lambda _: False
    world.request(ModifyProcessor("change", NAME, None, {"emit": 2}))
    world.pass_ms(1_500)
    assert answers(world)["change"] == ""
    assert world.row.generation == 1
    world.acking = lambda _: True
    world.pass_ms(65_000, 500)
    assert world.row.plan_version == 2


def test_E3_a_change_outlives_the_leader() -> None:
    """It lies in the row until a generation runs it."""
    world = started()
    world.pass_ms(1_500)
    world.acking = lambda _: False
    world.request(ModifyProcessor("change", NAME, None, {"emit": 2}))
    world.settle()
    world.crash_node(world.nodes[0])
    world.acking = lambda _: True
    world.lead()
    world.pass_ms(3_000)
    assert world.row.plan_version == 2
    assert world.row.parallelism == {"emit": 2}


def test_E3_a_refused_change_changes_nothing() -> None:
    """The planner's reason is the answer."""
    world = started()
    world.request(ModifyProcessor("change", NAME, "bad", None))
    world.pass_ms(1_500)
    assert answers(world)["change"] == "pipeline[0]: no such stage"
    assert world.row.plan_version == 1


def test_E3_a_change_made_from_a_document_that_is_there_no_more_is_refused() -> None:
    """One of two people at it is told; so is the one who changes a document while the other's change waits. Task counts are none of it."""
    world, other = started(), DOCUMENT + " "
    old, new = document_digest(DOCUMENT), document_digest(other)
    world.pass_ms(1_500)
    world.acking = lambda _: False
    world.request(ModifyProcessor("first", NAME, other, replaces=old))
    world.request(ModifyProcessor("second", NAME, DOCUMENT, replaces=old))
    world.pass_ms(1_500)
    world.acking = lambda _: True
    world.pass_ms(65_000, 500)
    assert world.row.plan_version == 2
    world.request(ModifyProcessor("third", NAME, DOCUMENT, replaces=old))
    world.request(ModifyProcessor("tasks", NAME, None, {"emit": 2}))
    world.pass_ms(3_000)
    world.request(ModifyProcessor("fourth", NAME, DOCUMENT, replaces=new))
    world.pass_ms(3_000)
    found = answers(world)
    assert (found["first"], found["tasks"], found["fourth"]) == ("", "", "")
    assert "another one waits for the next checkpoint" in found["second"]
    assert "it has another one now" in found["third"]


def test_E2_a_request_about_a_job_that_is_there_no_more_is_refused() -> None:
    """From an old page nobody stops, changes or drops a processor that has got the name since, or that has begun anew."""
    world = started()
    old = world.row.job
    world.request(StopProcessor("right", NAME, job=old))
    world.pass_ms(2_000)
    world.request(DropProcessor("drop", NAME, job=old))
    world.pass_ms(2_000)
    world.request(CreateProcessor("made anew", NAME, DOCUMENT, {}))
    world.pass_ms(1_000)
    late: tuple[Request, ...] = (
        StartProcessor("late start", NAME, job=old),
        StopProcessor("late stop", NAME, job=old),
        ModifyProcessor("late modify", NAME, None, {"emit": 2}, job=old),
        DropProcessor("late again", NAME, job=old),
        SkipRelease("late skip", NAME, Epoch(1), job=old),
        KeepCheckpoint("late keep", NAME, "k", job=old),
        ForgetCheckpoint("late forget", NAME, "k", job=old),
    )
    for request in late:
        world.request(request)
    world.pass_ms(2_000)
    found = answers(world)
    assert (found["right"], found["drop"], found["made anew"]) == ("", "", "")
    assert all("since you looked" in found[request.request] for request in late)
    assert (world.row.state, world.row.plan_version) == ("CREATED", 1)


def test_a_change_without_state_needs_a_stop() -> None:
    """And then the next start is one without state, by the new plan."""
    world = started()
    world.pass_ms(1_500)
    world.request(ModifyProcessor("change", NAME, None, {"emit": 2}, resume_from_checkpoint=False))
    world.settle()
    assert "stop it" in answers(world)["change"]
    old = world.row.job
    world.request(StopProcessor("stop", NAME))
    world.settle()
    world.request(ModifyProcessor("change-2", NAME, None, {"emit": 2}, resume_from_checkpoint=False))
    world.request(StartProcessor("start-2", NAME))
    world.pass_ms(1_000)
    assert answers(world)["change-2"] == answers(world)["start-2"] == ""
    assert world.row.job != old
    assert world.row.plan_version == 2


def test_a_repeated_request_is_answered_and_not_carried_out_again() -> None:
    """Also by a new leader, which reads the old requests anew."""
    world = started()
    world.pass_ms(1_500)
    world.request(StopProcessor("stop", NAME))
    world.settle()
    world.request(StartProcessor("start-2", NAME))
    world.pass_ms(500)
    world.crash_node(world.nodes[0])
    world.lead()
    answers(world).clear()
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(1_000)
    assert answers(world)["stop"] == ""
    assert world.row.desired == "running"


def test_an_answer_comes_after_the_effect_is_durable() -> None:
    """While the write is unanswered so is the request."""
    world = started()
    world.fate = lambda c: None if isinstance(c, do.StoreUpdate) else "done"
    world.request(StopProcessor("stop", NAME))
    world.settle()
    assert "stop" not in answers(world)
    world.fate = lambda _: "done"
    world.settle()
    assert answers(world)["stop"] == ""


def test_requests_wait_while_leadership_is_retaken() -> None:
    """None is lost between an ambiguous answer and the new term."""
    world = started()
    node = world.nodes[0]
    world.fate = lambda c: None if isinstance(c, do.StoreUpdate) else "done"
    world.request(StopProcessor("stop", NAME))
    update = next(c for c in node.todo if isinstance(c, do.StoreUpdate))
    world.give(node, ev.StoreAmbiguous(world.now_ms, update.op))
    world.request(ModifyProcessor("change", NAME, "bad"))
    world.fate = lambda _: "done"
    world.pass_ms(2_000)
    assert answers(world)["stop"] == ""
    assert "no such stage" in answers(world)["change"]
    assert world.row.state == "STOPPED"


def test_unknown_and_taken_names_are_refused() -> None:
    """Each with a sentence that names it."""
    world = started()
    world.request(StartProcessor("nobody", "other"))  # type: ignore[arg-type]
    world.request(CreateProcessor("taken", NAME, DOCUMENT))
    world.settle()
    assert "no processor named other" in answers(world)["nobody"]
    assert "flights exists" in answers(world)["taken"]


def test_a_running_processor_is_not_dropped() -> None:
    """It must be stopped first."""
    world = started()
    world.request(DropProcessor("drop", NAME))
    world.settle()
    assert "stop it" in answers(world)["drop"]


def test_a_drop_is_finished_by_the_next_leader() -> None:
    """The row goes last, so that whatever is left behind is still known."""
    world = started()
    world.pass_ms(1_500)
    world.request(StopProcessor("stop", NAME))
    world.settle()
    world.fate = lambda c: None if isinstance(c, (do.DeleteBlobs, do.DeleteTopics)) else "done"
    world.request(DropProcessor("drop", NAME))
    world.settle()
    assert world.row.desired == "dropped"
    world.crash_node(world.nodes[0])
    world.fate = lambda _: "done"
    world.lead()
    world.settle()
    assert (world.store.rows, world.topics, world.blobs) == ({}, {}, {})


def test_C12_the_row_of_a_dropped_processor_goes_behind_all_that_it_names() -> None:
    """One deletion that has not been answered keeps the row: what is left would be nobody's."""
    world = started()
    world.pass_ms(1_500)
    world.request(StopProcessor("stop", NAME))
    world.settle()
    world.fate = lambda c: None if isinstance(c, do.DeleteBlobs) else "done"
    world.request(DropProcessor("drop", NAME))
    world.pass_ms(1_000)
    assert (world.topics, world.row.desired) == ({}, "dropped")
    assert "drop" not in answers(world)
    world.fate = lambda _: "done"
    world.settle()
    assert (world.store.rows, answers(world)["drop"]) == ({}, "")


def _created_again(world: World, *, one_leader: bool) -> None:
    """Drop the processor and create another one of its name, under one leader or each under its own."""
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(2_000)
    world.request(DropProcessor("drop", NAME))
    world.settle()
    if not one_leader:
        world.lead()
        world.request(DropProcessor("drop", NAME))
        world.settle()
    world.request(CreateProcessor("again", NAME, DOCUMENT, {}))
    world.settle()
    assert answers(world)["again"] == ""


@pytest.mark.parametrize("one_leader", [True, False])
def test_C8_a_drop_that_was_decided_does_not_drop_the_next_of_the_name(one_leader: bool) -> None:
    """Its request lies there until the leader deletes it: another leader reads it again, when the name has another processor."""
    world = started()
    world.pass_ms(1_500)
    _created_again(world, one_leader=one_leader)
    job = world.row.job
    world.lead()
    world.request(DropProcessor("drop", NAME))
    world.request(CreateProcessor("again", NAME, DOCUMENT, {}))
    world.pass_ms(1_000)
    assert (world.row.job, world.row.desired) == (job, "stopped")


def _untold(world: World, *requests: Request, behind: type = do.Answer) -> None:
    """All of these are carried out as far as may be while none of these commands is, and then the leader dies."""
    world.fate = lambda c: None if isinstance(c, (do.Answer, behind)) else "done"
    for request in requests:
        world.request(request)
        world.pass_ms(2_000)
    world.crash_node(world.nodes[0])
    world.fate = lambda _: "done"
    world.lead()


@pytest.mark.parametrize("behind", [do.Answer, do.StoreDrop, do.DeleteTopics])
def test_C8_a_drop_whose_answer_was_lost_is_answered_alike_by_the_next_leader(behind: type) -> None:
    """And what came before it: the processor is gone, and nothing is said to be unknown, refused or done anew."""
    world = started()
    asked = (StopProcessor("stop", NAME), DropProcessor("drop", NAME))
    _untold(world, *asked, behind=behind)
    for request in asked:
        world.request(request)
    world.pass_ms(1_000)
    assert (answers(world)["stop"], answers(world)["drop"], world.store.rows) == ("", "", {})


def test_C8_what_was_created_and_dropped_unheard_is_not_created_again() -> None:
    """All requests of a short life are read once more by the next leader, in their order; it takes none that brokers have an answer to."""
    world = World()
    world.lead()
    asked = (CreateProcessor("create", NAME, DOCUMENT, {}), DropProcessor("drop", NAME))
    _untold(world, *asked)
    jobs = {row.job for row in world.store.rows.values()}
    for request in asked:
        if request.request not in answers(world):
            world.request(request)
        world.settle()
        jobs |= {row.job for row in world.store.rows.values()}
    assert (answers(world), world.store.rows, len(jobs)) == ({"create": "", "drop": ""}, {}, 1)


@pytest.mark.parametrize("reads", [False, True])
def test_C8_the_row_of_a_dropped_processor_goes_behind_its_answers(reads: bool) -> None:
    """The next leader, too, tells those of the last one first, and the drop's when all is gone, whether it reads the request or not."""
    world = started()
    drop = DropProcessor("drop", NAME)
    _untold(world, StopProcessor("stop", NAME), drop)
    assert world.row.desired == "dropped"
    world.fate = lambda c: None if isinstance(c, do.DeleteBlobs) else "done"
    if reads:
        world.request(drop)
    world.pass_ms(1_000)
    assert "drop" not in answers(world)
    world.fate = lambda c: None if isinstance(c, do.StoreDrop) else "done"
    world.pass_ms(1_000)
    assert (answers(world)["stop"], answers(world)["drop"], world.row.desired) == ("", "", "dropped")
    world.fate = lambda _: "done"
    world.settle()
    assert (world.store.rows, world.status) == ({}, {})


@pytest.mark.parametrize("held", [do.DeleteTopics, do.StoreDrop])
def test_C8_what_is_asked_while_a_row_is_deleted_is_decided_behind_it(held: type) -> None:
    """It waited behind the drop's write: a creation makes the next of the name, everything else finds none. Nothing is said to be done."""
    world = started()
    world.pass_ms(1_500)
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(2_000)
    job = world.row.job
    world.fate = lambda c: None if isinstance(c, held) else "done"
    world.request(DropProcessor("drop", NAME))
    world.pass_ms(1_000)
    world.request(StopProcessor("late stop", NAME))
    world.request(ModifyProcessor("late change", NAME, DOCUMENT, None))
    world.request(CreateProcessor("again", NAME, DOCUMENT, {}))
    assert {"late stop", "late change", "again"}.isdisjoint(answers(world))
    world.fate = lambda _: "done"
    world.settle()
    assert (answers(world)["drop"], answers(world)["again"]) == ("", "")
    assert "no processor named flights" in answers(world)["late stop"]
    assert "no processor named flights" in answers(world)["late change"]
    assert world.row.job != job


def test_a_drop_whose_deletions_fail_is_tried_again_after_a_while_and_says_why() -> None:
    """A folder that cannot be written, or brokers that refuse, are not asked without a pause; when they let it, all goes."""
    world = started()
    world.pass_ms(1_500)
    world.request(StopProcessor("stop", NAME))
    world.settle()
    asked: list[int] = []

    def fate(command: do.CoordinatorCommand) -> Fate:
        if not isinstance(command, do.DeleteTopics):
            return "done"
        asked.append(world.now_ms)
        return "lost"

    world.fate = fate
    world.request(DropProcessor("drop", NAME))
    world.pass_ms(3_000)
    pauses = [after - before for before, after in pairwise(asked)]
    assert len(asked) > 1
    assert min(pauses) >= world.settings.retry_ms
    assert world.status[NAME].reason == "waits until an outage is over: no broker"
    world.fate = lambda _: "done"
    world.pass_ms(1_000)
    assert (world.store.rows, world.topics, answers(world)["drop"]) == ({}, {}, "")


def test_a_refusal_that_quotes_much_is_told_in_part() -> None:
    """An answer, and a status with the last of them, are messages of the brokers: what was asked could make them too large for ever."""
    world = started()
    most = world.settings.reason_characters_max
    for number in range(3):
        world.request(ModifyProcessor(f"change-{number}", NAME, "bad" + "x" * 900_000))
        world.settle()
        world.request(SkipRelease(f"skip-{number}", NAME, Epoch(1), VertexId("x" * 900_000)))
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(3_000)
    world.request(SkipRelease("skip", NAME, Epoch(1), VertexId("x" * 900_000)))
    world.request(StartProcessor("none", ProcessorName("x" * 900_000)))
    world.settle()
    assert max(map(len, answers(world).values())) <= most + 40
    assert answers(world)["skip"].endswith("characters in all)")
    assert len(encode_message(world.status[NAME])) < 10_000


def test_a_processor_that_begins_again_says_why() -> None:
    """Also where it had committed, so that nothing is counted, and where a worker was lost; no more when it runs."""
    world = started()
    world.pass_ms(2_500)
    world.fail("count")
    world.settle()
    shown = world.status[NAME]
    assert (shown.state, shown.reason) == ("STARTING", "begins again: task count/0: it broke")
    world.pass_ms(1_000)
    shown = world.status[NAME]
    assert (shown.state, shown.reason) == ("RUNNING", "")


def test_a_new_leader_counts_changes_of_state_on() -> None:
    """What rests is shown as before, with the same number; what runs is shown as starting, with the next."""
    world = started()
    world.pass_ms(1_500)
    running = world.status[NAME].changes
    world.crash_node(world.nodes[0])
    world.lead()
    world.settle()
    assert (world.status[NAME].state, world.status[NAME].changes) == ("STARTING", running + 1)
    world.pass_ms(1_500)
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(3_000)
    stopped = world.status[NAME]
    world.crash_node(world.nodes[0])
    world.lead()
    world.settle()
    assert world.status[NAME] == stopped
    assert stopped.changes == running + 4, "starting, running, stopping, stopped"


def test_E2_a_start_behind_a_change_without_state_does_not_drain_again() -> None:
    """The drain was of the life before: what starts anew runs, as it does by a start without state."""
    world = started()
    world.pass_ms(1_500)
    drained(world)
    old = world.row.job
    world.request(ModifyProcessor("change", NAME, None, {"emit": 2}, resume_from_checkpoint=False))
    world.settle()
    world.request(StartProcessor("anew", NAME))
    world.pass_ms(2_000)
    assert (answers(world)["change"], answers(world)["anew"]) == ("", "")
    assert world.row.job != old
    assert (world.row.desired, world.row.state) == ("running", "RUNNING")


def test_a_draining_processor_that_was_stopped_drains_on() -> None:
    """A stop interrupts a drain; the next start goes on with it."""
    world = started()
    world.pass_ms(1_500)
    world.acking = lambda _: False
    world.request(StopProcessor("drain", NAME, drain=True))
    world.settle()
    world.request(StopProcessor("stop", NAME))
    world.settle()
    world.fail("count")
    world.pass_ms(500)
    assert world.row.state == "STOPPED"
    world.acking = lambda _: True
    world.request(StartProcessor("again", NAME))
    world.pass_ms(3_000)
    assert world.row.state == "FINISHED"
    assert world.row.last > Epoch(1)
