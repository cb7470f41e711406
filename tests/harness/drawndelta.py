"""A Delta Lake table that is written by the published protocol, action by action, and what its rows are.

Others write what no library here does: deletion vectors in the log or in files, columns under other names, wider types. (delta.io,
PROTOCOL.md.) Bitmaps are those of an independent library.
"""

import json
import random
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyroaring import BitMap64

Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
MAGIC: Final = 1681511377
ARROW: Final = {"integer": pa.int32(), "long": pa.int64(), "string": pa.string(), "double": pa.float64()}
LANES: Final = (None, "a b/c", "x=%", "plain")
Row = dict[int, Any]
"""Cells by the ids of columns."""


def z85(data: bytes) -> str:
    """The text of bytes, four by four."""
    words = (int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4))
    return "".join(Z85[word // 85**place % 85] for word in words for place in (4, 3, 2, 1, 0))


@dataclass
class Column:
    """`kind`: a primitive's name, or the fields of an object; `listed`: in an array."""

    id: int
    name: str
    physical: str
    kind: "str | list[Column]"
    listed: bool = False
    stored: str = ""
    """Its name in the next file: where ids find columns, any."""

    def arrow(self, *, named: bool) -> pa.Field:
        """As a file has it now; `named`: under its name for readers."""
        kind = ARROW[self.kind] if isinstance(self.kind, str) else pa.struct([c.arrow(named=named) for c in self.kind])
        told = {"PARQUET:field_id": str(self.id)}
        return pa.field(self.name if named else self.stored, pa.list_(kind) if self.listed else kind, metadata=told)

    def told(self, *, mapped: bool) -> dict[str, Any]:
        """As the log has it."""
        kind: Any = self.kind
        if not isinstance(kind, str):
            kind = {"type": "struct", "fields": [inner.told(mapped=mapped) for inner in kind]}
        if self.listed:
            kind = {"type": "array", "elementType": kind, "containsNull": True}
        about = {"delta.columnMapping.id": self.id, "delta.columnMapping.physicalName": self.physical} if mapped else {}
        return {"name": self.name, "type": kind, "nullable": True, "metadata": about}

    def cell(self, draw: random.Random) -> Any:
        """One that is drawn; None now and then."""
        if draw.random() < 0.2:
            return None
        return [self._one(draw) for _ in range(draw.randrange(3))] if self.listed else self._one(draw)

    def _one(self, draw: random.Random) -> Any:
        number = draw.randrange(-9, 1000)
        if not isinstance(self.kind, str):
            return {inner.id: inner.cell(draw) for inner in self.kind}
        return {"string": f"t{number}", "double": number / 4}.get(self.kind, number)

    def shown(self, cell: Any, *, named: bool | None) -> Any:
        """A cell under names: True: for readers, False: of files, None: for readers, without what is null."""
        if isinstance(cell, list):
            return [self.shown(each, named=named) for each in cell]
        if cell is None or isinstance(self.kind, str):
            return float(cell) if cell is not None and self.kind == "double" else cell
        inner = {
            c.name if named or named is None else c.stored: c.shown(cell.get(c.id), named=named) for c in self.kind
        }
        return {name: value for name, value in inner.items() if value is not None} if named is None else inner


@dataclass
class File:
    """One of the table, with its rows and the places of those that are deleted."""

    path: str
    rows: list[Row]
    lane: str | None
    size: int
    gone: set[int] = field(default_factory=set)
    vector: dict[str, Any] | None = None


@dataclass
class DrawnDelta:
    """The table and its model. `vectors`: rows are deleted by them, else columns may become wider; the library does not take both."""

    place: Path
    mapping: str
    divided: bool
    vectors: bool
    draw: random.Random
    columns: list[Column] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    version: int = -1
    ids: int = 0
    next_key: int = 0

    def __post_init__(self) -> None:
        (self.place / "_delta_log").mkdir(parents=True)
        self.columns = [self._column("key", "long")]
        self.lane = self._column("lane", "string")
        for _ in range(3):
            self.columns.append(self._some())
        self._commit([self._protocol(), self._metadata()])

    def _column(self, name: str, kind: "str | list[Column]", *, listed: bool = False) -> Column:
        self.ids += 1
        physical = name if self.mapping == "none" else f"col-{self.ids}-{self.draw.randrange(10**6)}"
        return Column(self.ids, name, physical, kind, listed)

    def _some(self, depth: int = 0) -> Column:
        name = (
            f"c{self.ids + 1}"
            if self.mapping == "none"
            else self.draw.choice(["c", "c d", "e.f", "G", "é,"]) + str(self.ids)
        )
        listed = self.draw.random() < 0.3
        if depth < 2 and self.draw.random() < 0.4:
            return self._column(name, [self._some(depth + 1) for _ in range(self.draw.randrange(1, 3))], listed=listed)
        return self._column(name, self.draw.choice(["integer", "string", "long"]), listed=listed)

    def _protocol(self) -> dict[str, Any]:
        readers = [
            "deletionVectors" if self.vectors else "typeWidening",
            *(["columnMapping"] if self.mapping != "none" else []),
        ]
        return {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": readers,
                "writerFeatures": readers,
            }
        }

    def _metadata(self) -> dict[str, Any]:
        mapped = self.mapping != "none"
        schema = {"type": "struct", "fields": [each.told(mapped=mapped) for each in [*self.columns, self.lane]]}
        about = (
            {"delta.columnMapping.mode": self.mapping, "delta.columnMapping.maxColumnId": str(self.ids)}
            if mapped
            else {}
        )
        told = {
            "id": "6b2f4a2e-0000-4000-8000-000000000000",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": [self.lane.name] if self.divided else [],
            "configuration": about,
            "createdTime": 1,
        }
        return {"metaData": told}

    def _commit(self, actions: Sequence[Mapping[str, Any]]) -> None:
        self.version += 1
        lines = [{"commitInfo": {"timestamp": self.version, "operation": "drawn"}}, *actions]
        entry = self.place / "_delta_log" / f"{self.version:020d}.json"
        entry.write_text("".join(json.dumps(line) + "\n" for line in lines))

    # --- files

    def _write(self, rows: list[Row], lane: str | None) -> File:
        folder = "" if not self.divided else f"lane={quote(lane or '__HIVE_DEFAULT_PARTITION__', safe='')}/"
        path = f"{folder}part-{uuid.UUID(int=self.draw.getrandbits(128))}.parquet"
        columns = [*self.columns, *([] if self.divided else [self.lane])]
        for each in [*self.all(), self.lane]:
            each.stored = f"{self.draw.choice('abc')}{each.id}" if self.mapping == "id" else each.physical
        schema = pa.schema([each.arrow(named=False) for each in columns])
        table = pa.Table.from_pylist(
            [{c.stored: c.shown(row.get(c.id), named=False) for c in columns} for row in rows], schema
        )
        (self.place / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, self.place / path, row_group_size=self.draw.choice([2, 1000]), store_schema=False)
        return File(path, rows, lane, (self.place / path).stat().st_size)

    def _action(self, kind: str, file: File, *, changes: bool = True) -> dict[str, Any]:
        told: dict[str, Any] = {
            "path": quote(file.path),
            "partitionValues": {self.lane.physical: file.lane} if self.divided else {},
            "size": file.size,
            "dataChange": changes,
        }
        told |= (
            {"modificationTime": self.version, "stats": json.dumps({"numRecords": len(file.rows)})}
            if kind == "add"
            else {}
        )
        told |= {"deletionTimestamp": self.version, "extendedFileMetadata": True} if kind == "remove" else {}
        return {kind: told | ({} if file.vector is None else {"deletionVector": file.vector})}

    def _vector(self, gone: set[int]) -> dict[str, Any]:
        data = MAGIC.to_bytes(4, "little") + BitMap64(sorted(gone)).serialize()
        told: dict[str, Any] = {"sizeInBytes": len(data), "cardinality": len(gone)}
        if self.draw.random() < 0.5:
            return {"storageType": "i", "pathOrInlineDv": z85(data + bytes(-len(data) % 4)), **told}
        name, prefix = uuid.UUID(int=self.draw.getrandbits(128)), self.draw.choice(["", "ab"])
        before = b"\1" + bytes(self.draw.randrange(3) * 4)
        place = self.place / prefix / f"deletion_vector_{name}.bin"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(before + len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big"))
        return {"storageType": "u", "pathOrInlineDv": prefix + z85(name.bytes), "offset": len(before), **told}

    # --- what becomes of it; each tells whether rows were taken away

    def append(self) -> bool:
        """Files of new rows."""
        new = []
        for _ in range(self.draw.randrange(1, 3)):
            lane = self.draw.choice(LANES)
            rows = [self._row(lane) for _ in range(self.draw.randrange(1, 9))]
            new.append(self._write(rows, lane))
        self._commit([self._action("add", file) for file in new])
        self.files += new
        return False

    def _row(self, lane: str | None) -> Row:
        self.next_key += 1
        drawn = {each.id: each.cell(self.draw) for each in self.columns[1:]}
        return {self.columns[0].id: self.next_key, self.lane.id: lane, **drawn}

    def delete(self) -> bool:
        """Rows of some files, by vectors; now and then with new ones in their place."""
        actions = []
        rows: list[Row] = []
        for file in [each for each in self.files if self.draw.random() < 0.6]:
            left = [place for place in range(len(file.rows)) if place not in file.gone]
            taken = {place for place in left if self.draw.random() < 0.4}
            if not taken:
                continue
            actions.append(self._action("remove", file))
            if len(taken) == len(left) or not self.vectors:
                self.files.remove(file)
                self.files += (
                    new := [self._write([file.rows[p] for p in left if p not in taken], file.lane)]
                    if len(taken) < len(left)
                    else []
                )
                actions += [self._action("add", each) for each in new]
                continue
            file.gone = file.gone | taken
            file.vector = self._vector(file.gone)
            actions.append(self._action("add", file))
            rows += [file.rows[place] for place in taken if file.lane == LANES[0]]
        if rows and self.draw.random() < 0.5:  # an update
            self.files.append(self._write([{**row, self.columns[-1].id: None} for row in rows], LANES[0]))
            actions.append(self._action("add", self.files[-1]))
        self._commit(actions)
        return bool(actions)

    def compact(self) -> bool:
        """The files of a lane become one, without their deleted rows."""
        lane = self.draw.choice(LANES)
        old = [file for file in self.files if file.lane == lane]
        actions = [self._action("remove", file, changes=False) for file in old]
        rows = [row for file in old for row in left_of(file)]
        self.files = [file for file in self.files if file not in old]
        if rows:
            self.files.append(self._write(rows, lane))
            actions.append(self._action("add", self.files[-1], changes=False))
        self._commit(actions)
        return False

    def change(self) -> bool:
        """A column comes, becomes wider, or, where names are mapped, gets another name or goes."""
        among = self.columns if self.draw.random() < 0.6 else self._inner() or self.columns
        ways = ["add"] + ["widen"] * (not self.vectors) + ["rename", "drop"] * (self.mapping != "none")
        match self.draw.choice(ways):
            case "add":
                among.insert(self.draw.randrange(among is self.columns, len(among) + 1), self._some())
            case "widen":
                for each in self.all():
                    each.kind = "long" if each.kind == "integer" and self.draw.random() < 0.5 else each.kind
            case "rename":
                each = self.draw.choice(among)
                each.name = f"{self.draw.choice(['c', 'n', 'key'])}{self.ids}{self.version}"
            case "drop" if len(among) > 2:
                del among[self.draw.randrange(among is self.columns, len(among))]
        self._commit([self._metadata()])
        return False

    def _inner(self) -> list[Column] | None:
        objects = [each.kind for each in self.all() if isinstance(each.kind, list)]
        return self.draw.choice(objects) if objects else None

    def all(self) -> Iterator[Column]:
        """Columns at every depth."""
        left = list(self.columns)
        while left:
            each = left.pop()
            yield each
            left += each.kind if isinstance(each.kind, list) else []

    def checkpoint(self) -> bool:
        """By the library; it is no version."""
        DeltaTable(str(self.place)).create_checkpoint()
        return False

    def clean(self) -> bool:
        """Others delete what the present version does not need."""
        for path in self.place.rglob("*.parquet"):
            name = str(path.relative_to(self.place))
            if "_delta_log" not in name and name not in {file.path for file in self.files}:
                path.unlink()
        return False

    def rows(self) -> list[dict[str, Any]]:
        """Of the present version, as documents."""
        return [self.document(row) for file in self.files for row in left_of(file)]

    def document(self, row: Row) -> dict[str, Any]:
        """A row under the names of the present version."""
        shown = {c.name: c.shown(row.get(c.id), named=None) for c in [*self.columns, self.lane]}
        return {name: value for name, value in shown.items() if value is not None}


def left_of(file: File) -> list[Row]:
    """The rows of a file that are there."""
    return [row for place, row in enumerate(file.rows) if place not in file.gone]
