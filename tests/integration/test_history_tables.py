"""A past in a Delta Lake or Iceberg table, then a topic: the rows of one version of the table, by its log (LANGUAGE.md, tables)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from tests.contract.sources_worlds import catalog_in
from tests.harness.installation import Installed, released
from tests.harness.share import share
from tests.integration.test_history import document, drain, line, tell, write


def rows(numbers: list[int]) -> pa.Table:
    """Records as a table has them."""
    return pa.table(
        {
            "at": pa.array([1_000 * n for n in numbers], pa.int64()),
            "n": pa.array(numbers, pa.int32()),
            "lane": [f"lane {n % 2}" for n in numbers],
        }
    )


def delta(folder: Path) -> list[dict[str, Any]]:
    """A table with files that are no part of it any more: joined, deleted and of a writer that died; and what it holds."""
    place = str(folder / "past")
    write_deltalake(place, rows([0, 1, 2, 3]), partition_by=["lane"])
    write_deltalake(place, rows([4, 5, 6, 7, 28, 29, 30, 31]), mode="append")
    DeltaTable(place).optimize.compact()
    DeltaTable(place).delete("n = 5")
    one = min((folder / "past").rglob("*.parquet"))
    one.with_name("dead.parquet").write_bytes(one.read_bytes())
    return list(DeltaTable(place).to_pyarrow_table(columns=["n", "lane"]).to_pylist())


def iceberg(folder: Path) -> list[dict[str, Any]]:
    """The same in a table of Iceberg."""
    with load_catalog(**catalog_in(folder)) as catalog:
        catalog.create_namespace("lake")
        table = catalog.create_table("lake.past", rows([0]).schema)
        table.append(rows([0, 1, 2, 3]))
        table.append(rows([4, 5, 6, 7, 28, 29, 30, 31]))
        table.delete("n = 5")
        return list(table.scan(selected_fields=("n", "lane")).to_arrow().to_pylist())


def more_delta(folder: Path) -> None:
    """Rows come and go."""
    write_deltalake(folder / "past", rows([8, 9]), mode="append")
    DeltaTable(folder / "past").delete("n < 3")
    DeltaTable(folder / "past").optimize.compact()


def more_iceberg(folder: Path) -> None:
    """Rows come and go."""
    with load_catalog(**catalog_in(folder)) as catalog:
        table = catalog.load_table("lake.past")
        table.append(rows([8, 9]))
        table.delete("n < 3")


MADE: dict[str, tuple[Callable[[Path], list[dict[str, Any]]], Callable[[Path], None]]] = {
    "delta": (delta, more_delta),
    "iceberg": (iceberg, more_iceberg),
}


def reading(folder: Path, kind: str, path: str = "past", **options: Any) -> dict[str, Any]:
    """The document whose history is the table."""
    tree = document(folder)
    tree["connections"]["lake"] = {"type": "files", "path": str(folder), "catalog": catalog_in(folder)}
    format_ = {"delta": "parquet", "iceberg": "iceberg"}[kind]
    history = {"connectionName": "lake", "path": path, "format": format_, **options}
    tree["pipeline"][0]["$source"]["history"] |= history
    return tree


def check(folder: Path, held: list[dict[str, Any]]) -> None:
    """The past up to the switch, and the topic from there on."""
    found = [(d["n"], d.get("lane")) for d in released(folder / "out")]
    past = [(row["n"], row["lane"]) for row in held if row["n"] < 30]
    assert sorted(found, key=str) == sorted([*past, *((n, None) for n in range(30, 34))], key=str)


@pytest.mark.parametrize("glob", ["", "*/*.parquet", "**/*.parquet"])
@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_history_is_what_the_table_holds(tmp_path: Path, glob: str, tasks: int, *, ordered: bool) -> None:
    """Files that lie in its folder and are no part of it give no rows; columns that divide it have their values."""
    held = delta(tmp_path)
    tree = reading(tmp_path, "delta", f"past/{glob}", ordered=ordered)

    async def story(there: Installed) -> None:
        there.broker.create_topic("t", 1)
        await write(there, range(28, 34), partitions=1)
        await there.create(tree, source=tasks)
        await there.start()
        await there.committed()
        await drain(there)

    tell(story)
    check(tmp_path, held)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("breaks", share([(), *((n,) for n in range(1, 8)), (2, 4, 6, 8)], 4))
@pytest.mark.parametrize(("tasks", "ordered"), [(1, True), (3, False)])
def test_what_becomes_of_a_table_is_no_part_of_the_history(
    tmp_path: Path, kind: str, tasks: int, breaks: tuple[int, ...], *, ordered: bool
) -> None:
    """Its version is decided before a row is read: wherever a task breaks, all read that one."""
    make, go_on = MADE[kind]
    held = make(tmp_path)
    tree = reading(tmp_path, kind, "lake/past" if kind == "iceberg" else "past", ordered=ordered)

    async def story(there: Installed) -> None:
        there.broker.create_topic("t", 1)
        await write(there, range(28, 34), partitions=1)
        await there.create(tree, source=tasks)
        await there.start()
        await there.when(lambda status: status.state == "RUNNING")
        go_on(tmp_path)
        await there.committed()
        await drain(there)

    tell(story, breaks)
    check(tmp_path, held)


@pytest.mark.parametrize("kind", MADE)
def test_a_table_that_is_followed_goes_on_over_a_stop(tmp_path: Path, kind: str) -> None:
    """What is added comes, once, whoever reads; then rows that go end the processor with the version."""
    make, go_on = MADE[kind]
    held = make(tmp_path)
    tree = reading(tmp_path, kind, "lake/past" if kind == "iceberg" else "past", follow=True)
    tree["pipeline"][0]["$source"] = tree["pipeline"][0]["$source"]["history"]

    async def story(there: Installed) -> None:
        await there.create(tree, source=2)
        await there.start()
        await there.committed()
        await there.stop()
        append(tmp_path, kind, [40, 41])
        await there.start()
        append(tmp_path, kind, [42])
        while sum(1 for d in released(tmp_path / "out") if d["n"] >= 40) < 3:
            await there.committed(1)
        go_on(tmp_path)
        failed = await there.when(lambda status: status.state == "FAILED")
        assert "takes away or changes rows that were read" in failed.reason

    tell(story)
    found = sorted(d["n"] for d in released(tmp_path / "out"))
    assert [n for n in found if n not in (8, 9)] == [*sorted(row["n"] for row in held), 40, 41, 42]


def append(folder: Path, kind: str, numbers: list[int]) -> None:
    """Rows that come."""
    if kind == "delta":
        write_deltalake(folder / "past", rows(numbers), mode="append")
        return
    with load_catalog(**catalog_in(folder)) as catalog:
        catalog.load_table("lake.past").append(rows(numbers))


def test_a_task_without_a_split_waits_for_one(tmp_path: Path) -> None:
    """Files that are followed in their order are one split: the other task does not look for records again and again."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(line(1) + b"\n")
    tree = document(tmp_path)
    tree["pipeline"][0]["$source"] = {"path": str(tmp_path / "in" / "*.json"), "format": "json", "follow": True}

    async def story(there: Installed) -> None:
        await there.create(tree, source=2)
        await there.start()
        await there.committed()
        await drain(there)

    tell(story)
    assert [d["n"] for d in released(tmp_path / "out")] == [1]
