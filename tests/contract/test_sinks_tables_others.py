# ruff: noqa: N802 -- a test carries its rule's name
"""Others change a table's columns, files, log and rules while the sink writes, at any moment: no row, no value and no table is lost."""

import random
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.contract.sinks_targets import FilesWorld
from tests.harness.share import share
from tidemark.services.library.release_world import IDENTITY, row_of
from tidemark.services.sink.connectors.destination import LocalDestination
from tidemark.services.sink.connectors.files import FileSink, FileSinkSettings
from tidemark.services.sink.connectors.manifests import STAGED
from tidemark.services.sink.connectors.released import table_at
from tidemark.services.sink.connectors.tablecolumns import LEVELS_MAX
from tidemark.shared.language.values import parse_json
from tidemark.shared.language.values.depth import DEPTH_MAX
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Document
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.ports.sink import SinkPort, TargetRefused

pytestmark = pytest.mark.asyncio
SEEDS = (0, 6)
_KINDS: dict[str, Any] = {"long": pa.int64(), "string": pa.string()}
_VALUES: tuple[Any, ...] = (1, 20, "x", "7", 1.5, True, None)


class Shared:
    """A table, its sink, and others who write to it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.target = FilesWorld(folder, "parquet" if kind == "delta" else "iceberg")
        self.target.settings = FileSinkSettings(compact_releases=4, buffer_bytes_max=1)
        self.kind = kind
        self.sink: SinkPort = self.target.sink()
        self.epoch = 0
        self.staged = b""

    @property
    def place(self) -> str:
        return str(self.target.root)

    async def opened(self) -> None:
        self.sink = self.target.sink()
        await self.sink.open(IDENTITY, Epoch(self.epoch + bool(self.staged)))

    async def stage(self, *documents: Document) -> None:
        assert not await self.sink.accept(batch_of(documents))
        self.staged = await self.sink.stage(Epoch(self.epoch + 1), Epoch(self.epoch))

    async def commit(self) -> None:
        await self.sink.release(row_of(self.epoch + 1, self.epoch, self.staged), self.staged)
        self.epoch += 1
        self.staged = b""

    async def release(self, *documents: Document) -> None:
        await self.stage(*documents)
        await self.commit()

    def delta(self) -> DeltaTable:
        return DeltaTable(self.place)

    def iceberg(self) -> Any:
        assert self.target.encoding.table is not None
        return load_catalog("default", **self.target.encoding.table.catalog).load_table("lake.out")

    def rows(self) -> dict[int, dict[str, Any]]:
        """The rows by their ids, each once, with what was rescued of them in its place."""
        found: dict[int, dict[str, Any]] = {}
        table = self.delta().to_pyarrow_table() if self.kind == "delta" else self.iceberg().scan().to_arrow()
        for row in table.to_pylist():
            rescued: Any = parse_json(row.pop("_rescued_data", None) or "{}")
            assert row["id"] not in found
            found[row["id"]] = {name: value for name, value in {**row, **rescued}.items() if value is not None}
        return found

    def create(self, schema: pa.Schema) -> None:
        """The table, by another program."""
        if self.kind == "delta":
            DeltaTable.create(self.place, schema=schema)
            return
        assert self.target.encoding.table is not None
        with load_catalog("default", **self.target.encoding.table.catalog) as catalog:
            catalog.create_namespace_if_not_exists("lake")
            catalog.create_table("lake.out", schema, location=f"file://{self.place}")

    def columns(self) -> list[dict[str, Any]]:
        """The rows as they lie in the table."""
        if self.kind == "delta":
            table = self.delta().to_pyarrow_table()
        else:  # by its files: the library reads a missing list of objects as an empty one
            paths = [task.file.file_path.removeprefix("file://") for task in self.iceberg().scan().plan_files()]
            table = pa.concat_tables(map(pq.read_table, paths), promote_options="default") if paths else pa.table({})
        found: list[dict[str, Any]] = table.to_pylist()
        return found

    def need(self, name: str) -> None:
        """A column takes no null from now on."""
        if self.kind == "delta":
            rows = self.delta().to_pyarrow_table()
            fields = [field.with_nullable(field.name != name) for field in rows.schema]
            write_deltalake(self.place, rows.cast(pa.schema(fields)), mode="overwrite", schema_mode="overwrite")
            return
        with self.iceberg().update_schema(allow_incompatible_changes=True) as update:
            update.update_column(name, required=True)

    def append(self, key: int) -> None:
        if self.kind == "delta":
            write_deltalake(
                self.place, pa.table({"id": pa.array([key], pa.int64())}), mode="append", schema_mode="merge"
            )
        else:
            kinds = {field.name: field.type for field in self.iceberg().schema().as_arrow()}
            self.iceberg().append(pa.table({"id": pa.array([key], kinds["id"])}))

    def delete(self, key: int) -> None:
        table = self.delta() if self.kind == "delta" else self.iceberg()
        table.delete(f"id = {key}" if self.kind == "delta" else f"id == {key}")

    def compact(self) -> None:
        """In another program: in Iceberg the rows are written anew."""
        if self.kind == "delta":
            self.delta().optimize.compact()
            self.delta().create_checkpoint()
        else:
            self.iceberg().overwrite(self.iceberg().scan().to_arrow())

    def cut(self) -> None:
        """Forget the log's begin."""
        if self.kind == "delta":
            table = self.delta()
            table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
            table = self.delta()
            table.create_checkpoint()
            table.cleanup_metadata()
        else:
            with self.iceberg().update_schema() as update:
                update.add_column(f"cut{self.iceberg().schema().highest_field_id}", StringType())

    def retype(self, name: str, kind: str, keep: int) -> None:
        """The table anew with one row and with a column of this type, or without it; its log goes on."""
        kept = {"id": pa.array([keep], pa.int64())}
        if self.kind == "delta":
            columns = kept if kind == "none" else {**kept, name: pa.nulls(1, _KINDS[kind])}
            write_deltalake(self.place, pa.table(columns), mode="overwrite", schema_mode="overwrite")
            return
        table = self.iceberg()
        table.overwrite(pa.table(kept))
        with self.iceberg().update_schema(allow_incompatible_changes=True) as update:
            if name in table.schema().column_names:
                update.delete_column(name)
        if kind != "none":
            with self.iceberg().update_schema() as update:
                update.add_column(name, LongType() if kind == "long" else StringType())


@pytest.fixture(params=["delta", "iceberg"])
async def shared(tmp_path: Path, request: pytest.FixtureRequest) -> Shared:
    made = Shared(tmp_path, request.param)
    await made.opened()
    return made


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("kind", ["none", "long", "string"])
async def test_S6_a_column_that_others_change_under_staged_rows(shared: Shared, kind: str, *, again: bool) -> None:
    """Dropped, or of another type: the values of staged rows and of later ones are there, and the table can be read."""
    for value in ("x", 20):
        keep = shared.epoch * 10
        await shared.release({"id": keep + 1, "a": value})
        await shared.stage({"id": keep + 2, "a": value, "b": [1]})
        shared.retype("a", kind, keep)
        if again:
            await shared.opened()
        await shared.commit()
        for key in range(3, 9):
            await shared.release({"id": keep + key, "a": value})
        found = shared.rows()
        assert {key - keep: str(row.get("a")) for key, row in found.items()} == {
            0: "None", **{key: str(value) for key in range(2, 9)}
        }  # fmt: skip
        assert found[keep + 2]["b"] == [1]


@pytest.mark.parametrize("seed", share(range(*SEEDS), 6))
async def test_S6_any_others_at_any_moment(shared: Shared, seed: int) -> None:
    """Rows, deletes, compactions, cuts of the log, columns dropped and of other types, restarts: between and inside of releases."""
    chooser, wanted = random.Random(seed), dict[int, str]()
    await shared.release({"id": 0})
    wanted[0] = "None"
    for key in range(1, 25):
        staged = chooser.random() < 0.7
        value = chooser.choice(_VALUES)
        if staged:
            await shared.stage({"id": key, "a": value})
        what = chooser.choice(["append", "delete", "compact", "cut", "retype", "retype", "nothing", "open"])
        match what:
            case "append":
                shared.append(100 + key)
                wanted[100 + key] = "None"
            case "delete" if wanted:
                del wanted[gone := chooser.choice(sorted(wanted))]
                shared.delete(gone)
            case "compact" if wanted:
                shared.compact()
            case "cut":
                shared.cut()
            case "retype":
                shared.retype("a", chooser.choice(["none", "long", "string"]), 200 + key)
                wanted = {200 + key: "None"}
            case "open":
                await shared.opened()
        if staged:
            await shared.commit()
            wanted[key] = str(value)
        assert {key: _text(row.get("a")) for key, row in shared.rows().items()} == {
            key: _text(value) for key, value in wanted.items()
        }, what


def _text(value: Any) -> str:
    """Of a column of text a number is a text, and a boolean JSON's."""
    return str(value).lower().removesuffix(".0")


def _positive(shared: Shared) -> None:
    DeltaTable.create(shared.place, schema=pa.schema([pa.field("id", pa.int64())]))
    shared.delta().alter.add_constraint({"pos": "id > 5"})


_RULES: dict[str, Callable[[Shared], object]] = {
    "constraint pos": _positive,
    "divided by": lambda s: DeltaTable.create(
        s.place, schema=pa.schema([pa.field("id", pa.int64()), pa.field("k", pa.string())]), partition_by=["k"]
    ),
}


@pytest.mark.parametrize("words", _RULES)
async def test_S6_a_rule_of_the_table_that_the_sink_does_not_keep_is_named(tmp_path: Path, words: str) -> None:
    """A constraint, other partitions: no row that breaks it gets into the table."""
    shared = Shared(tmp_path, "delta")
    await shared.opened()
    _RULES[words](shared)
    with pytest.raises(TargetRefused, match=words):
        await shared.release({"id": 1})
    assert shared.rows() == {}


_NEEDED: Final[list[tuple[Document, str | None]]] = [
    ({"id": 1, "k": "a", "o": {"x": 1}}, None),
    ({"id": 2, "k": "b", "o": {"x": None, "y": 1}}, None),
    ({"id": 3, "o": {"x": 1}}, "k"),
    ({"id": 4, "k": None, "o": {"x": 1}}, "k"),
    ({"id": 5, "k": "c"}, "o"),
    ({"id": 6, "k": "c", "o": 7}, "o"),
    ({"id": "seven", "k": "c", "o": {"x": 1}}, None),
]
"""Documents for a table whose columns k and o take no null, and the column for which one is refused."""


def _with_needed(shared: Shared) -> None:
    fields = [
        ("id", pa.int64(), True),
        ("k", pa.string(), False),
        ("o", pa.struct([("x", pa.int64()), ("y", pa.int64())]), False),
    ]
    schema = pa.schema([pa.field(*field) for field in fields])
    shared.create(schema)


@pytest.mark.parametrize("order", range(6))
async def test_S6_a_row_without_a_value_that_its_table_needs_is_refused_alone(shared: Shared, order: int) -> None:
    """In any company: the others are released, and the rejected ones tell the column."""
    await shared.opened()
    _with_needed(shared)
    drawn = random.Random(order).sample(_NEEDED, len(_NEEDED))
    rejected = await shared.sink.accept(batch_of([document for document, _ in drawn]))
    assert [(found.row, found.reason.partition(":")[0]) for found in rejected] == [
        (row, column) for row, (_, column) in enumerate(drawn) if column is not None
    ]
    await shared.release()
    kept = sorted(document["k"] for document, column in _NEEDED if column is None)
    assert sorted(row["k"] for row in shared.columns()) == kept


@pytest.mark.parametrize("form", ['{"x":%s}', "[%s]", '[{"x":%s}]'])
async def test_S6_a_value_that_nests_deeper_than_libraries_read_is_text(shared: Shared, form: str) -> None:
    """One document makes no column that ends the sink, or the table's readers for good; up to a bound it has a type of its own."""
    per = form.count("[") + form.count("{")
    for levels in (LEVELS_MAX // per, LEVELS_MAX // per + 1, 64 // per, DEPTH_MAX // per - 1):
        text = "7"
        for _ in range(levels):
            text = form % text
        await shared.opened()
        await shared.release({"id": levels, f"v{levels}": parse_json(f'{{"v":{text}}}')["v"]})
        assert levels in shared.rows()
        there = next(row[f"v{levels}"] for row in shared.columns() if row["id"] == levels)
        assert (there == text) == (levels * per > LEVELS_MAX)


def _kind(rng: random.Random, depth: int = 0) -> pa.DataType:
    """A column's type, with fields and items that take null or not."""
    drawn = rng.choice(["long", "double", "string", "struct", "list"] if depth < 2 else ["long", "double", "string"])
    if drawn == "struct":
        return pa.struct(
            [pa.field(name, _kind(rng, depth + 1), rng.random() < 0.6) for name in rng.sample("xyz", rng.randint(1, 3))]
        )
    if drawn == "list":
        return pa.list_(pa.field("element", _kind(rng, depth + 1), rng.random() < 0.6))
    return {"long": pa.int64(), "double": pa.float64(), "string": pa.string()}[drawn]


def _value(rng: random.Random, kind: pa.DataType) -> Any:
    """Mostly one that a column of this type takes."""
    if rng.random() < 0.1:
        return rng.choice([None, 7, "t", 1.5, True, [1, None], {"x": 1}, {"w": 2}, {"x": [None]}])
    if pa.types.is_struct(kind):
        fields = {field.name: _value(rng, field.type) for field in kind if rng.random() < 0.9}
        return fields or {kind.field(0).name: None}
    if pa.types.is_list(kind):
        return [_value(rng, kind.value_type) for _ in range(rng.randint(0, 2))]
    return {pa.int64(): rng.randrange(9), pa.float64(): rng.choice([0.5, 2]), pa.string(): rng.choice("ab")}[kind]


def _takes(field: pa.Field, value: Any) -> bool:
    """Whether a column takes a value, by the rules of the sink's page."""
    kind = field.type
    if value is None:
        return bool(field.nullable)
    if pa.types.is_string(kind):
        return True
    if pa.types.is_struct(kind):
        return (
            type(value) is dict
            and all(name in {each.name for each in kind} for name, inner in value.items() if inner is not None)
            and all(_takes(each, value.get(each.name)) for each in kind)
        )
    if pa.types.is_list(kind):
        return type(value) is list and all(_takes(kind.value_field, item) for item in value)
    return type(value) in (int, float) and (kind == pa.float64() or value == int(value))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("seed", share(range(30), 6))
async def test_S6_any_table_with_values_that_it_needs(kind: str, seed: int, tmp_path: Path) -> None:
    """Columns, their fields and items may take no null: each row is in the table, with all that it has, or refused for a needed column."""
    rng = random.Random(seed)
    shared = Shared(tmp_path, kind)
    await shared.opened()
    drawn = [pa.field(name, _kind(rng), rng.random() < 0.5) for name in "abc"]
    shared.create(pa.schema([pa.field("id", pa.int64()), *drawn]))
    wanted: dict[int, set[str]] = {}
    for batch in range(4):
        documents = [
            {"id": 10 * batch + n, **{f.name: _value(rng, f.type) for f in drawn if rng.random() < 0.95}}
            for n in range(5)
        ]
        rejected = {found.row: found.reason for found in await shared.sink.accept(batch_of(documents))}
        lacks = [
            {f.name for f in drawn if not f.nullable and not (d.get(f.name) is not None and _takes(f, d[f.name]))}
            for d in documents
        ]
        assert {row for row, names in enumerate(lacks) if names} == rejected.keys(), (documents, rejected, drawn)
        assert all(reason.partition(":")[0] in lacks[row] for row, reason in rejected.items())
        for row, document in enumerate(documents):
            if row not in rejected:
                wanted[document["id"]] = {f.name for f in drawn if document.get(f.name) is not None}
        shared.staged = await shared.sink.stage(Epoch(shared.epoch + 1), Epoch(shared.epoch))
        await shared.commit()
    found = {}
    for there in shared.columns():
        rescued: Any = parse_json(there.get("_rescued_data") or "{}")
        assert there["id"] not in found
        found[there["id"]] = {name for name in "abc" if there.get(name) is not None} | rescued.keys()
    assert found == wanted
    shared.rows()  # the libraries read it


async def test_S6_a_column_that_takes_no_null_any_more_stops_a_release_and_no_later_row(shared: Shared) -> None:
    """Rows that were staged before others changed it: the release says so. Once it is passed over, rows that come are refused alone."""
    await shared.release({"id": 1, "k": "a"})
    await shared.stage({"id": 2})
    await shared.sink.accept(batch_of([{"id": 5, "k": "c"}]))
    shared.staged = await shared.sink.stage(Epoch(2), Epoch(1))
    shared.need("k")
    with pytest.raises(TargetRefused, match="takes none without"):
        await shared.commit()
    assert await shared.sink.skip(row_of(2, 1, shared.staged), shared.staged) == 1
    shared.epoch += 1
    assert [found.row for found in await shared.sink.accept(batch_of([{"id": 3}, {"id": 4, "k": "b"}]))] == [0]
    await shared.release()
    assert sorted(shared.rows()) == [1, 4, 5]


@pytest.mark.parametrize("again", [False, True])
async def test_S2_a_table_that_others_dropped_is_refused_and_a_new_one_stays_whole(
    shared: Shared, *, again: bool
) -> None:
    """What was released is gone with it: the sink says so, and makes no gap in the log of a table that took its place."""
    for key in range(3):
        await shared.release({"id": key})
    if shared.kind == "delta":
        shutil.rmtree(shared.target.root / "_delta_log")
        if again:
            write_deltalake(shared.place, pa.table({"id": pa.array([7], pa.int64())}))
    else:
        assert shared.target.encoding.table is not None
        catalog = load_catalog("default", **shared.target.encoding.table.catalog)
        location = shared.iceberg().location()
        catalog.drop_table("lake.out")
        if again:
            schema = Schema(NestedField(1, "id", LongType(), required=False))
            catalog.create_table("lake.out", schema, location=location)
            shared.append(7)
    with pytest.raises(TargetRefused, match=r"dropped the table|another history"):
        await shared.release({"id": 4})
    if again:
        assert list(shared.rows()) == [7]


class Stopped(Exception):
    """The process ended here."""


class Mortal(LocalDestination):
    """A directory whose writer ends at one of the operations that change it, in front of it or behind it."""

    left = sys.maxsize
    behind = False

    def _counted(self, operation: Callable[..., Any], *args: Any) -> Any:
        self.left -= 1
        if not self.left and not self.behind:
            raise Stopped
        found = operation(*args)
        if not self.left:
            raise Stopped
        return found

    def create(self, name: str, data: bytes) -> bool:
        return bool(self._counted(super().create, name, data))

    def publish(self, staged: str, visible: str) -> None:
        self._counted(super().publish, staged, visible)

    def delete(self, names: Iterable[str]) -> None:
        self._counted(super().delete, [*names])


@pytest.mark.parametrize(("operation", "behind"), [(1, True), (2, True), (3, False)])
async def test_S4_no_file_that_no_commit_names_is_left_to_be_seen(
    shared: Shared, operation: int, *, behind: bool
) -> None:
    """A writer ends as it releases a file that does not fit the table; before the next one comes the table is changed once more."""
    shared.target.settings = FileSinkSettings(buffer_bytes_max=1)
    await shared.opened()
    await shared.release({"id": 1, "a": "x"})
    await shared.stage({"id": 2, "a": "y"})
    shared.retype("a", "long", 100)
    target, attempt = shared.target, "mortal"
    mortal = Mortal(target.root, attempt)
    sink = FileSink(mortal, target.encoding, attempt, target.executor, target.settings)
    await sink.open(IDENTITY, Epoch(2))
    mortal.left, mortal.behind = operation, behind
    with suppress(Stopped):
        await sink.release(row_of(2, 1, shared.staged), shared.staged)
    shared.retype("a", "none", 101)
    shared.sink = target.sink()
    if await shared.sink.open(IDENTITY, Epoch(2)) == 1:
        await shared.commit()
        assert set(shared.rows()) == {2, 101}
    shared.epoch, shared.staged = 2, b""
    await shared.opened()
    table = table_at(mortal, target.encoding)
    assert table is not None
    named = {file.name for manifest in table.manifests for file in manifest.files}
    seen = {path.name for path in target.root.glob(f"{IDENTITY.vertex}-*.parquet")}
    assert seen <= named
    assert not list((target.root / STAGED).rglob("*.parquet"))
