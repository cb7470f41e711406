"""An answer that is lost: what is there tells whether the own attempt has taken effect, for blobs and for files of sinks alike."""

import os
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tidemark.services.sink.connectors.destination import Destination, LocalDestination
from tidemark.services.sink.connectors.objects import ObjectDestination
from tidemark.shared.adapters.blobs import FsspecBlobs
from tidemark.shared.adapters.directory_blobs import DirectoryBlobs
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.ports.sink import TargetRefused


class Repeating(MemoryFileSystem):  # type: ignore[misc]
    """Does what client libraries do inside of one call: the first try took effect, its answer was lost, the second finds the name taken."""

    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012 - fsspec's own way; a store apart from others'
    pseudo_dirs = [""]  # noqa: RUF012

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        super().pipe_file(path, value, mode=mode, **more)
        super().pipe_file(path, value, mode=mode, **more)


def link_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server whose answer to the first try was lost."""
    real = os.link

    def link(source: Any, target: Any, **more: Any) -> None:
        real(source, target, **more)
        real(source, target, **more)

    monkeypatch.setattr(os, "link", link)


@pytest.fixture(params=["objects", "files"])
def destination(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Destination:
    if request.param == "objects":
        Repeating.store.clear()
        return ObjectDestination(Repeating(), "/bucket/out")
    link_twice(monkeypatch)
    return LocalDestination(tmp_path, "a1")


def test_a_file_that_the_own_attempt_made_is_made(destination: Destination) -> None:
    """True for the own bytes, also once more; False for other bytes, which change nothing."""
    destination.prepare()
    assert destination.create("a/b", b"mine")
    assert destination.create("a/b", b"mine")
    assert not destination.create("a/b", b"other")
    assert destination.read("a/b") == b"mine"


@pytest.mark.parametrize("kind", ["objects", "files"])
async def test_a_blob_that_the_own_attempt_put_is_put(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference comes back; a name that other bytes have is refused."""
    executor = AsyncExecutor()
    Repeating.store.clear()
    blobs = FsspecBlobs(Repeating(), "/blobs", executor) if kind == "objects" else DirectoryBlobs(tmp_path, executor)
    link_twice(monkeypatch)
    ref = await blobs.put("job/v/1/1/x", b"mine")
    assert await blobs.get(ref) == b"mine"
    assert await blobs.put("job/v/1/1/x", b"mine") == ref
    with pytest.raises(BlobError, match="taken"):
        await blobs.put("job/v/1/1/x", b"other")
    assert await blobs.get(ref) == b"mine"
    await executor.close()


def test_a_store_that_overwrites_is_still_found_out() -> None:
    """That equal bytes count as the own attempt does not hide a store without the condition."""

    class Overwriting(MemoryFileSystem):  # type: ignore[misc]
        cachable = False
        store: dict[str, Any] = {}  # noqa: RUF012
        pseudo_dirs = [""]  # noqa: RUF012

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
            del mode
            super().pipe_file(path, value, **more)

    with pytest.raises(TargetRefused, match="overwrote an object"):
        ObjectDestination(Overwriting(), "/bucket/out").prepare()
