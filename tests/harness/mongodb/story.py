"""Drawn stories of a task that reads a change stream, and of what happens to the server meanwhile."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from tests.harness.mongodb.stand import Stand, answered, documents, piece, stands
from tidemark.services.source.connectors.changestream import SPLIT
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.values import Document

STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(["c", "c", "c", "e", "other"]), st.integers(1, 6)),
    st.tuples(st.sampled_from(["update", "delete"]), st.sampled_from(["c", "e"]), st.integers(0, 9)),
    st.tuples(st.just("read"), st.sampled_from([1, 300, 1 << 20]), st.integers(0, 6)),
    st.tuples(st.just("restart")),
    st.tuples(st.sampled_from(["cut", "elect", "noop", "forget", "drop"])),
    st.tuples(st.just("lose"), st.integers(1, 4)),
    st.tuples(st.just("fail"), st.sampled_from([43, 91, 234, 11600, 189, 10107])),
)  # fmt: skip


class Story:
    """A task that takes rows piece by piece, keeps snapshots, and goes back to the last one."""

    def __init__(self, stand: Stand, keys: Iterable[Any] = (), **options: Any) -> None:
        """`keys`: of the first documents; numbers follow."""
        self.stand, self.options = stand, options
        self.taken: list[Document] = []
        self.kept: tuple[Offset, Mapping[str, str], int] = (Offset(0), {}, 0)
        self.keys = itertools.chain(keys, itertools.count(1 << 40))

    async def begin(self) -> None:
        self.source = await self.stand.begun(**self.options)
        self.kept = self.stand.known[SPLIT].begin, {}, 0

    async def step(self, step: tuple[Any, ...]) -> None:
        server = self.stand.server
        match step:
            case ("write", coll, count):
                server.transaction("d", coll, *(("insert", next(self.keys), {"pad": "x" * 50}) for _ in range(count)))
            case ("read", max_bytes, back):
                await self.read(max_bytes, back)
            case ("update" | "delete" as kind, coll, which) if there := list(
                server.stored.get(("d", coll), {}).values()
            ):
                server.transaction("d", coll, (kind, there[which % len(there)]["_id"], {"n": len(server.entries)}))
            case ("restart",):
                await self.source.close()
                position, origins, count = self.kept
                del self.taken[count:]
                self.source = await self.stand.resumed(position, origins, **self.options)
            case ("noop",):
                server.noop(20)
            case ("forget",) if "after" in self.kept[1]:
                token = parse_json(self.kept[1]["after"].encode())["_data"]
                server.forget((int(token[2:10], 16), int(token[10:18], 16)))
            case ("drop",) if len(self.options["coll"]) > 1:
                server.drop("d", "c")
            case ("cut",):
                server.cut()
            case ("elect",):
                server.elect()
            case ("lose", answers):
                server.cut_after(answers)
            case ("fail", code):
                server.fail("getMore", code)

    async def read(self, max_bytes: int, back: int) -> None:
        """A piece, and a snapshot within it: so many rows from its end are not part of it."""
        batches = await piece(self.source, max_bytes)
        rows = documents(batches)
        position, _ = stands(self.source)
        if rows and back:
            position = Offset(int(batches[0].positions[max(0, len(rows) - back)]))
        whole = len(self.taken) + (max(0, len(rows) - back) if rows and back else len(rows))
        self.taken += rows
        self.kept = position, self.source.origins(SPLIT, position), whole

    async def drain(self) -> None:
        end = (await answered(lambda: self.source.ends({SPLIT: Offset(0)})))[SPLIT]
        assert end is not None
        self.source.end_at({SPLIT: end})
        self.behind = next(self.keys)
        self.stand.server.insert("d", "c", self.behind)
        while not self.source.status()[0].finished:
            self.taken += documents(await piece(self.source, 300))
