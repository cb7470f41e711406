"""A processor's one row in the store, and the row that a change of it expects (C8). `tidemark.shared.ports.commits` reads and writes it."""

import hashlib

from msgspec import Struct

from tidemark.shared.model.ids import Epoch, Generation, JobId, LeaderToken, ProcessorName


class Expected(Struct, frozen=True):
    """The fields that the processor's row must still have for a change to happen."""

    name: ProcessorName
    leader: LeaderToken
    generation: Generation
    last: Epoch


class ProcessorRow(Struct, frozen=True):
    """A processor as the store has it."""

    name: ProcessorName
    job: JobId
    leader: LeaderToken
    generation: Generation
    last: Epoch
    """The last committed checkpoint; 0 for none."""
    reserved: Epoch
    """Checkpoint numbers up to here have been given out (C1)."""
    desired: str
    """running, stopped, drained or dropped: the state that users asked for."""
    state: str
    reason: str
    failures: int
    """Generations in a row that have not read on (C10)."""
    plan_version: int
    plan: bytes
    """RunningPlan, encoded: document, task counts, edges."""
    parallelism: dict[str, int]
    extra: bytes = b""
    """Further notes of the coordinator: drain offsets, pending plan, identities; encoded by it."""


def document_digest(document: str) -> str:
    """What a document is known by to one who changes it (E3): SHA-256, hexadecimal."""
    return hashlib.sha256(document.encode()).hexdigest()
