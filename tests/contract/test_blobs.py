"""The BlobStore port's contract, against a directory, S3 (a server that speaks it, in this process) and memory."""

import errno
import hashlib
import os
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from tidemark.shared.adapters.blobs import MemoryBlobs, S3Blobs
from tidemark.shared.adapters.directory_blobs import DirectoryBlobs
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.ports.blobs import BlobError, BlobStore, BlobUnavailable

# A server of S3 in the tests is one with all others of its process: each test file has a bucket of its own.
CREDENTIALS: dict[str, Any] = {"key": "test", "secret": "test"}


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    fsspec.filesystem("s3", endpoint_url=endpoint, **CREDENTIALS).mkdir("blobs")
    yield endpoint
    server.stop()


@pytest.fixture
async def executor() -> AsyncIterator[AsyncExecutor]:
    made = AsyncExecutor()
    yield made
    await made.close()


@pytest.fixture(params=["directory", "s3", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, executor: AsyncExecutor) -> BlobStore:
    if request.param == "directory":
        return DirectoryBlobs(tmp_path / "blobs", executor)
    if request.param == "s3":
        endpoint = request.getfixturevalue("s3_endpoint")
        return S3Blobs(f"s3://blobs/{uuid.uuid4().hex}", executor, endpoint_url=endpoint, **CREDENTIALS)
    return MemoryBlobs(executor)


@pytest.fixture
def directory(tmp_path: Path, executor: AsyncExecutor) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path / "blobs", executor)


def outside(store: BlobStore) -> Any:
    """How something else reaches the store's objects: fsspec, by URI."""
    options: dict[str, Any] = {}
    if isinstance(store, S3Blobs):
        options = CREDENTIALS | {"endpoint_url": store._fs.client_kwargs.get("endpoint_url", store._fs.endpoint_url)}
    return fsspec.open(store.uri("job/v/1/2/by-others.parquet"), "wb", **options)


async def test_what_is_put_comes_back(store: BlobStore) -> None:
    """The reference has name, size and SHA-256 of the bytes; `get` gives the bytes, empty ones and large ones too."""
    for size in (0, 1, 3_000_000):
        data = os.urandom(size)
        ref = await store.put(f"job/v/1/2/blob-{size}", data)
        assert ref == BlobRef(f"job/v/1/2/blob-{size}", size, hashlib.sha256(data).hexdigest())
        assert await store.get(ref) == data


async def test_a_name_is_taken_once(store: BlobStore) -> None:
    """A second `put` of a name is refused, and the first object stays as it was."""
    ref = await store.put("a/b", b"first")
    with pytest.raises(BlobError, match=r"a/b.*taken"):
        await store.put("a/b", b"second")
    assert await store.get(ref) == b"first"


async def test_many_at_once_create_one(store: BlobStore, executor: AsyncExecutor) -> None:
    """Of concurrent attempts at one name exactly one succeeds, and its bytes are there whole."""
    import asyncio

    results = await asyncio.gather(*(store.put("race/x", b"%d" % i * 1000) for i in range(6)), return_exceptions=True)
    won = [r for r in results if isinstance(r, BlobRef)]
    assert len(won) == 1
    assert all(isinstance(r, BlobError) for r in results if r is not won[0])
    assert len(await store.get(won[0])) == 1000


async def test_a_note_begins_with_what_was_written_last_and_goes_like_any_object(store: BlobStore) -> None:
    """A process that dies right behind `write` has left it for others, who find the note by its prefix and may delete it."""
    note = store.note("job/v/1/2/note")
    for said in (b"something long", b"short", b"last"):
        note.write(said)
        assert (await store.read_note("job/v/1/2/note")).startswith(said)
    assert await store.list("job/v") == ["job/v/1/2/note"]
    await store.delete(["job/v/1/2/note"])
    with pytest.raises(BlobError, match=r"job/v/1/2/note.*not there"):
        await store.read_note("job/v/1/2/note")
    note.close()


async def test_names_below_a_prefix(store: BlobStore) -> None:
    """Listing goes by whole parts of names, at any depth, sorted; what is not there lists as nothing."""
    assert await store.folders() == []
    for name in ("job/a/1/x", "job/a/1/y", "job/a/10/z", "job/ab/1/w", "other"):
        await store.put(name, b"")
    assert await store.list("job/a") == ["job/a/1/x", "job/a/1/y", "job/a/10/z"]
    assert await store.list("job/a/1/") == ["job/a/1/x", "job/a/1/y"]
    assert await store.list("nothing/here") == []
    assert await store.list("") == ["job/a/1/x", "job/a/1/y", "job/a/10/z", "job/ab/1/w", "other"]
    await store.put("job-2/a/1/x", b"")
    assert await store.folders() == ["job", "job-2"]


async def test_deleting_is_idempotent(store: BlobStore) -> None:
    """Deleting removes what exists of the names; a deleted name's object is reported missing."""
    ref = await store.put("job/a/1/x", b"x")
    await store.put("job/b", b"y")
    await store.delete(["job/a/1/x", "job/never"])
    await store.delete(["job/a/1/x"])
    await store.delete([])
    assert await store.list("") == ["job/b"]
    with pytest.raises(BlobError, match=r"job/a/1/x.*not there"):
        await store.get(ref)
    assert (await store.put("job/a/1/x", b"again")).size_bytes == 5


async def test_changed_bytes_are_found(store: BlobStore) -> None:
    """An object that is not as its reference says is refused, naming object, expectation and finding."""
    ref = await store.put("a/b", b"bytes")
    wrong_size = BlobRef("a/b", 4, ref.digest)
    wrong_digest = BlobRef("a/b", 5, "0" * 64)
    for wrong in (wrong_size, wrong_digest):
        with pytest.raises(BlobError, match=r"a/b.*expected.*found 5"):
            await store.get(wrong)


async def test_sealing_what_others_wrote(store: BlobStore) -> None:
    """What was written at `uri` is sealed: its reference is of its bytes, and it is read and listed as any other."""
    await store.put("job/v/1/2/ours", b"")
    with outside(store) as file:
        file.write(b"parquet" * 500_000)
    ref = await store.seal("job/v/1/2/by-others.parquet")
    assert ref.size_bytes == 3_500_000
    assert await store.get(ref) == b"parquet" * 500_000
    assert "job/v/1/2/by-others.parquet" in await store.list("job/v/1")
    with pytest.raises(BlobError, match=r"never.*not there"):
        await store.seal("job/never")


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/../../b", "a/.", "a/", ".tmp/x", "a\0b"])
async def test_names_stay_inside(store: BlobStore, name: str) -> None:
    """Names that would leave the store, or are no names, are refused before anything is touched."""
    with pytest.raises(BlobError, match="expected a relative path"):
        await store.put(name, b"x")
    with pytest.raises(BlobError, match="expected a relative path"):
        store.uri(name)


async def test_a_full_disk_is_an_outage_that_names_the_place(
    directory: DirectoryBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No space: BlobUnavailable with the path and what to do; nothing is left behind, nothing half-written is listed."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BlobUnavailable, match=r"a/b.*no space left.*blobs; free"):
        await directory.put("a/b", b"x")
    monkeypatch.undo()
    assert await directory.list("") == []
    assert list((tmp_path / "blobs" / ".tmp").iterdir()) == []
    assert (await directory.put("a/b", b"x")).size_bytes == 1


async def test_file_and_folders_are_synced_before_put_returns(
    tmp_path: Path, executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, then its folder and every folder above up to the root are made durable; without `fsync` none is."""
    synced: list[str] = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    root = tmp_path / "blobs"
    store = DirectoryBlobs(root, executor)
    await store.put("a/b/c", b"x")
    assert Path(synced[0]).parent == root / ".tmp"
    assert synced[1:] == [str(tmp_path), str(root), str(root / "a"), str(root / "a/b")]
    synced.clear()
    (root / "a/b/other").write_bytes(b"y")
    await DirectoryBlobs(root, executor).seal("a/b/other")
    files = [root / "a/b/other", tmp_path, root, root / "a", root / "a/b"]
    assert synced == [str(path) for path in files]
    synced.clear()
    await DirectoryBlobs(root, executor, fsync=False).put("a/d", b"x")
    assert synced == []


async def test_empty_folders_go_with_their_last_object(directory: DirectoryBlobs, tmp_path: Path) -> None:
    """Deleting leaves no empty folders, so that a directory does not grow with every epoch."""
    await directory.put("job/v/1/1/x", b"")
    await directory.put("job/v/1/2/x", b"")
    await directory.delete(["job/v/1/1/x"])
    assert sorted(p.name for p in (tmp_path / "blobs/job/v/1").iterdir()) == ["2"]
    await directory.delete(["job/v/1/2/x"])
    assert [p.name for p in (tmp_path / "blobs").iterdir()] == [".tmp"]


async def test_leftovers_of_a_crash_go_after_a_day(tmp_path: Path, executor: AsyncExecutor) -> None:
    """Temporary files older than a day are removed by the next process; young ones may be another's at work."""
    folder = tmp_path / "blobs" / ".tmp"
    folder.mkdir(parents=True)
    (folder / "old").write_bytes(b"x")
    (folder / "young").write_bytes(b"x")
    os.utime(folder / "old", (1, 1))
    await DirectoryBlobs(tmp_path / "blobs", executor).put("a", b"")
    assert [p.name for p in folder.iterdir()] == ["young"]


async def test_unreachable_s3_is_an_outage(executor: AsyncExecutor) -> None:
    """A server that does not answer is BlobUnavailable, not a refusal."""
    store = S3Blobs(
        "s3://bucket/x",
        executor,
        endpoint_url="http://127.0.0.1:9",
        config_kwargs={"connect_timeout": 1, "retries": {"max_attempts": 0}},
        **CREDENTIALS,
    )
    with pytest.raises(BlobUnavailable, match=r"s3://bucket/x/a.*writing"):
        await store.put("a", b"x")


async def test_a_repeated_request_of_s3_is_its_own_first(
    s3_endpoint: str, executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the answer to a write was lost and the library asks again, the taken name is recognised as its own."""
    store = S3Blobs(f"s3://blobs/{uuid.uuid4().hex}", executor, endpoint_url=s3_endpoint, **CREDENTIALS)
    filesystem = store._fs
    write = filesystem.pipe_file

    def twice(*args: Any, **named: Any) -> None:
        write(*args, **named)
        write(*args, **named)

    monkeypatch.setattr(filesystem, "pipe_file", twice)
    ref = await store.put("a", b"bytes")
    assert await store.get(ref) == b"bytes"


def test_wrong_urls_of_s3_are_named() -> None:
    """A store without a bucket is refused at once."""
    with pytest.raises(BlobError, match="expected s3://bucket"):
        S3Blobs("s3://", AsyncExecutor())


async def test_work_is_done_on_threads(directory: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop never waits for a disk: writing runs on a thread of the executor."""
    seen: list[str] = []
    original = DirectoryBlobs._put

    def put(self: DirectoryBlobs, name: str, data: bytes) -> BlobRef:
        seen.append(threading.current_thread().name)
        return original(self, name, data)

    monkeypatch.setattr(DirectoryBlobs, "_put", put)
    await directory.put("a", b"x")
    assert seen[0].startswith("blocking")
