"""A file sink's destination on an object store: S3 and the other stores that fsspec reaches (protocol, S4).

There are no folders and no rename. An object appears complete or not at all; "only if absent" is the store's own condition
(`If-None-Match: *`, which fsspec calls mode `create`). A store without it must not be used: `prepare` proves that it is obeyed.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

from tidemark.services.sink.connectors.destination import check_name
from tidemark.shared.adapters.creating import create_object
from tidemark.shared.adapters.filesystems import listing_of, unreachable
from tidemark.shared.adapters.tablebytes import Folder
from tidemark.shared.adapters.tablelibraries import delta_place
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable

PROBE: Final = "_manifests/.probe"
"""An empty object by which `prepare` sees that the store refuses to create a name twice."""


class ObjectDestination:
    """A prefix of an fsspec file system; its `pipe_file` must know mode `create`."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")

    def prepare(self) -> None:
        """TargetRefused if the store does not refuse a second object of a name: releases would overwrite each other."""
        self.create(PROBE, b"")
        if self.create(PROBE, b"another"):
            raise TargetRefused(
                f"{self._root}: the store overwrote an object that was to be created only if absent;"
                " exactly-once output needs a store that obeys If-None-Match"
            )

    def create(self, name: str, data: bytes) -> bool:
        """See `Destination.create`."""
        with _as_target(self.uri(name)):
            return create_object(self._fs, self.uri(check_name(name)), data)

    def replace(self, name: str, data: bytes) -> None:
        """See `Destination.replace`."""
        with _as_target(self.uri(name)):
            self._fs.pipe_file(self.uri(check_name(name)), data)

    def read(self, name: str) -> bytes | None:
        """See `Destination.read`."""
        with _as_target(self.uri(name)):
            try:
                return bytes(self._fs.cat_file(self.uri(check_name(name))))
            except FileNotFoundError:
                return None

    def open(self, name: str) -> BinaryIO:
        """See `Destination.open`."""
        with _as_target(self.uri(name)):
            found: BinaryIO = self._fs.open(self.uri(check_name(name)), "rb")
            return found

    def size(self, name: str) -> int | None:
        """See `Destination.size`."""
        with _as_target(self.uri(name)):
            try:
                self._fs.invalidate_cache()
                return int(self._fs.info(self.uri(check_name(name)))["size"])
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> list[str]:
        """See `Destination.names`."""
        with _as_target(self.uri(folder)):
            found = listing_of(self._fs, self.uri(folder))
        # File systems differ in whether they answer with their protocol or a leading slash: cut behind the root.
        bare = self._fs._strip_protocol(self._root).rstrip("/") + "/"  # noqa: SLF001 - fsspec documents it for this use
        inside = (str(self._fs._strip_protocol(path)) for path in found)  # noqa: SLF001
        return sorted(path.removeprefix(bare) for path in inside if not path.endswith("/.probe"))

    def delete(self, names: Iterable[str]) -> None:
        """See `Destination.delete`."""
        for name in names:
            with _as_target(self.uri(name)):
                try:
                    self._fs.rm_file(self.uri(check_name(name)))
                except FileNotFoundError:
                    continue

    def publish(self, staged: str, visible: str) -> None:
        """See `Destination.publish`: a copy, which appears whole; then the staged object goes."""
        source, final = self.uri(check_name(staged)), self.uri(check_name(visible))
        with _as_target(final):
            try:
                self._fs.cp_file(source, final)
            except FileNotFoundError:
                self._fs.invalidate_cache()
                if not self._fs.exists(final):
                    raise
                return
        self.delete([staged])

    def table(self) -> tuple[str, dict[str, str]]:
        """See `Destination.table`: on S3."""
        found = delta_place(self._fs, self._root)
        if found is None:
            raise TargetRefused(
                f"{self._root}: a table lies in a directory or on S3, not there; choose json or csv in $emit, or another place"
            )
        return found

    def folder(self) -> Folder:
        """See `Destination.folder`."""
        return Folder(self._fs, self._root, lambda _: None)  # there are no links

    def settle(self, names: Iterable[str]) -> None:
        """Nothing to do: an object that can be seen is durable."""

    def uri(self, name: str) -> str:
        """See `Destination.uri`."""
        return f"{self._root}/{name}"


@contextmanager
def _as_target(place: str) -> Iterator[None]:
    """The store's errors in the words of a sink."""
    try:
        yield
    except PermissionError as error:
        raise TargetRefused(
            f"{place}: {error}; the store's credentials need the right to get, put, list and delete there"
        ) from error
    except unreachable() as error:
        raise TargetUnavailable(f"{place}: {error}; it is tried again") from error
