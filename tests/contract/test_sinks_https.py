# ruff: noqa: N802 -- a test carries its rule's name
"""`$https` at the end of a pipeline: sent once committed, under keys that stay; refusals, outages, crashes between part and marker."""

from dataclasses import replace
from typing import Any

import pytest

from tests.contract.sinks_targets import HttpsWorld, expression
from tidemark.services.library.release_world import IDENTITY, Task, World, batch_of, row_of
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.stages import HttpsEmit
from tidemark.shared.model.ids import Epoch
from tidemark.shared.planning import plan_processor
from tidemark.shared.ports.http import ServerAway
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable


def keys_of(target: HttpsWorld) -> list[str]:
    """The keys of all requests, in their order."""
    return [dict(request.headers)["Idempotency-Key"] for request in target.server.requests]


async def started(target: HttpsWorld) -> Task:
    """A task that has three rows committed and not yet released."""
    task = Task(World(target))
    await task.start()
    for step in (task.accept, task.stage, task.commit):
        await step()
    return task


async def test_S8_a_request_holds_what_the_document_decides() -> None:
    """Path, query, headers and body are worked out before staging; the connection's headers, which may be secret, are not staged."""
    target = HttpsWorld()
    target.stage = replace(
        target.stage,
        subpath=expression({"$concat": ["rows/", "$name"]}),
        parameters=(("even", expression("$even")),),
        headers=(("X-Id", expression({"$toString": "$id"})),),
    )
    task = await started(target)
    assert not any(b"secret" in data for data in target.blobs.objects.values())
    assert b"secret" not in task.world.commits[0][1]
    await task.release()
    request = min(target.server.requests, key=lambda each: each.url)
    headers = dict(request.headers)
    assert (request.method, request.url) == ("POST", "http://server/v1/rows/n0?even=true")
    assert (headers["X-Id"], headers["X-Key"], headers["Content-Type"]) == ("0", "secret", "application/json")
    assert len(set(keys_of(target))) == len(target.server.requests) == 3


async def test_S8_an_outage_sends_the_rest_under_the_same_keys() -> None:
    """A lost answer is an outage; the release goes on, and only requests without an answer are sent again."""
    target = HttpsWorld(part_requests=3)
    target.stage = replace(target.stage, parallelism=1)
    task = await started(target)
    target.server.fails = [200, ServerAway("the answer is lost")]
    with pytest.raises(TargetUnavailable, match="the answer is lost"):
        await task.release()
    await task.release()
    await task.world.complete()
    first, lost, again, last = keys_of(target)
    assert lost == again
    assert len({first, lost, last}) == 3


async def test_S8_a_crash_between_a_part_and_its_marker_repeats_that_part_alone() -> None:
    """The next holder begins behind the last marker, and tells the server what it was told, under the same keys."""
    target = HttpsWorld(part_requests=2)
    task = await started(target)

    async def dies(*_: Any) -> None:
        raise ConnectionError

    write = task.sink._write  # type: ignore[attr-defined]
    parts: list[int] = []

    async def once(writer: Any, marker: Any, *rest: Any) -> Any:
        parts.append(marker.part)
        return await (write if marker.part == 1 else dies)(writer, marker, *rest)

    task.sink._write = once  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        await task.release()
    assert (parts, len(target.server.requests)) == ([1, 2], 3)
    later = Task(task.world)
    await later.start()
    await later.world.complete()
    keys = keys_of(target)
    assert len(keys) == 4
    assert keys[3] == keys[2]
    assert len(set(keys)) == 3


async def test_S8_rows_that_come_again_have_other_keys() -> None:
    """An epoch that was not committed was not sent: its rows have the keys of the attempt that is."""
    target = HttpsWorld()
    task = Task(World(target))
    await task.start()
    await task.accept()
    await task.stage()
    later = Task(task.world)
    await later.start()
    await later.epoch()
    await later.world.complete()
    assert all(key.startswith("a1-") for key in keys_of(target))


@pytest.mark.parametrize("status", [400, 404, 413])
async def test_S6_a_refused_request_is_what_the_document_says(status: int) -> None:
    """fail: the release stops, and names commit, part and row; by a user's order it is passed over and counted. ignore: so at once."""
    target = HttpsWorld()
    task = await started(target)
    target.server.fails = [200, status]
    with pytest.raises(TargetRefused, match=f"commit 1, part 1: .*row 1: .*status {status}"):
        await task.release()
    target.server.fails = [status]
    assert await task.sink.skip(*task.world.commits[0]) == 1
    assert await target.visible() == [0, 2]
    other = HttpsWorld(on_error="ignore")
    other.server.fails = [status]
    await (await started(other)).release()
    assert await other.visible() == [1, 2]


@pytest.mark.parametrize(("status", "requests"), [(401, 1), (302, 1), (500, 3)])
async def test_S6_a_status_that_speaks_of_all_stops_the_release(status: int, requests: int) -> None:
    """A wrong password, a redirect, a server that fails again and again: whatever onError says; a user may order to go on."""
    target = HttpsWorld(on_error="ignore")
    target.stage = replace(target.stage, parallelism=1)
    task = await started(target)
    patient = task.sink._asking  # type: ignore[attr-defined]
    patient._settings = replace(patient._settings, wait_ms_max=60_000)
    target.server.fails = [status] * requests
    with pytest.raises(TargetRefused, match=f"status {status}"):
        await task.release()
    assert len(target.server.requests) == requests
    target.server.fails = [status] * requests
    assert await task.sink.skip(*task.world.commits[0]) == 1


async def test_S6_a_document_that_makes_no_request_is_found_before_staging() -> None:
    """A path that leads up, a value that is no text, an expression that fails: the row is refused with the reason."""
    target = HttpsWorld()
    path = {"$switch": {"branches": [{"case": {"$eq": ["$id", 0]}, "then": "../x"}, {"case": "$even", "then": "$id"}]}}
    target.stage = replace(target.stage, subpath=expression(path))
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    rejected = await sink.accept(batch_of(range(3)))
    assert [each.row for each in rejected] == [0, 1, 2]
    for each, why in zip(rejected, ("found a path with ..", "$switch", "found a value of type"), strict=True):
        assert why in each.reason
    handle = await sink.stage(Epoch(1), Epoch(0))
    await sink.release(row_of(1, 0, handle), handle)
    assert target.server.requests == []


def document(**options: Any) -> dict[str, Any]:
    """A pipeline that ends with `$https`."""
    connections = {"k": {"type": "kafka", "bootstrapServers": "b:1"}, "api": {"type": "https", "url": "http://api"}}
    stages = [{"$source": {"connectionName": "k", "topic": "in"}}, {"$https": {"connectionName": "api", **options}}]
    return {"connections": connections, "pipeline": stages}


def test_the_last_stage_is_a_sink() -> None:
    """With and without a field for the answer, which nothing reads there; a refusal fails or is ignored."""
    for options in ({}, {"as": "x"}, {"onError": "fail"}, {"onError": "Ignore"}):
        processor = parse(document(method="POST", **options))
        assert [type(stage) for stage in processor.sinks] == [HttpsEmit]
        assert [v.service for v in plan_processor(processor, engine="local").vertices] == ["source", "sink"]


def test_what_the_last_stage_cannot_do_is_refused_with_the_reason() -> None:
    """A dead letter of a refusal at the end; no field for the answer inside."""
    with pytest.raises(InvalidDocument, match="too late for a dead letter"):
        parse(document(onError="dlq"))
    inside = document()
    inside["pipeline"].append({"$emit": {"connectionName": "k", "topic": "out"}})
    with pytest.raises(InvalidDocument, match="needs as"):
        parse(inside)
