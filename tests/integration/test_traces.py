"""Epochs as OpenTelemetry traces: the spans of an installation's epochs, and what a collector receives."""

import asyncio
import itertools
import json
from functools import partial
from typing import Any

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidemark.services.cli import in_memory
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import Epoch, JobId, ProcessorName, TaskId, VertexId
from tidemark.shared.process.settings import TraceSettings, read_settings
from tidemark.shared.process.tracing import Span, Tracing, ids_of, request_of, traced
from tidemark.shared.runtime.context import Moment, Outside

DOCUMENT = {
    "pipeline": [
        {
            "$source": {
                "documents": [{"t": f"2024-01-01T00:0{n}:00Z", "k": n % 2} for n in range(6)],
                "timeField": {"$toDate": "$t"},
            }
        },
        {
            "$tumblingWindow": {
                "interval": {"size": 1, "unit": "minute"},
                "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": 1}}}],
            }
        },
        {"$emit": {"connectionName": "out", "topic": "t"}},
    ]
}


def spans_of_a_run(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    """Of all processes of an installation in memory, which runs the document to its end."""
    numbers = itertools.count(1)
    tracing = Tracing(TraceSettings(url="unused"), SystemClock(), lambda: f"{next(numbers):032x}"[::-1])
    monkeypatch.setattr(in_memory, "Outside", partial(Outside, passing=tracing.passing))
    text = json.dumps(DOCUMENT)
    outcome = in_memory.try_out(in_memory.TryOut(parse(text), text, ProcessorName("traced")))
    assert outcome.error is None
    assert len(outcome.output) == 6
    return list(tracing.waiting)


def test_an_epoch_is_a_trace_from_the_reads_to_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """One root an epoch, made by the coordinator; below it the spans of each task, of the commit, and last the release."""
    spans = spans_of_a_run(monkeypatch)
    roots = [span for span in spans if not span.parent]
    assert {span.name for span in roots} == {"epoch"}
    assert len({span.trace for span in roots}) == len(roots)
    assert len({span.id for span in spans}) == len(spans)
    released = {span.trace for span in spans if span.name == "release"}
    assert released
    assert released <= {span.trace for span in roots}
    for root in roots:
        below = [span for span in spans if span.trace == root.trace and span is not root]
        assert {span.parent for span in below} == {root.id}
        assert (root.trace, root.id) == ids_of(JobId(str(root.attributes["tidemark.job"])), _epoch(root))
        tasks = {str(span.attributes["tidemark.task"]).split("-")[0] for span in below if span.name == "rows"}
        assert {"source", "window", "emit"} <= tasks
        assert {"rows", "snapshot", "store state", "barriers", "commit", "mirror"} <= {span.name for span in below}
        assert all(span.begin_ms <= span.end_ms for span in below)


def _epoch(span: Span) -> Epoch:
    return Epoch(int(span.attributes["tidemark.epoch"]))


class Collector:
    """Takes OTLP on a port of its own; `down`: answers that it cannot."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.down = False
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self.server = TestServer(app)

    async def _take(self, request: web.Request) -> web.Response:
        await self.requests.put((request.headers.get("X-Team", ""), await request.json()))
        return web.Response(status=503) if self.down else web.json_response({})


async def test_a_collector_receives_spans_as_otlp_over_http() -> None:
    """In OTLP's JSON, with the headers of the settings; one that refuses costs its spans, and the next come again."""
    collector = Collector()
    await collector.server.start_server()
    executor = AsyncExecutor(1)
    url = str(collector.server.make_url("/v1/traces").with_user("me").with_password("hush").with_query(key="hush"))
    settings = TraceSettings(url=url, headers=("X-Team: blue",), interval_ms=1)
    numbers = itertools.count(1)
    passing = traced(settings, "sink-0", SystemClock(), executor, lambda: f"{next(numbers):032x}"[::-1])
    task = TaskId(VertexId("emit-1"), 0)

    def release(epoch: int) -> None:
        for phase in ("releasing", "released"):
            passing(Moment(phase, Epoch(epoch), JobId("job"), task, "counts"))

    release(7)
    team, request = await collector.requests.get()
    (resource,) = request["resourceSpans"]
    named = {each["key"]: each["value"]["stringValue"] for each in resource["resource"]["attributes"]}
    (span,) = resource["scopeSpans"][0]["spans"]
    assert team == "blue"
    assert named == {"service.name": "tidemark-sink", "service.instance.id": "sink-0"}
    assert (span["traceId"], span["parentSpanId"]) == ids_of(JobId("job"), Epoch(7))
    assert (len(span["traceId"]), len(span["spanId"])) == (32, 16)
    assert int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"]) > 1_700_000_000 * 10**9
    assert {"key": "tidemark.epoch", "value": {"intValue": "7"}} in span["attributes"]
    collector.down = True
    with structlog.testing.capture_logs() as logs:
        release(8)
        await collector.requests.get()
        collector.down = False
        release(9)
        _, request = await collector.requests.get()
    assert "status 5" in str(logs)
    assert "hush" not in str(logs)
    assert [s["traceId"] for s in request["resourceSpans"][0]["scopeSpans"][0]["spans"]] == [
        ids_of(JobId("job"), Epoch(9))[0]
    ]
    await executor.close()
    await collector.server.close()


def test_spans_and_phases_are_bounded() -> None:
    """Beyond the bounds spans are dropped and counted, and the oldest phases forgotten: no collector takes memory."""
    tracing = Tracing(TraceSettings(url="unused", waiting_max=2, remembered_max=3), SystemClock(), lambda: "0" * 32)
    for epoch in range(1, 11):
        for phase in ("checkpoint-started", "commit-decided"):
            tracing.passing(Moment(phase, Epoch(epoch), JobId(f"job-{epoch}")))
    assert (len(tracing.waiting), tracing.dropped) == (2, 8)
    assert (len(tracing._reached), len(tracing._began)) == (3, 3)
    assert request_of(list(tracing.waiting), "coordinator-0")["resourceSpans"]


def test_traces_are_off_until_a_collector_is_named() -> None:
    """`TIDEMARK_TRACES` names it."""
    base = {"TIDEMARK_KAFKA": "k:9092", "TIDEMARK_PLACE": "source-0"}
    assert read_settings(base).traces.url == ""
    given = {"url": "http://c:4318/v1/traces", "headers": ["a: b"]}
    named = read_settings({**base, "TIDEMARK_TRACES": json.dumps(given)}).traces
    assert (named.url, named.headers) == (given["url"], ("a: b",))
