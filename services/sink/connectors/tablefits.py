"""Files beside the columns of their table, which others may have changed since the files were staged (protocol, S6)."""

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.services.sink.connectors.tablecolumns import RESCUED, TableColumns, plain


def columns_of(schema: pa.Schema) -> pa.Schema:
    """The columns that have values, in the types that formats have."""
    return plain(schema.empty_table()).schema


def lacking(known: pa.Schema, staged: pa.Schema) -> pa.Schema:
    """Columns of a file that its table has not."""
    return pa.schema([field for field in columns_of(staged) if field.name not in known.names])


def fits(known: pa.Schema, staged: pa.Schema) -> bool:
    """Whether the table's columns take those of a file as they are: else readers see other values, or fail."""
    target = columns_of(known)
    return all(_takes(target.field(field.name).type, field.type) for field in columns_of(staged))


def _takes(target: pa.DataType, kind: pa.DataType) -> bool:
    if pa.types.is_struct(target) and pa.types.is_struct(kind):
        fields = {field.name: field.type for field in target}
        return all(field.name in fields and _takes(fields[field.name], field.type) for field in kind)
    if pa.types.is_list(target) and pa.types.is_list(kind):
        return _takes(target.value_type, kind.value_type)
    return bool(target == kind)


def refitted(rows: pa.Table, known: pa.Schema) -> pa.Table:
    """The rows in the table's types; what no column takes lies with the rescued values."""
    whole = rows.combine_chunks()
    (batch,) = whole.drop_columns([RESCUED] if RESCUED in whole.column_names else []).to_batches() or [None]
    if batch is None:
        return rows
    target = pa.schema([*(f for f in columns_of(known) if f.name != RESCUED), pa.field(RESCUED, pa.string())])
    made = TableColumns(lambda _: target, (), frozenset()).fit(batch)
    if RESCUED not in rows.column_names:
        return made
    before = whole.column(RESCUED).to_pylist()
    now = made.column(RESCUED).to_pylist() if RESCUED in made.column_names else [None] * len(before)
    texts = pa.array([_joined(*pair) for pair in zip(before, now, strict=True)], pa.string())
    return made.drop_columns([RESCUED] if RESCUED in made.column_names else []).append_column(RESCUED, texts)


def _joined(before: str | None, now: str | None) -> str | None:
    """Two objects in JSON, neither of them empty, as one: no name is in both."""
    return f"{before[:-1]},{now[1:]}" if before and now else before or now


def nulls_in(file: pq.FileMetaData, names: list[str]) -> str:
    """The first of these columns that a file lacks, or that has a null there; "" if none."""
    for name in names:
        places = [at for at in range(file.num_columns) if file.schema.column(at).path.split(".")[0] == name]
        groups = [file.row_group(group).column(at) for group in range(file.num_row_groups) for at in places[:1]]
        if not places or any(c.statistics is None or c.statistics.null_count for c in groups):
            return name
    return ""
