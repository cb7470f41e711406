"""D19: lookups within lookups, drawn: a plain walk over whole tables finds the same, and a table has one question a batch."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.services.operator.lookups import Lookups
from tidemark.services.operator.tables.held import HeldTable
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import InlineTable, Lookup
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.model.values import Document, Found
from tidemark.shared.operators.base import PART, POS, TS
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.ports.tables import Names
from tidemark.shared.runtime.settings import LookupSettings

MATCHES_MAX = 12
_KEYS = st.integers(0, 2)
_TABLE = st.lists(st.fixed_dictionaries({"k": _KEYS, "v": _KEYS}), max_size=4)


def _level(inner: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A lookup: by fields, or by a variable of its own or, further in, of the outermost; with or without another within."""
    return st.fixed_dictionaries({
        "table": _TABLE, "by": st.sampled_from(["fields", "let", "outer"]), "cached": st.booleans(), "inner": inner,
        "limit": st.one_of(st.none(), st.integers(1, 2)),
    })  # fmt: skip


nests = _level(st.one_of(st.none(), _level(st.one_of(st.none(), _level(st.none())))))


def _stage(level: dict[str, Any]) -> dict[str, Any]:
    """The same as a stage of a document; $$top is the looking document's v, known at every depth."""
    options: dict[str, Any] = {
        "from": {"documents": level["table"]},
        "as": "found",
        "let": {"own": "$v"},
        "pipeline": [],
    }
    if level["by"] == "fields":
        options |= {"localField": "v", "foreignField": "k"}
    else:
        name = "$$own" if level["by"] == "let" else "$$top"
        options["pipeline"].append({"$match": {"$expr": {"$eq": [name, "$k"]}}})
    if level["inner"] is not None:
        options["pipeline"].append(_stage(level["inner"]))
    if level["limit"] is not None:
        options["pipeline"].append({"$limit": level["limit"]})
    if level["cached"]:
        return {"$cachedLookup": {**options, "ttl": {"size": 1, "unit": "hour"}}}
    return {"$lookup": options}


def _walked(level: dict[str, Any], document: Document, top: Any) -> tuple[list[Document], int]:
    """What is found for a document, and how many documents that is at all levels."""
    wanted = top if level["by"] == "outer" else document["v"]
    found = [dict(row) for row in level["table"] if row["k"] == wanted]
    count = 0
    for row in found if level["inner"] is not None else ():
        row["found"], within = _walked(level["inner"], row, top)
        count += within
    found = found[: level["limit"]]
    return found, count + len(found)


def _depth(level: dict[str, Any]) -> int:
    return 1 + (0 if level["inner"] is None else _depth(level["inner"]))


class _Counting(HeldTable):
    """Notes by how many conditions it was asked, each time."""

    def __init__(self, documents: Sequence[Document]) -> None:
        super().__init__(documents)
        self.asked: list[int] = []

    async def find(self, columns: Sequence[Names], wanted: Sequence[tuple[Any, ...]]) -> Sequence[Found]:
        self.asked.append(len(columns))
        return await super().find(columns, wanted)


def _all(inner: dict[str, Any] | None) -> dict[str, Any]:
    """Three documents for each."""
    return {"table": [{"k": 0, "v": 0}] * 3, "by": "fields", "cached": False, "inner": inner, "limit": None}


@example(level=_all(_all(_all(None))), batches=[[0]])  # no level has too many for one document of the level around it
@given(level=nests, batches=st.lists(st.lists(_KEYS, min_size=1, max_size=4), min_size=1, max_size=2))
@settings(max_examples=60)
def test_lookups_within_lookups(level: dict[str, Any], batches: list[list[int]]) -> None:
    """At any depth, cached or not: the same documents and dead letters, and no table is asked twice for a batch, or for all of it."""
    outermost = _stage(level)
    (name,) = outermost
    outermost[name]["let"]["top"] = "$v"
    limits = {"limits": {"matchesPerDocument": MATCHES_MAX}}
    what = parse({"pipeline": [{"$source": {"documents": []}}, outermost], "options": limits}).pipeline[1]
    assert isinstance(what, Lookup)
    tables: list[_Counting] = []

    def table(stage: Lookup) -> _Counting:
        assert isinstance(stage.from_, InlineTable)
        tables.append(_Counting(stage.from_.documents))
        return tables[-1]

    async def play(world: VirtualWorld) -> None:
        lookups = Lookups(what, table, world.clock, LookupSettings(), TaskContext())
        for keys in batches:
            n = len(keys)
            engine = {
                TS: pa.array([0] * n, pa.int64()),
                PART: pa.array([0] * n, pa.int32()),
                POS: pa.array(range(n), pa.int64()),
            }
            outs = await lookups.enrich(batch_of([{"v": key} for key in keys], engine))
            found = [row for out in outs if out.port == OUT for row in documents_of(out.batch)]
            failed = sum(out.batch.num_rows for out in outs if out.port == DLQ)
            wanted: list[Document] = []
            for key in keys:
                walked, count = _walked(level, {"v": key}, key)
                if count <= MATCHES_MAX:
                    wanted.append({"v": key, "found": walked})
                failed -= count > MATCHES_MAX
            assert (found, failed) == (wanted, 0)

    run_virtual(play, start_ms=0)
    assert len(tables) == _depth(level)
    for each in tables:
        assert len(each.asked) <= len(batches)
        assert all(each.asked)
