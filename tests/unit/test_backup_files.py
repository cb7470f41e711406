"""A backup that is not as it was written is refused with its place, whatever happened to it, and nothing is made of it."""

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.services.backup.files import LIST, BackupFailed, BackupWriter, checked, listing, read_backup
from tidemark.services.backup.folder import back_up_folder, restore_folder
from tidemark.services.local.broker import BrokerError
from tidemark.services.local.folder_lock import FolderLock
from tidemark.shared.adapters.commit_store import SqlCommitStore
from tidemark.shared.ports.commits import StoreLost

SEEDS = range(60)


async def folder(tmp_path: Path) -> Path:
    """What a local installation keeps, without a processor."""
    data = tmp_path / "d"
    (data / "kafka" / "log" / "t-0").mkdir(parents=True)
    (data / "kafka" / "log" / "t-0" / "00.index").write_bytes(bytes(3_000_000))
    (data / "kafka" / "log" / "t-0" / "00.log").write_bytes(bytes(range(256)) * 7_000)
    (data / "blobs" / ".tmp").mkdir(parents=True)
    (data / "blobs" / ".tmp" / "unfinished").write_bytes(b"x")
    (data / "blobs" / "job").mkdir()
    (data / "blobs" / "job" / "empty").write_bytes(b"")
    (data / "token").write_text("secret")
    store = SqlCommitStore(f"sqlite:///{data}/coordinator.db")
    await store.open()
    await store.close()
    return data


async def test_what_comes_back_is_what_was_there(tmp_path: Path) -> None:
    """Every byte, and no more disk than the zeros of an index need: they are holes."""
    data = await folder(tmp_path)
    await back_up_folder(data, tmp_path / "kept")
    restore_folder(tmp_path / "kept", tmp_path / "anew")
    names = {"token", "blobs/job/empty", "kafka/log/t-0/00.index", "kafka/log/t-0/00.log"}
    for name in names:
        assert (tmp_path / "anew" / name).read_bytes() == (data / name).read_bytes()
    made = {p.relative_to(tmp_path / "anew").as_posix() for p in (tmp_path / "anew").rglob("*") if p.is_file()}
    assert made == {*names, "coordinator.db"}
    for place in ("kept", "anew"):
        assert (tmp_path / place / "kafka" / "log" / "t-0" / "00.index").stat().st_blocks * 512 < 100_000
        assert (tmp_path / place / "token").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("seed", SEEDS)
async def test_damage_is_refused_with_its_place(seed: int, tmp_path: Path) -> None:
    """A flipped bit, a cut or lost file, bytes more, at a place that the seed draws; the list itself among the files."""
    draw = random.Random(seed)
    await back_up_folder(await folder(tmp_path), tmp_path / "kept")
    path = draw.choice(sorted(p for p in (tmp_path / "kept").rglob("*") if p.is_file()))
    data = bytearray(path.read_bytes())
    match draw.choice(("flip", "cut", "more", "lost") if data else ("more", "lost")):
        case "flip":
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
        case "cut":
            path.write_bytes(data[: draw.randrange(len(data))])
        case "more":
            path.write_bytes(bytes(data) + draw.choice((b"\0", b" ", b"\n")))
        case _:
            path.unlink()
    with pytest.raises(BackupFailed) as refused:
        restore_folder(tmp_path / "kept", tmp_path / "anew")
    assert path.name in str(refused.value)
    assert not (tmp_path / "anew").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_path_that_leaves_the_backup_is_refused(tmp_path: Path) -> None:
    """A list is as written, and by somebody else: it names a file outside."""
    with BackupWriter(tmp_path / "kept") as out:
        file = out.add("a", (b"1",))
        outside = type(file)("../b", file.size, file.sha256)
        out.finish(lambda _: listing("folder", (), (outside,)))
    (tmp_path / "b").write_bytes(b"1")
    with pytest.raises(BackupFailed, match="inside of the backup"):
        read_backup(tmp_path / "kept")


async def test_one_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    """No place for a later one is blocked by it; and it would not be restored."""

    def broken() -> Iterator[bytes]:
        yield b"1"
        raise OSError(errno.ENOSPC, "no space left")

    with pytest.raises(OSError, match="no space"), BackupWriter(tmp_path / "kept") as out:
        out.add("kafka/a", broken())
    assert not (tmp_path / "kept").exists()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "a").write_bytes(b"1")
    with pytest.raises(BackupFailed, match=f"found no {LIST}.*not finished"):
        read_backup(tmp_path / "half")
    with pytest.raises(BackupFailed, match="found something in it"):
        await back_up_folder(await folder(tmp_path), tmp_path / "half")


async def test_a_folder_in_use_or_with_a_damaged_store_is_not_backed_up(tmp_path: Path) -> None:
    """A copy of what is being written is of no moment, and one of damage of no use. A backup inside would be lost with the rest."""
    data = await folder(tmp_path)
    with pytest.raises(BackupFailed, match="with which it would be lost"):
        await back_up_folder(data, data / "kept")
    lock = FolderLock(data)
    lock.take()
    with pytest.raises(BrokerError, match="nobody works on"):
        await back_up_folder(data, tmp_path / "kept")
    lock.release()
    store = data / "coordinator.db"
    store.write_bytes(store.read_bytes()[:5_000] + bytes(5_000))
    with pytest.raises(StoreLost, match="damaged"):
        await back_up_folder(data, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_piece_is_checked_to_its_end(tmp_path: Path) -> None:
    """`checked` says so only behind the last piece: whoever writes from it keeps nothing."""
    with BackupWriter(tmp_path / "kept") as out:
        file = out.add("a", (b"123",))
        out.finish(lambda files: listing("folder", (), files))
    (tmp_path / "kept" / "a").write_bytes(b"124")
    with pytest.raises(BackupFailed, match=r"a: expected 3 bytes with SHA-256 a665.*, found 3 with "):
        list(checked(tmp_path / "kept", file))
