"""Lookups of other packages: they find what documents in the text would, their errors are those of tables, and a suite certifies them."""

import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_shelf import ShelfLookup
from tidemark_shelf.file import Place, ShelfFile

from tests.harness.plugins import package
from tidemark.plugins import Away, Document, Found, Refused, Value, to_json
from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.services.library.release_world import InlineSpawner
from tidemark.services.library.trying import try_out
from tidemark.services.operator.tables.plugin import PluggedTable
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.model.failures import is_lasting, is_outage
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.plugins.interface import PluginError, PluginFailed
from tidemark.shared.ports.tables import TableRefused, TableUnavailable
from tidemark.shared.process.allowed import Allowed
from tidemark.shared.runtime.coordinator import PlanRefusal
from tidemark.shared.runtime.settings import LookupSettings
from tidemark.testing import LookupContract

Given = tuple[dict[str, Any], dict[str, Any]]


def fill(file: Path, documents: Sequence[Document], shelf: str = "in") -> None:
    opened = ShelfFile(Place(str(file)))
    with opened.changed() as db:
        rows = [(shelf, json.dumps(to_json(each))) for each in documents]
        db.executemany("INSERT INTO documents (shelf, added_ms, document) VALUES (?, 0, ?)", rows)
    opened.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shelves")


@pytest.fixture(autouse=True, scope="module")
def _installed(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        entries = {"tidemark.lookups": {"shelf": "tidemark_shelf:ShelfLookup"}}
        patch.syspath_prepend(str(package(folder / "site", "shelf-lookups", entries)))
        yield


def document(stage: str = "$lookup", **options: Any) -> dict[str, Any]:
    from_ = {"plugin": "shelf", "connectionName": "library", "config": {"shelf": "in"}}
    return {
        "connections": {"library": {"type": "plugin", "plugin": "shelf", "config": {"file": "${FILE}"}}},
        "pipeline": [
            {"$source": {"documents": []}},
            {stage: {"from": from_, "localField": "k", "foreignField": "k", "as": "found", **options}},
        ],
    }


_VALUES = st.one_of(
    st.none(), st.sampled_from(["a", "b", "ä'", ""]), st.integers(-1, 2), st.sampled_from([0.5, 1.0]), st.booleans(),
    st.lists(st.sampled_from(["a", 1, None]), max_size=2),
)  # fmt: skip
_DOCUMENTS = st.lists(st.fixed_dictionaries({}, optional={"k": _VALUES, "v": _VALUES}), max_size=6)
_files = count()


@given(
    foreign=_DOCUMENTS, rows=_DOCUMENTS, cached=st.booleans(), by=st.sampled_from(["fields", "let", "all", "nested"])
)
@settings(max_examples=25, deadline=None)
def test_a_plugin_finds_what_documents_in_the_text_would(
    folder: Path, foreign: list[Document], rows: list[Document], cached: bool, by: str
) -> None:
    """Drawn: rows and tables of any values, fields and variables, cached or not, nested: a try-out asks both, and they say the same."""
    file = folder / f"{next(_files)}.db"
    fill(file, foreign)
    fill(file, [{"k": "a", "v": "other"}], "other")
    options: dict[str, Any] = {}
    if by == "let":
        same = [{"$match": {"$expr": {"$and": [{"$eq": ["$$v", "$v"]}, {"$eq": ["$k", "a"]}]}}}]
        options = {"let": {"v": "$v"}, "pipeline": same}
    if cached:
        options["ttl"] = {"size": 1, "unit": "hour"}
    asked = document("$cachedLookup" if cached else "$lookup", **options)
    (stage,) = asked["pipeline"][1].values()
    asked["connections"]["library"]["config"]["file"] = str(file)
    if by == "all":
        del stage["localField"], stage["foreignField"]
        stage["pipeline"] = [{"$limit": 3}]
    tables = [stage]
    if by == "nested":
        tables.append({**stage, "localField": "v"})
        stage["pipeline"] = [{"$cachedLookup" if cached else "$lookup": tables[1]}]
    results = [try_out(asked, rows)]
    for each in tables:
        each["from"] = {"documents": [to_json(one) for one in foreign]}
    results.append(try_out(asked, rows))
    assert results[0] == results[1]


class Acting(ShelfLookup):
    """Does what it is told in its next call; notes what is done with objects."""

    act: Callable[[], Sequence[Any]] | None = None
    done: list[str] = []  # noqa: RUF012 - the test's

    def open(self) -> None:
        Acting.done.append("open")
        super().open()

    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Value, ...]]) -> Sequence[Found]:
        act, Acting.act = Acting.act, None
        return super().find(fields, wanted) if act is None else act()

    def close(self) -> None:
        Acting.done.append("close")
        super().close()


@pytest.fixture
def table(tmp_path: Path) -> PluggedTable:
    Acting.act, Acting.done = None, []
    fill(tmp_path / "t.db", [{"k": "a"}, {"k": "b"}])
    return PluggedTable(
        lambda: make_of("acting", Acting, {"shelf": "in"}, {"file": str(tmp_path / "t.db")}),
        "a plug-in", InlineSpawner(), LookupSettings(rows_max=3),
    )  # fmt: skip


def raising(error: Exception) -> Callable[[], Sequence[Any]]:
    def act() -> Sequence[Any]:
        raise error

    return act


@pytest.mark.parametrize(
    ("raised", "kind", "outage", "lasting"),
    [
        (Away("no answer"), TableUnavailable, True, False),
        (Refused("no such shelf"), TableRefused, False, True),
        (KeyError("x"), PluginFailed, False, False),
        (PluginError("x"), PluginError, False, True),
    ],
)
async def test_a_plugins_errors_have_the_meaning_of_tables(
    table: PluggedTable, raised: Exception, kind: type[Exception], outage: bool, lasting: bool
) -> None:
    """C10: Away is waited out, Refused fails the processor, all else is tried again: on a new object."""
    assert len(await table.find((("k",),), [("a",)])) == 1
    Acting.act = raising(raised)
    with pytest.raises(kind) as found:
        await table.find((), [()])
    assert (is_outage(found.value), is_lasting(found.value)) == (outage, lasting)
    assert [each.document for each in await table.find((), [()])] == [{"k": "a"}, {"k": "b"}]
    await table.close()
    assert Acting.done == ["open", "close", "open", "close"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([{"k": "a"}], r"expected Found\(place, document\), found \{'k': 'a'\}"),
        ([Found("1", {})], "expected Found"),  # type: ignore[arg-type]
        ([Found(1, "a")], "expected Found"),  # type: ignore[arg-type]
        ([Found(1, {"a": object()})], "the document of place 1"),
        ([Found(1, {"a": (1,)})], "the document of place 1"),
        ([Found(1, {"a": 2**80})], "the document of place 1"),
    ],
)
async def test_what_is_no_document_of_a_place_is_the_plugins_mistake(
    table: PluggedTable, answer: list[Any], says: str
) -> None:
    """Told with the plug-in, before any row has it."""
    Acting.act = lambda: answer
    with pytest.raises(PluginFailed, match=says):
        await table.find((), [()])


async def test_documents_stand_in_the_order_of_places_and_have_a_bound(table: PluggedTable) -> None:
    """Each place once; more than the bound is refused with its name."""
    Acting.act = lambda: [Found(2**70, {"n": 2}), Found(-1, {"n": [1]}), Found(-1, {"n": [1]})]
    assert await table.find((), [()]) == [Found(-1, {"n": [1]}), Found(2**70, {"n": 2})]
    Acting.act = lambda: [Found(n, {}) for n in range(4)]
    with pytest.raises(
        TableRefused, match=r"a plug-in: a batch finds more than 3 documents, which is lookup\.rows_max"
    ):
        await table.find((), [()])


# --- the document ---------------------------------------------------------------------------------------------------------------


def test_a_lookup_names_its_plugin() -> None:
    """As a source does: a connection is for the plug-in that it names, and the installation for those that it trusts."""
    tree = document()
    tree["connections"]["library"]["plugin"] = "other"
    with pytest.raises(InvalidDocument, match="the connection library is of the plug-in other, expected shelf"):
        parse(tree)
    tree = document()
    tree["pipeline"][1]["$lookup"]["from"]["table"] = "t"
    with pytest.raises(InvalidDocument, match=r"pipeline\[1\]\.\$lookup\.from"):
        parse(tree)
    tree = document(pipeline=[document()["pipeline"][1]])
    nested = tree["pipeline"][1]["$lookup"]["pipeline"][0]["$lookup"]["from"]
    nested["plugin"] = "inner"
    del nested["connectionName"]
    with pytest.raises(PlanRefusal, match=r"pipeline\[0\]\.\$lookup\.from: plug-in 'inner': expected shelf \(plugins"):
        plan_for_coordinator("local", json.dumps(tree), {}, None, {}, allowed=Allowed(plugins=("shelf",)))


# --- the suite ------------------------------------------------------------------------------------------------------------------


class Narrow(ShelfLookup):
    """Compares as SQLite does."""

    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Value, ...]]) -> Sequence[Found]:
        found = super().find((), [()])
        values = [tuple(map(repr, one)) for one in wanted]
        return [f for f in found if not fields or tuple(repr(f.document.get(each)) for each in fields) in values]


class Numbered(ShelfLookup):
    """Places count what a question has found."""

    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Value, ...]]) -> Sequence[Found]:
        return [Found(n, each.document) for n, each in enumerate(super().find(fields, wanted))]


class Everybody(ShelfLookup):
    """Of all shelves."""

    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Value, ...]]) -> Sequence[Found]:
        assert self._file is not None
        with self._file.read() as db:
            return [Found(n, json.loads(each)) for n, each in db.execute("SELECT n, document FROM documents")]


class Hasty(ShelfLookup):
    """Hashes what is wanted."""

    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Value, ...]]) -> Sequence[Found]:
        return super().find(fields, list(set(wanted)))


class Unopened(ShelfLookup):
    """Closes what is not open."""

    def close(self) -> None:
        assert self._file is not None
        self._file.close()


class _OnShelf(LookupContract):
    documents = ({"k": "a", "n": 1}, {"k": ["a", "b"], "n": 2.0}, {"n": None})

    def given(self, folder: Path) -> Given:
        return {"shelf": "in"}, {"file": str(folder / "shelf.db")}

    def fill(self, folder: Path, documents: Sequence[Document]) -> None:
        fill(folder / "shelf.db", documents)
        fill(folder / "shelf.db", documents, "other")


MISSING, PLACE = "test_nothing_that_is_asked_for_is_missing", "test_a_document_has_one_place"


@pytest.mark.parametrize(
    ("plugin", "test"),
    [
        (Narrow, MISSING),
        (Hasty, MISSING),
        (Numbered, PLACE),
        (Everybody, "test_without_fields_it_finds_all"),
        (Unopened, "test_it_can_be_let_go_of_and_opened_again"),
    ],
)
def test_the_suite_of_lookups_finds(tmp_path: Path, plugin: type[ShelfLookup], test: str) -> None:
    """As those of sinks and sources."""
    (tmp_path / "wrong").mkdir()
    (tmp_path / "right").mkdir()
    wrong, right = _OnShelf(), _OnShelf()
    wrong.plugin, right.plugin = plugin, ShelfLookup  # type: ignore[misc]
    with pytest.raises((AssertionError, PluginFailed)):
        getattr(wrong, test)(tmp_path / "wrong")
    getattr(right, test)(tmp_path / "right")
