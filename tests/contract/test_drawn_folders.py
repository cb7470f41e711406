"""A folder to which others write while a source follows it, in steps drawn by seed: each whole record comes once.

Writers make files at once or by a rename, add lines and halves of lines, leave folders, empty files and links beside them.
"""

import os
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.contract.sources_worlds import StillClock, number_of
from tests.harness.share import share
from tidemark.services.library.release_world import InlineSpawner
from tidemark.services.source.connectors.files import FileConnector, FileSourceSettings
from tidemark.shared.adapters.filesystems import opened
from tidemark.shared.language.stages import FileFormat
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.ports.log import LogUnavailable

STEPS = 60


class Writers:
    """What others do to a folder."""

    def __init__(self, folder: Path, form: FileFormat, chooser: random.Random, *, ordered: bool) -> None:
        self.folder = folder
        self.form = form
        self.chooser = chooser
        self.ordered = ordered
        """A file is done when a later one is there, and new ones have names that sort last."""
        self.numbers = 0
        self.files: list[Path] = []
        self.halves: dict[Path, bytes] = {}
        """The second halves of lines that were begun."""

    def _record(self) -> bytes:
        self.numbers += 1
        text = self.chooser.choice(("x", "ü" * 9, ""))
        many = self.chooser.choice((text, '"a\nb"', '"ü,"'))
        line = f'{{"n": {self.numbers}, "t": "{text}"}}' if self.form == "json" else f"{self.numbers},{many}"
        end = self.chooser.choice(("\n", "\r\n"))
        return f"{line}{end}".encode()

    def _records(self) -> bytes:
        return b"".join(self._record() for _ in range(self.chooser.randrange(4)))

    def _some(self) -> Path:
        return self.files[-1] if self.ordered else self.chooser.choice(self.files)

    def step(self) -> None:
        """One of them."""
        steps = [self.make, self.make_elsewhere, self.add, self.add_half, self.leave]
        self.chooser.choice(steps if self.files else steps[:2])()

    def _begin(self) -> tuple[Path, bytes]:
        if self.ordered:
            self.end()
        self.files.append(self.folder / f"f{len(self.files):04}.{self.form}")
        mark = b"\xef\xbb\xbf" if self.chooser.random() < 0.2 else b""
        return self.files[-1], mark + (b"n,t\n" if self.form == "csv" else b"") + self._records()

    def make(self) -> None:
        """A file, in its place."""
        file, data = self._begin()
        file.write_bytes(data)

    def make_elsewhere(self) -> None:
        """A file that gets its name when it is whole, or a link to it."""
        file, data = self._begin()
        hidden = file.with_name(f".{file.name}.tmp")
        hidden.write_bytes(data)
        if self.chooser.random() < 0.5:
            file.symlink_to(hidden.name)
        else:
            hidden.rename(file)

    def add(self) -> None:
        """Lines, at the end of a file."""
        file = self._some()
        with file.open("ab") as out:
            out.write(self.halves.pop(file, b"") + self._records())

    def add_half(self) -> None:
        """The begin of a line."""
        file = self._some()
        if file not in self.halves:
            line = self._record()
            cut = self.chooser.randrange(1, len(line))
            self.halves[file] = line[cut:]
            with file.open("ab") as out:
                out.write(line[:cut])

    def leave(self) -> None:
        """Something that is no file of records, or is none yet."""
        name = self.folder / f"z{self.numbers}-{self.chooser.randrange(1 << 30)}.{self.form}"
        match self.chooser.randrange(4):
            case 0:
                name.mkdir()
            case 1:
                name.symlink_to("nowhere")
            case 2:
                os.utime(self._some())
            case 3 if not self.ordered:
                name.touch()

    def end(self) -> None:
        """Lines that were begun are ended."""
        for file, half in self.halves.items():
            with file.open("ab") as out:
                out.write(half)
        self.halves.clear()


class Follower:
    """A task of the source, restarted at its positions."""

    def __init__(self, settings: FileSourceSettings, chooser: random.Random) -> None:
        self.settings = settings
        self.chooser = chooser
        self.known: dict[SplitId, KnownSplit] = {}
        self.found: list[int] = []
        self.begin()

    def begin(self) -> None:
        """A source, on a file system that does not answer now and then while `stutters`."""
        filesystem, _ = opened("/", {})
        self.stutters = False
        opens = filesystem.open

        def answers(*args: Any, **named: Any) -> Any:
            if self.stutters and self.chooser.random() < 0.2:
                raise TimeoutError("the share stutters")
            return opens(*args, **named)

        filesystem.open = answers
        self.source = FileConnector(self.settings, filesystem, InlineSpawner(), StillClock(), lambda _: None)

    async def read(self, fetches: int) -> None:
        """Take what comes."""
        for _ in range(fetches):
            with suppress(LogUnavailable):
                new = [split for split in await self.source.splits() if split not in self.known]
                listed = await self.source.found(new, first=False)
                self.known |= listed
                await self.source.open({split: each.begin for split, each in listed.items()})
                for batch in await self.source.fetch(self.chooser.choice((10, 100, 1 << 20)), 1):
                    assert not batch.unread
                    self.found += map(number_of, batch.values.to_pylist())

    async def restart(self) -> None:
        """Another generation."""
        positions: Mapping[SplitId, Offset] = {each.split: each.next_position for each in self.source.status()}
        origins = {split: self.source.origins(split, at) for split, at in positions.items()}
        await self.source.close()
        self.begin()
        self.source.know(origins)
        await self.source.check(self.known)
        await self.source.open(positions)


@pytest.mark.parametrize("seed", share(range(40), 4))
async def test_each_whole_record_comes_once_whatever_others_do(tmp_path: Path, seed: int) -> None:
    """Ordered or not, JSON or CSV, below one folder or at any depth."""
    chooser = random.Random(seed)
    ordered, form = chooser.random() < 0.5, chooser.choice(("json", "csv"))
    glob = f"{tmp_path}/{chooser.choice(('*', '**/*', 'f*'))}.{form}"
    settings = FileSourceSettings(
        glob=glob, format=form, ordered=ordered, follow=True, types={"n": "long"}, poll_ms=1  # type: ignore[arg-type]
    )  # fmt: skip
    writers = Writers(tmp_path, form, chooser, ordered=ordered)  # type: ignore[arg-type]
    follower = Follower(settings, chooser)
    for _ in range(STEPS):
        writers.step()
        match chooser.randrange(4):
            case 0:
                follower.stutters = chooser.random() < 0.5
                await follower.read(chooser.randrange(1, 4))
            case 1:
                await follower.restart()
    writers.end()
    follower.stutters = False
    await follower.read(200)
    assert sorted(follower.found) == list(range(1, writers.numbers + 1))
