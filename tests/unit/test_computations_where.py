"""Where a computation runs: apart, unless the installation says otherwise; and apart in any case behind a death."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.services.operator.apart import Computations
from tidemark.services.operator.rockskeys import Scratch
from tidemark.services.operator.service import OperatorService
from tidemark.services.operator.settings import OperatorSettings
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.model.ids import Epoch, Generation, JobId, ProcessorName, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import Assign, RunningPlan
from tidemark.shared.process.connections import Connections
from tidemark.shared.runtime.settings import RuntimeSettings


class NoChildren:
    """Children that nobody starts here."""

    def start(self) -> Any:
        """None."""
        raise AssertionError


@pytest.mark.parametrize("apart", [True, False])
def test_a_task_behind_a_death_runs_apart_whatever_is_set(tmp_path: Path, apart: bool) -> None:
    """In the worker's process, where it is set so, until that has ended without a word; in good order it stays there."""

    async def main() -> None:
        blobs, numbers = MemoryBlobs(AsyncExecutor()), iter(range(9))
        outside = SimpleNamespace(blobs=blobs, unique=lambda: f"u{next(numbers)}", settings=RuntimeSettings())
        service = OperatorService(Connections("o"), Scratch(tmp_path, "o"), OperatorSettings(apart=apart), NoChildren())
        ran_apart = []
        for generation, dies in ((1, False), (2, True), (3, False), (4, False)):
            plan = RunningPlan(1, "{}", {VertexId("c"): 1}, ())
            assign = Assign(
                WorkerIncarnation("w"), ProcessorName("p"), JobId("0" * 32), Generation(generation), (), Epoch(0), plan, VertexId("c"), 0
            )  # fmt: skip
            context: Any = SimpleNamespace(outside=outside, assign=assign)
            users = await service._users(context)
            ran_apart.append(isinstance(users.apart, Computations))
            if not dies:
                await users.close(AsyncExecutor(), idle=True)
        assert ran_apart == ([True] * 4 if apart else [False, False, True, True])

    asyncio.run(main())
