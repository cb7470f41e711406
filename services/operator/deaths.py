"""Deaths of a process by callback of users' code, counted in the blob store, so that no record kills a processor for ever.

Rules:
- A task that runs users' code leaves a note in the blob store as it begins, and says in it when it is closed in good order. Notes are
  named as blobs are (job / vertex / generation / epoch / name, C12), by the first epoch that may follow the last commit: a commit that
  passes it removes the note and with it the suspicion, for the callbacks of that time have then been applied.
- A task that finds an earlier generation's note without a good end *watches*: before each callback its note says which one, behind it
  that none runs. Between deaths nothing is written.
- A callback in which the process has died `deaths_max` times is not called any more: the reason goes to the dead letter queue with it.
- Watching ends `commits_watched` commits after it began. A callback that kills later is found by the next generation, which begins
  nearer to it.
- Nobody is suspected of the death of a process in which none of these callbacks ran.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from tidemark.shared.model.formats import CALLS_NOTE, Codec
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.messages import Assign
from tidemark.shared.ports.blobs import BlobError, BlobStore, BlobUnavailable, Note
from tidemark.shared.runtime.exchange import blob_name
from tidemark.shared.runtime.settings import DeathSettings

_log = structlog.get_logger()
_NOTE: Final = "calls-"
_LENGTH_BYTES: Final = 4
"""The note's format."""
_GENERATION, _EPOCH, _NAME = 2, 3, 4
"""Places in a blob's name."""


class _Said(msgspec.Struct, array_like=True):
    """The content of a note."""

    left: bool = False
    """The task was closed in good order."""
    call: bytes = b""
    """The callback that runs; empty for none."""
    deaths: dict[bytes, int] = {}
    """By callback, in earlier generations."""


_CODEC: Final[Codec[_Said]] = Codec(CALLS_NOTE, _Said)


class Deaths:
    """`CallGuard` of one task of one generation."""

    def __init__(self, blobs: BlobStore, assign: Assign, unique: Callable[[], str], settings: DeathSettings) -> None:
        self._blobs = blobs
        self._assign = assign
        self._unique = unique
        self._settings = settings
        self._note: Note | None = None
        self._note_passed_by = assign.last
        """The first commit above this takes the note away."""
        self._deaths: dict[bytes, int] = {}
        self._committed = assign.last
        self._commits = 0
        self._died = False
        self.watching = False

    async def open(self) -> None:
        """Read the notes of earlier generations, and leave one."""
        prefix = f"{self._assign.job}/{self._assign.vertex}"
        for name in await self._blobs.list(prefix):
            parts = name.split("/")
            if (
                parts[_NAME].startswith(_NOTE)
                and int(parts[_GENERATION]) < self._assign.generation
                and int(parts[_EPOCH]) > self._assign.last
            ):
                await self._learn(name)
        if self.watching:
            _log.warning(
                "calls.watched", vertex=self._assign.vertex, index=self._assign.index, deaths=len(self._deaths)
            )
        self._write(_Said(deaths=self._deaths))

    async def _learn(self, name: str) -> None:
        try:
            data = await self._blobs.read_note(name)
        except BlobUnavailable:
            raise
        except BlobError as error:
            _log.info("calls.note_gone", note=name, reason=str(error))  # a commit has passed it
            return
        size = int.from_bytes(data[:_LENGTH_BYTES])
        said = _CODEC.decode(data[_LENGTH_BYTES : _LENGTH_BYTES + size]) if data else _Said()
        if said.left:
            return
        self.watching = True
        if said.call:
            said.deaths[said.call] = said.deaths.get(said.call, 0) + 1
        for call, times in said.deaths.items():
            self._deaths[call] = max(times, self._deaths.get(call, 0))
        while len(self._deaths) > self._settings.suspects_max:
            del self._deaths[min(self._deaths, key=lambda call: self._deaths[call])]

    # --- callbacks ------------------------------------------------------------------------------------------------------

    def enter(self, call: bytes) -> str | None:
        """Note that it runs; a reason instead if the process has died in it too often."""
        died = self._deaths.get(call, 0)
        if died >= self._settings.deaths_max:
            return (
                f"the process ended {died} times while this was applied, and it is not tried again; the worker's log may say why"
                " (a signal, an exit in native code, memory)"
            )
        self._write(_Said(call=call, deaths=self._deaths))
        return None

    def leave(self) -> None:
        """Note that none runs."""
        self._write(_Said(deaths=self._deaths))

    def _write(self, said: _Said) -> None:
        if self._note is None:
            assign, epoch = self._assign, Epoch(self._note_passed_by + 1)
            name = blob_name(assign.job, assign.vertex, assign.generation, epoch, _NOTE + self._unique())
            self._note = self._blobs.note(name)
        data = _CODEC.encode(said)
        self._note.write(len(data).to_bytes(_LENGTH_BYTES) + data)

    # --- the task's life --------------------------------------------------------------------------------------------------

    def committed(self, epoch: Epoch) -> None:
        """Checkpoints up to this one are committed: the note may be gone; a task that still watches begins another."""
        if epoch <= self._committed:
            return
        self._committed = epoch
        self._commits += 1
        self._close()
        self._note_passed_by = epoch
        if self.watching and self._commits >= self._settings.commits_watched:
            self.watching = False
            self._deaths.clear()
            _log.info("calls.unwatched", vertex=self._assign.vertex, index=self._assign.index)
        if self.watching:
            self.leave()

    def died(self) -> None:
        """The process of the callbacks has ended, and this one lives: the note's content about them stays."""
        self._died = True

    def close(self) -> None:
        """The task ends in good order; a note that cannot say so makes the next generation watch, and no more."""
        if self._note is None:
            return
        try:
            if not self._died:
                self._write(_Said(left=True))
        except BlobError as error:
            _log.warning("calls.note_kept", vertex=self._assign.vertex, index=self._assign.index, reason=str(error))
        self._close()

    def _close(self) -> None:
        if self._note is not None:
            self._note.close()
            self._note = None
