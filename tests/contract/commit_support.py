"""Processors, commits and leaders for the tests of the coordinator's store."""

from typing import Any

from msgspec.structs import replace

from tidemark.shared.model.checkpoint import BlobRef, CommitRow, PartHandle, TaskHandle, TaskProtocolState
from tidemark.shared.model.ids import Epoch, Generation, JobId, LeaderToken, ProcessorName, StatePart, VertexId
from tidemark.shared.model.processors import Expected, ProcessorRow
from tidemark.shared.ports.commits import CommitStore

NAME = ProcessorName("orders")
JOB = JobId("a" * 32)
LEASE_MS = 10_000
NOW_MS = 1_700_000_000_000


def row_of(leader: LeaderToken, **changes: Any) -> ProcessorRow:
    row = ProcessorRow(
        name=NAME,
        job=JOB,
        leader=leader,
        generation=Generation(1),
        last=Epoch(0),
        reserved=Epoch(100),
        desired="running",
        state="STARTING",
        reason="",
        failures=0,
        plan_version=1,
        plan=b"\x00plan\xff",
        parallelism={"source": 2},
        extra=b"extra",
    )
    return replace(row, **changes)


def commit_of(epoch: int, predecessor: int, generation: int = 1) -> CommitRow:
    part = PartHandle(StatePart("kg:3"), inline=b"\x00\xff")
    blob = BlobRef("job/v/1/2/x", 3, "d" * 64)
    task = TaskHandle(VertexId("v"), 0, TaskProtocolState(input_watermark_ms=-(2**63)), (part,), (blob,), b"staged")
    return CommitRow(JOB, Epoch(epoch), Epoch(predecessor), Generation(generation), (task,))


def expected_of(row: ProcessorRow) -> Expected:
    return Expected(row.name, row.leader, row.generation, row.last)


async def lead(store: CommitStore, holder: str = "a", now_ms: int = NOW_MS) -> LeaderToken:
    token = await store.lead(holder, LEASE_MS, now_ms)
    assert token is not None
    return token


async def begin(store: CommitStore) -> ProcessorRow:
    """Lead, and create the processor."""
    row = row_of(await lead(store))
    await store.create(row)
    return row


async def commit(store: CommitStore, row: ProcessorRow, epoch: int) -> ProcessorRow:
    after = replace(row, last=Epoch(epoch))
    await store.commit(expected_of(row), after, commit_of(epoch, row.last, row.generation))
    return after
