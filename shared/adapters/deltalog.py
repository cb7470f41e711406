"""The log of a Delta Lake table: the files of a version, by the newest checkpoint before it and the entries behind that.

It is read here, and not by the format's library: that one allocates what a log tells it to, ends the process at some, and reads whatever
places a log names. (delta.io, PROTOCOL.md.)
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.shared.adapters.deltavectors import Vector
from tidemark.shared.adapters.parquetpieces import Pieces
from tidemark.shared.adapters.tablebytes import DAMAGED, Folder, Outside, inside, watched
from tidemark.shared.model.values import INT64_MAX

LOG: Final = "_delta_log"
_HINT: Final = f"{LOG}/_last_checkpoint"
_NAME: Final = re.compile(
    r"(\d{20})(\.json|\.checkpoint(?:\.parquet|\.(\d{10})\.(\d{10})\.parquet|\.[^./]{36}\.(?:parquet|json)))", re.ASCII
)
"""Version, the rest, part, parts. Exactly as the format's library has them, which takes any 36 characters for a UUID."""
_VERSION_MAX: Final = 2**64 - 1
"""The library passes over names with a higher one."""
_LINE_BYTES_MAX: Final = 1 << 24
"""Of an action: a thousand columns take some hundred KiB, and what is parsed takes many times its text."""
_PIECE_BYTES: Final = 1 << 20
"""Of an entry, read together."""
_PARTS_MAX: Final = 10_000
"""Of a checkpoint, where a hint tells it; of one with more the log is listed."""
_CHECKPOINT_ROWS: Final = 4_096
"""Read together at most."""
_READ: Final = (
    "add.path", "add.partitionValues", "add.modificationTime", "add.deletionVector", "metaData", "protocol", "sidecar",
)  # fmt: skip
"""Of checkpoints; statistics are most of them."""
_SIDECARS: Final = ("sidecar.path",)
_ACTIONS: Final = ("add", "metaData", "protocol", "sidecar")
Action = Mapping[str, Any]


class NotWhole(Exception):
    """A version's log lacks a file: which."""


@dataclass(frozen=True, slots=True)
class Added:
    """A file of a version."""

    values: tuple[tuple[str, str | None], ...]
    """Columns that divide the table, and what they are there, as texts."""
    changed_ms: int
    vector: Vector | None


@dataclass(slots=True)
class State:
    """A version."""

    version: int = -1
    protocol: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    files: dict[tuple[str, str], Added] = field(default_factory=dict)
    """By their paths below the table, and the ids of their vectors ("": none)."""

    def take(self, action: Action) -> None:
        """What an action changes. ValueError, or what Python raises for wrong types, where it is damaged."""
        if (told := action.get("add")) is not None:
            path, vector = path_of(told), vector_of(told)
            values = ((str(name), None if value is None else str(value)) for name, value in _pairs(told))
            added = Added(tuple(values), _number(told.get("modificationTime") or 0), vector)
            self.files[path, "" if vector is None else vector.id] = added
        if (told := action.get("remove")) is not None:
            vector = vector_of(told)
            self.files.pop((path_of(told), "" if vector is None else vector.id), None)
        self.metadata = dict(action.get("metaData") or self.metadata)
        self.protocol = dict(action.get("protocol") or self.protocol)


def _pairs(told: Action) -> Sequence[tuple[Any, Any]]:
    """A map, as Arrow or JSON has it."""
    found = told.get("partitionValues") or ()
    return list(found.items() if isinstance(found, Mapping) else found)


def path_of(told: Action) -> str:
    """Of an action's file, below the table. ValueError."""
    if not isinstance(told["path"], str) or not (path := unquote(told["path"])):
        raise ValueError(f"expected the path of a file, found {told['path']!r}")
    return inside(path)


def _sidecar(told: Action) -> str:
    """Of an action's file, below the table."""
    return f"{LOG}/_sidecars/{inside(unquote(str(told['path'])))}"


def vector_of(told: Action) -> Vector | None:
    """The deletion vector of an action's file. ValueError."""
    found = told.get("deletionVector")
    if found is None:
        return None
    offset = found.get("offset")
    return Vector(
        str(found["storageType"]),
        str(found["pathOrInlineDv"]),
        None if offset is None else _number(offset),
        _number(found["sizeInBytes"]),
        _number(found["cardinality"]),
    )


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT64_MAX:
        raise ValueError(f"expected a number from 0 to {INT64_MAX}, found {value!r:.100}")
    return value


class DeltaLog:
    """Functions block; DAMAGED, OSError, NotWhole."""

    def __init__(self, folder: Folder, *, as_library: bool = False) -> None:
        """as_library: a newest checkpoint that cannot be read is damage, as for the format's library; else what is behind it suffices."""
        self._folder = folder
        self._as_library = as_library
        self._state = State()
        """Of the version that was asked for last. Never changed: several threads may ask."""

    def newest(self) -> int | None:
        """The number of the present version; None: there is none yet."""
        self._folder.filesystem.invalidate_cache()
        hint = self.hint()
        if hint is not None and all(map(self._folder.has, hint[1])):
            version: int | None = hint[0]
        else:
            version = max((int(match[1]) for match in self._listed()), default=None)
        while version is not None and self._folder.has(entry_name(version + 1)):
            version += 1
        return version

    def hint(self) -> tuple[int, list[str]] | None:
        """The checkpoint that the log says to be its last one, with its files. It spares listing the log, and no more rests on it."""
        try:
            with self._folder.open(_HINT) as file:
                told = json.loads(file.read(_LINE_BYTES_MAX))
            version, parts, own = int(told["version"]), int(told.get("parts") or 1), told.get("v2Checkpoint")
            if own is not None:
                names = [str(own["path"])]
            elif parts == 1:
                names = [f"{version:020d}.checkpoint.parquet"]
            else:
                numbers = range(1, min(parts, _PARTS_MAX) + 1)
                names = [f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in numbers]
        except (FileNotFoundError, *DAMAGED):
            return None
        fits = all((found := _NAME.fullmatch(name)) and int(found[1]) == version for name in names)
        return (version, [f"{LOG}/{name}" for name in names]) if fits and parts <= _PARTS_MAX else None

    def checkpoints(self) -> list[str]:
        """Files of all checkpoints that are there, of any version, in order."""
        self._folder.filesystem.invalidate_cache()
        return sorted(f"{LOG}/{match[0]}" for match in self._listed() if ".checkpoint" in match[2])

    def first_read(self) -> frozenset[str]:
        """Of these the ones that a reader of the present version begins with: the library reads one of them, or fails."""
        whole = self._whole()
        return frozenset(name for number, names in whole if number == whole[-1][0] for name in names)

    def sidecars(self, checkpoint: str) -> list[str]:
        """The files that one of them names, below the table. Of it nothing else is read, if it is of Parquet."""
        return [_sidecar(told) for action in self._actions(checkpoint, _SIDECARS) if (told := action.get("sidecar"))]

    def _listed(self) -> list[re.Match[str]]:
        """Entries, and checkpoints but those whose writers ended before they wrote a byte, which nobody reads."""
        found = ((_NAME.fullmatch(name), size) for name, size in self._folder.sizes(LOG).items())
        return [match for match, size in found if match and (size or match[2] == ".json")]

    def _whole(self, most: int = _VERSION_MAX) -> list[tuple[int, list[str]]]:
        """The checkpoints at or before a version of which all parts are there, in order."""
        parts: dict[tuple[int, str, int], dict[int, str]] = {}
        for match in self._listed():
            if ".checkpoint" in match[2] and int(match[1]) <= most:
                part, count = (1, 1) if match[4] is None else (int(match[3]), int(match[4]))
                parts.setdefault((int(match[1]), match[4] or match[2], count), {})[part] = f"{LOG}/{match[0]}"
        return sorted(
            (number, [names[part] for part in range(1, count + 1)])
            for (number, _, count), names in parts.items()
            if 0 < count <= len(names) and all(part in names for part in range(1, count + 1))
        )

    def state(self, version: int) -> State:
        """A version."""
        known = self._state
        state = replace(known, files=dict(known.files)) if 0 <= known.version <= version else self._begun(version)
        while state.version < version:
            lines = self.entry(state.version + 1)
            if lines is None:
                raise NotWhole(f"the log has no entry {state.version + 1}")
            for line in lines:
                state.take(line)
            state.version += 1
        self._state = state
        return state

    def _begun(self, version: int) -> State:
        """The newest checkpoint at or before a version that can be read; what is before the first entry, where there is none."""
        hint, why = self.hint(), None
        begins = [hint] if hint is not None and hint[0] <= version else []
        for number, names in [*begins, *reversed(self._whole(version))]:
            try:
                return self._checkpoint(number, names)
            except (FileNotFoundError, *DAMAGED) as error:
                is_hint = begins and names is begins[0][1]  # it may be wrong
                if isinstance(error, Outside) or (self._as_library and not is_hint):
                    raise
                why = why or (None if is_hint else error)
        if why is not None and not self._folder.has(entry_name(0)):
            raise why
        return State()

    def _checkpoint(self, version: int, names: Sequence[str]) -> State:
        state = State(version)
        for name in names:
            sidecars = []
            for action in self._actions(name):
                if (told := action.get("sidecar")) is not None:
                    sidecars.append(_sidecar(told))
                state.take(action)
            for path in sidecars:
                for action in self._actions(path):
                    state.take(action)
        return state

    def _actions(self, name: str, columns: Sequence[str] = _READ) -> Iterator[Action]:
        """Those of a checkpoint's file that say what a version is; of Parquet those of these columns."""
        if name.endswith(".json"):
            yield from (line for line in _lines(self._folder.open(name), name) if line.get("remove") is None)
            return
        try:
            with watched(lambda: self._folder.open(name)) as file:
                parquet = pq.ParquetFile(file)
                pieces = Pieces(file, parquet.metadata)
                for group in range(parquet.num_row_groups):
                    rows = pieces.rows(group, _CHECKPOINT_ROWS)
                    for batch in parquet.iter_batches(rows, row_groups=[group], columns=list(columns)):
                        yield from _actions_in(batch)
        except pa.ArrowException as error:
            raise ValueError(f"{name}: {error}") from error

    def entry(self, version: int) -> Iterator[Action] | None:
        """The actions that made a version; None if the log does not have it."""
        name = entry_name(version)
        self._folder.filesystem.invalidate_cache()
        try:
            file = self._folder.open(name)
        except FileNotFoundError:
            return None
        return _lines(file, name)


def _lines(file: Any, name: str) -> Iterator[Action]:
    rest = b""
    with file:
        while piece := file.read(_PIECE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            for line in filter(None, lines):
                yield _action(line, name)
            if len(rest) > _LINE_BYTES_MAX:
                break
    if rest:
        yield _action(rest, name)


def _action(line: bytes, name: str) -> Action:
    if len(line) > _LINE_BYTES_MAX:
        raise ValueError(f"{name} has a line of more than {_LINE_BYTES_MAX} bytes")
    return dict(json.loads(line))


def entry_name(version: int) -> str:
    """Of the file with the actions that made a version."""
    return f"{LOG}/{version:020d}.json"


def _actions_in(batch: pa.RecordBatch) -> Iterator[Action]:
    for name in _ACTIONS:
        if name in batch.schema.names:
            column = batch.column(name)
            yield from ({name: told} for told in column.filter(column.is_valid()).to_pylist())
