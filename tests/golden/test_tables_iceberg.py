"""Tables that Iceberg's own library wrote, by Spark and as Flink's upserts do: each snapshot has the rows that Spark reads of it."""

from collections import Counter
from pathlib import Path

import pytest

from tests.golden.test_tables_delta import next_of, read
from tests.harness.goldenlake import HERE, lake_table
from tidemark.services.source.connectors.tableversions import VersionRefused

REFUSED = {
    "avro": "is in AVRO, and Parquet and ORC are read here",
    "by_value_avro": "is in AVRO, and Parquet and ORC are read here",
    "variant": "variant",
}
"""Tables that are not read, and what of the sentence names the reason."""
READ = sorted({file.stem for file in HERE.glob("*.zip")} - REFUSED.keys() - {"by_value_widened"})


@pytest.mark.parametrize("name", READ)
def test_each_snapshot_has_the_rows_that_its_writer_reads(tmp_path: Path, name: str) -> None:
    """Whatever deletes there are, by value, position or vector, and however columns and partitions changed."""
    versions, rows = lake_table(name, tmp_path)
    for version, expected in rows.items():
        assert read(versions.files(version)) == expected, version
    versions.close()


@pytest.mark.parametrize("name", READ)
def test_a_snapshot_that_follows_adds_its_rows_or_is_refused(tmp_path: Path, name: str) -> None:
    """None passes that takes rows away; those that put rows into other files add none."""
    versions, rows = lake_table(name, tmp_path)
    for before, after in zip([0, *rows], rows, strict=False):
        if next_of(versions, before) != after:
            continue
        added = read(versions.added(after))
        assert added <= rows[after]
        assert added.total() == rows[after].total() - rows.get(before, Counter()).total()
    versions.close()


def test_what_is_refused_names_the_reason(tmp_path: Path) -> None:
    """Rows would be wrong, or cannot be read."""
    for name, reason in REFUSED.items():
        versions, _ = lake_table(name, tmp_path / name)
        with pytest.raises(VersionRefused, match=reason):
            versions.files(versions.newest())
        versions.close()


def test_a_column_of_an_old_name_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """Rows are deleted by a column that was dropped, and by a later one of its name: Iceberg's own library on Spark fails here."""
    versions, _ = lake_table("by_value_changed", tmp_path)
    found = read(versions.files(versions.newest()))
    assert found == Counter([b'{"key":7,"v":"f","k":"k1"}', b'{"key":8,"v":"g","k":"k1"}'])
    versions.close()


def test_a_delete_counts_for_a_column_that_became_wider(tmp_path: Path) -> None:
    """By the specification; Iceberg's own library on Spark brings such rows back."""
    versions, rows = lake_table("by_value_widened", tmp_path)
    read_at = [read(versions.files(version)) for version in rows]
    assert read_at[1] == Counter([b'{"id":1,"v":"a"}', b'{"id":2,"v":"b"}'])
    assert read_at[3] == Counter([b'{"id":2,"v":"b"}', b'{"id":3,"v":"again"}'])
    versions.close()
