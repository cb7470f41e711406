"""What sinks write to in a simulation: folders in memory and a database in memory, which fail as disks and databases do.

A folder keeps what `Destination` promises, and fails as a disk does: with an error before anything happened (ENOSPC, EMFILE), or behind it
(EIO as the folder is forced: the file is there, and its writer does not know).
"""

import io
import sqlite3
import tempfile
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import sqlalchemy as sa

from tests.harness.simulation.faults import LinkFaults
from tests.harness.simulation.ports import Mortal, Watcher, strikes
from tests.harness.simulation.tables import Folder, SimFileSink
from tidemark.services.sink.connecting import RealSinks
from tidemark.services.sink.connectors.destination import Destination, LocalDestination
from tidemark.services.sink.connectors.files import FileSinkSettings
from tidemark.services.sink.connectors.iceberg import LARGE
from tidemark.services.sink.connectors.manifests import MANIFESTS, STAGED, SUMMARY, VOLUMES, Manifest
from tidemark.services.sink.connectors.sql import MARKERS_TABLE, SqlSinkSettings, engine_of
from tidemark.services.sink.settings import SinkSettings
from tidemark.shared.adapters import tablebytes
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import FileEmit
from tidemark.shared.ports.sink import SinkPort, TargetRefused, TargetUnavailable
from tidemark.shared.process.connections import Connections
from tidemark.shared.runtime.context import AssignedTask

SHARED_MEMORY: Final = "/dev/shm"
BEFORE: Final = ("ENOSPC", "EMFILE", "EIO")
TABLE: Final = "create table results (id text primary key, k text, n integer, s integer{check})"
REFUSED: Final = ", check ((n + s) % 11 <> 3)"


def is_refused(n: int, s: int) -> bool:
    """Whether a table that refuses some rows refuses this one."""
    return (n + s) % 11 == 3


class Died(BaseException):
    """The process died within work that blocks: it goes no further."""


@dataclass(slots=True)
class Targets:
    """What lies outside of all processes."""

    seed: int
    folders: dict[str, MutableMapping[str, bytes]] = field(default_factory=dict)
    """Files by name, by root."""
    database: sqlite3.Connection | None = None
    _directory: "tempfile.TemporaryDirectory[str] | None" = None

    @property
    def url(self) -> str:
        """The database's, as a document names it."""
        return f"sqlite:///file:simulated-{self.seed}?mode=memory&cache=shared&uri=true"

    def open(self, *, refuses: bool) -> None:
        """Make the table, which may refuse some rows; the database lives as long as a connection."""
        self.database = sqlite3.connect(f"file:simulated-{self.seed}?mode=memory&cache=shared", uri=True)
        self.database.execute(TABLE.format(check=REFUSED if refuses else ""))
        self.database.commit()

    def table_at(self, root: str) -> None:
        """A folder that lies on this machine, for a library writes into it."""
        self._directory = tempfile.TemporaryDirectory(
            prefix="tidemark-simulated-", dir=SHARED_MEMORY if Path(SHARED_MEMORY).is_dir() else None
        )
        # Of each format of tables by turns: which one is no part of what a seed draws.
        self.folders[root] = Folder(self._directory.name, "iceberg" if self.seed % 3 == 0 else "parquet")

    def rows(self) -> list[tuple[Any, ...]]:
        """Of the table."""
        assert self.database is not None
        return list(self.database.execute("select id, k, n, s from results"))

    def close(self) -> None:
        """Forget the database."""
        if self.database is not None:
            self.database.close()
        if self._directory is not None:
            self._directory.cleanup()


class SimDestination:
    """`Destination` in memory, with a disk's faults."""

    def __init__(
        self, who: Mortal, files: MutableMapping[str, bytes], faults: LinkFaults, root: str, watcher: Watcher
    ) -> None:
        self._who = who
        self._files = files
        self._faults = faults
        self._root = root
        self._watcher = watcher

    def prepare(self) -> None:
        """See `Destination.prepare`."""
        self._before("prepare")

    def create(self, name: str, data: bytes) -> bool:
        """See `Destination.create`."""
        self._before("create")
        write = f"file {_kind(name)} create"
        self._live(write, "before")
        if name not in self._files:
            self._files[name] = data
            self._watcher.published(name, data)
        created = self._files[name] == data
        self._live(write, "after")
        self._behind("create")
        return created or self._files[name] == data

    def replace(self, name: str, data: bytes) -> None:
        """See `Destination.replace`."""
        self._before("replace")
        write = f"file {_kind(name)} replace"
        self._live(write, "before")
        self._files[name] = data
        self._live(write, "after")
        self._behind("replace")

    def read(self, name: str) -> bytes | None:
        """See `Destination.read`."""
        self._before("read")
        return self._files.get(name)

    def open(self, name: str) -> BinaryIO:
        """See `Destination.open`."""
        self._before("open")
        return io.BytesIO(self._files[name])

    def size(self, name: str) -> int | None:
        """See `Destination.size`."""
        self._before("size")
        data = self._files.get(name)
        return None if data is None else len(data)

    def names(self, folder: str) -> list[str]:
        """See `Destination.names`."""
        self._before("names")
        head = f"{folder}/" if folder else ""
        return sorted(name for name in self._files if name.startswith(head))

    def delete(self, names: Iterable[str]) -> None:
        """See `Destination.delete`."""
        for name in names:
            self._before("delete")
            self._live("file delete", "before")
            self._files.pop(name, None)
            self._live("file delete", "after")

    def publish(self, staged: str, visible: str) -> None:
        """See `Destination.publish`."""
        self._before("publish")
        self._live("file publish", "before")
        if staged in self._files:
            self._files[visible] = self._files.pop(staged)
        elif visible not in self._files:
            raise TargetUnavailable(f"{self.uri(staged)}: no such file; it is tried again")
        self._live("file publish", "after")
        self._behind("publish")

    def settle(self, names: Iterable[str]) -> None:
        """See `Destination.settle`."""
        self._before("settle")

    def table(self) -> tuple[str, dict[str, str]]:
        """See `Destination.table`: no library writes into memory."""
        self._before("table")
        return self._table_root(), {}

    def _table_root(self) -> str:
        if not isinstance(self._files, Folder):
            raise TargetRefused(f"{self._root}: a table lies in a directory or on S3")
        return str(self._files.root)

    def folder(self) -> tablebytes.Folder:
        """See `Destination.folder`: it is read by others than the one whose operations may fail."""
        return LocalDestination(self._table_root(), "simulated").folder()

    def before_commit(self) -> None:
        """A table's commit is about to be made."""
        self._before("commit")
        self._live("table commit", "before")

    def after_commit(self, manifest: Manifest) -> None:
        """It is made."""
        self._watcher.released(manifest)
        self._live("table commit", "after")
        self._behind("commit")

    def uri(self, name: str) -> str:
        """See `Destination.uri`."""
        return f"{self._root}/{name}"

    def _live(self, write: str, side: Any) -> None:
        if strikes(self._who, write, side):
            raise Died

    def _before(self, what: str) -> None:
        if self._who.dead:
            raise Died
        faults = self._faults
        odd = [e for e in BEFORE if self._chance(f"{what} {e}", faults.weather.refused / len(BEFORE))]
        if faults.away or odd:
            raise TargetUnavailable(f"{self._root}: {odd[0] if odd else 'away'}; it is tried again")

    def _behind(self, what: str) -> None:
        if self._faults.deaf or self._chance(f"{what} EIO behind it", self._faults.weather.lost):
            raise TargetUnavailable(f"{self._root}: EIO behind {what}; it is tried again")

    def _chance(self, what: str, rate: float) -> bool:
        return self._who.book.by_chance(f"{self._who.service} file {what}", rate)


def _markers(connection: Any) -> list[tuple[str, int]]:
    """Of identities, as this transaction leaves them; none where another is about to change them: then this one did not."""
    try:
        return list(connection.execute(f"select identity, released from {MARKERS_TABLE}"))
    except sqlite3.OperationalError:
        return []


def _kind(name: str) -> str:
    if name.endswith(LARGE):
        return "compacted"
    return {STAGED: "staged", MANIFESTS: "manifest", VOLUMES: "volume", SUMMARY: "summary"}[name.partition("/")[0]]


class SimSinks(RealSinks):
    """Real sinks, to simulated folders and a simulated database."""

    def __init__(
        self, who: Mortal, connections: Connections, targets: Targets, faults: LinkFaults, watcher: Watcher
    ) -> None:
        sql = SqlSinkSettings(lock_wait_ms=1)  # a lock is another process of this thread: waiting would not help
        files = FileSinkSettings(volume_manifests=1 + targets.seed % 3, compact_releases=4)
        super().__init__(connections, SinkSettings(sql=sql, files=files, target_wait_ms=200))
        self._who = who
        self._targets = targets
        self._watcher = watcher
        self._faults = faults
        self._opened: list[sqlite3.Connection] = []

    def _destination(self, processor: Processor, stage: FileEmit, attempt: str) -> Destination:
        root = stage.file_path
        return SimDestination(self._who, self._targets.folders.setdefault(root, {}), self._faults, root, self._watcher)

    def _files(self, context: AssignedTask, processor: Processor, stage: FileEmit) -> SinkPort:
        outside, attempt = context.outside, context.outside.unique()
        destination, settings = self._destination(processor, stage, attempt), self._settings
        folder = self._targets.folders[stage.file_path]
        encoding = folder.encoding if isinstance(folder, Folder) else self._encoding(context, processor, stage)
        handle_bytes_max = settings.staging.handle_bytes_max
        return SimFileSink(destination, encoding, attempt, outside.executor, settings.files, handle_bytes_max)

    def _engine(self, url: str, connections_max: int) -> sa.Engine:
        if url not in self._engines:
            engine = self._engines[url] = engine_of(url, self._settings.sql)
            sa.event.listen(engine, "connect", lambda connection, _: self._opened.append(connection))
            self._watch(engine)
        return self._engines[url]

    def _watch(self, engine: sa.Engine) -> None:
        """The database's answers get lost, and the process dies at its commits."""
        commit: Any = engine.dialect.do_commit
        book, faults, service = self._who.book, self._faults, self._who.service

        def do_commit(connection: Any) -> None:
            if strikes(self._who, "sql commit", "before"):
                raise Died
            if faults.away or book.by_chance(f"{service} sql commit refused", faults.weather.refused):
                raise sqlite3.OperationalError("disk I/O error: the connection broke before the commit")
            markers = _markers(connection)
            commit(connection)
            for identity, epoch in markers:
                self._watcher.moved(identity, epoch)
            if strikes(self._who, "sql commit", "after"):
                raise Died
            if faults.deaf or book.by_chance(f"{service} sql commit ambiguous", faults.weather.lost):
                raise sqlite3.OperationalError("disk I/O error: the connection broke behind the commit")

        dialect: Any = engine.dialect
        dialect.do_commit = do_commit

    def perish(self) -> None:
        """The process is gone: the database sees its connections broken."""
        for connection in self._opened:
            connection.rollback()
            connection.close()
