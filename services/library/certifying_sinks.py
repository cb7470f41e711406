"""The tests that a plug-in's sink has to pass: its author derives a class from `SinkContract`, and pytest runs them."""

import asyncio
import itertools
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final

from tidemark.services.library.certifying import VersionContract
from tidemark.services.library.hands import HANDS
from tidemark.services.library.release_world import (
    IDENTITY,
    PHASES,
    InlineSpawner,
    Task,
    World,
    batch_of,
    row_of,
    story_of_two_crashes,
)
from tidemark.services.sink.connectors.plugin import PART_ROWS_MAX, PluginSink
from tidemark.services.sink.connectors.staging import PartStore
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Binary, Date, ObjectId, Value, long
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.plugins.interface import Away, Overtaken, Refused, Sink

Given = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A stage's config, and the config of its connection."""
LINES_MAX: Final = 500
"""Of a plug-in's own code that a write runs through: a child is killed at each."""
_ROWS_MAX: Final = 2
"""Of one write: an epoch has several."""
_FIRST, _SECOND = b'{"marker": 1}', b'{"marker": 2}'
_LONG: Final = b'{"marker": "%s"}' % (b"m" * 500)
"""Longer than any that Tidemark writes."""
_LONGEST: Final = "i" * 199
"""An identity has one letter more."""
_PAUSE_S: Final = 0.05
"""For which a writer stands still while another one writes: that one may have to wait for it, so it is no failure if it takes longer."""
_VALUES: Final[Mapping[str, Value]] = {
    "null": None, "a truth value": True, "a negative number": -1, "a long": long(2**62), "a double": 0.5, "infinity": float("inf"),
    "no number": float("nan"), "a decimal": Decimal("0.1"), "an empty text": "", "quotes": "it's \"quoted\"", "letters": "Köln, 北京, 🌊",
    "lines": "a\nb\r\n", "a zero character": "a\0b", "a long text": "x" * 100_000, "a date": Date(1_767_225_600_000),
    "an early date": Date(-(10**14)), "an array": [1, "a", None], "an empty array": [], "a document": {"a": {"b": 1}},
    "an empty document": {}, "documents in an array": [{"a": 1}, {"b": 2}], "binary data": Binary(b"\x00\xff"),
    "an ObjectId": ObjectId(b"0123456789ab"),
}  # fmt: skip
"""What a document's field may have, by name."""


@dataclass
class _Outside:
    """The outside of a sink, as stories have it."""

    make: Callable[[], Sink[Any, Any]]
    seen: Callable[[], Sequence[int]]
    blobs: MemoryBlobs = field(default_factory=lambda: MemoryBlobs(InlineSpawner()))
    names: Iterator[int] = field(default_factory=itertools.count)

    def sink(self) -> PluginSink:
        """See `Target.sink`."""
        parts = PartStore(self.blobs, lambda epoch: f"{epoch}/{next(self.names)}")
        return PluginSink(self.make, "the plug-in", parts, HANDS, _ROWS_MAX)

    async def visible(self) -> list[int]:
        """See `Target.visible`."""
        return list(self.seen())


class SinkContract(VersionContract):
    """Derive `class TestMine(SinkContract)`, set `plugin`, write `given` and `visible`.

    The documents that are written have the fields `id` (0, 1, 2, …), `name` and `even`.
    """

    plugin: ClassVar[type[Sink[Any, Any]]]

    def given(self, folder: Path) -> Given:
        """A target where nothing was ever written: config of the stage, and of its connection. `folder` is empty, and the target's own."""
        raise TypeError(f"{type(self).__name__}: write given(self, folder)")

    def visible(self, folder: Path) -> Sequence[int]:
        """The `id` of each document that a reader of the target sees now, in any order."""
        raise TypeError(f"{type(self).__name__}: write visible(self, folder)")

    # --- what it must keep ------------------------------------------------------------------------------------------------

    def test_a_write_that_does_not_follow_the_last_marker_writes_nothing(self, tmp_path: Path) -> None:
        """Overtaken: behind a marker that is not the last, behind none where there is one, and behind one where there is none."""
        make = self._maker(tmp_path)
        with _opened(make) as sink:
            assert sink.marker("a") is None, "an identity that nothing was written under has no marker"
            _overtaken(sink, "a", 0, _SECOND, _FIRST)
            sink.write("a", [_document(0)], _FIRST, None)
            _overtaken(sink, "a", 1, _SECOND, None)
            _overtaken(sink, "a", 1, _SECOND, _SECOND)
            assert sink.marker("a") == _FIRST, "a write that was refused has changed the marker"
        assert sorted(self.visible(tmp_path)) == [0], "a write that was refused has changed what readers see"

    def test_a_marker_outlives_the_object_and_is_of_its_identity_alone(self, tmp_path: Path) -> None:
        """Another object finds it; other identities have their own; a write without documents moves it."""
        make = self._maker(tmp_path)
        with _opened(make) as sink:
            sink.write("a.b-c.0", [_document(0)], _FIRST, None)
            assert sink.marker("a.b-c.1") is None, "a marker of another identity"
            found = sink.marker("a.b-c.0")
            assert type(found) is bytes, f"a marker is bytes, found {type(found).__name__}"
            sink.write("a.b-c.1", [], _FIRST, None)
        with _opened(make) as sink:
            assert sink.marker("a.b-c.0") == _FIRST, "the marker is gone with the object that wrote it"
            sink.write("a.b-c.0", [], _SECOND, _FIRST)
            assert (sink.marker("a.b-c.0"), sink.marker("a.b-c.1")) == (_SECOND, _FIRST)
            sink.write(_LONGEST + "0", [], _LONG, None)
            assert sink.marker(_LONGEST + "1") is None, (
                "two identities of 200 letters, with the same 199 in front, have one marker"
            )
            assert sink.marker(_LONGEST + "0") == _LONG, f"a marker of {len(_LONG)} bytes is not what was written"
        assert sorted(self.visible(tmp_path)) == [0], "a write without documents has changed what readers see"

    def test_all_values_are_written_or_refused(self, tmp_path: Path) -> None:
        """By `refused`, or as Refused: a document of which neither is said, and that cannot be written, would be tried for ever."""
        make, last = self._maker(tmp_path), None
        expected: list[int] = []
        for number, (what, value) in enumerate(_VALUES.items()):
            document = {**_document(number), "value": value}
            if make().refused([document]):
                continue
            with _opened(make) as sink:
                try:
                    sink.write("a", [document], _marker(number), last)
                except Refused:
                    continue
                except Exception as error:
                    raise AssertionError(
                        f"a document with {what} is not written ({type(error).__name__}: {error}): name it in refused()"
                    ) from error
            last = _marker(number)
            expected.append(number)
        assert sorted(self.visible(tmp_path)) == expected, "documents with values of all kinds"

    def test_many_documents_are_written_at_once(self, tmp_path: Path) -> None:
        """As many as Tidemark hands over at the most."""
        with _opened(self._maker(tmp_path)) as sink:
            sink.write("a", [_document(n) for n in range(PART_ROWS_MAX)], _FIRST, None)
        seen = sorted(self.visible(tmp_path))
        assert seen == list(range(PART_ROWS_MAX)), (
            f"{PART_ROWS_MAX} documents were written, and readers see {len(seen)}"
        )

    def test_an_object_that_was_never_opened_can_be_closed(self, tmp_path: Path) -> None:
        """An object is closed where `open` has failed, too."""
        self._maker(tmp_path)().close()

    def test_of_two_writers_behind_one_marker_one_writes(self, tmp_path: Path) -> None:
        """At the same time, from two threads: one is done, the other Overtaken or Away; then the other one is Overtaken."""
        make = self._maker(tmp_path)
        for turn in range(5):
            after = _marker(turn - 1) if turn else None
            written, others = _race(make, turn, after)
            assert written == 1, f"{written} of two writes behind one marker were done"
            assert all(isinstance(each, Overtaken | Away) for each in others), f"expected Overtaken or Away: {others}"
        assert sorted(self.visible(tmp_path)) == list(range(5)), "a document came twice, or not at all"

    def test_a_writer_that_stands_still_in_a_write_does_not_write_behind_another(self, tmp_path: Path) -> None:
        """At each line of the plug-in's code in turn, while another one writes behind the same marker: one is done, and not both."""
        for line in range(1, LINES_MAX + 1):
            folder = tmp_path / str(line)
            folder.mkdir()
            make = self._maker(folder)
            written, others, went_through = _overtaking(line, self.plugin, make)
            where = f"while the first writer stood at line {line} of its code, another one wrote"
            assert written == 1, f"{where}: {written} of two writes behind one marker were done"
            assert all(isinstance(each, Overtaken) for each in others), f"{where}: expected Overtaken, found {others}"
            assert len(self.visible(folder)) == 1, f"{where}: readers see {self.visible(folder)}"
            if went_through:
                return
        raise AssertionError(f"a write runs through more than {LINES_MAX} lines of the plug-in's own code")

    def test_a_process_that_dies_in_a_write_leaves_all_or_nothing(self, tmp_path: Path) -> None:
        """It is killed at each line of the plug-in's code in turn; whoever goes on writes the documents once."""
        for line in range(1, LINES_MAX + 1):
            folder = tmp_path / str(line)
            folder.mkdir()
            make = self._maker(folder)
            with _opened(make) as sink:
                sink.write("a", [_document(0)], _FIRST, None)
            documents = [_document(1), _document(2)]
            went_through = _killed_at(line, self.plugin, make, documents)
            seen = sorted(self.visible(folder))
            with _opened(make) as sink:
                found = sink.marker("a")
                whole = {_FIRST: [0], _SECOND: [0, 1, 2]}.get(found or b"")
                assert seen == whole, (
                    f"killed at line {line} of its code: the marker is {found!r}, and readers see {seen}"
                )
                if found == _FIRST:
                    sink.write("a", documents, _SECOND, _FIRST)
            assert sorted(self.visible(folder)) == [0, 1, 2], f"killed at line {line} of its code"
            assert not went_through or found == _SECOND, (
                "a process died behind a write that had returned: what it wrote is gone"
            )
            if went_through:
                return
        raise AssertionError(f"a write runs through more than {LINES_MAX} lines of the plug-in's own code")

    def test_exactly_once_whatever_the_order_of_crashes(self, tmp_path: Path) -> None:
        """Two crashes, each behind any phase of an epoch, with and without the old object going on: each row once, none left out."""
        for first, second, zombies in itertools.product(PHASES, PHASES, (False, True)):
            folder = tmp_path / f"{first}-{second}-{zombies}"
            folder.mkdir()
            asyncio.run(story_of_two_crashes(self._target(folder), first, second, zombies=zombies))

    def test_what_is_staged_is_not_visible_and_an_aborted_epoch_comes_with_the_next(self, tmp_path: Path) -> None:
        """Nothing is seen in front of a commit; rows of an epoch without one are released with the commit behind it."""
        target = self._target(tmp_path)
        asyncio.run(_aborted(target))

    def test_a_commit_that_is_released_again_changes_nothing(self, tmp_path: Path) -> None:
        """By the same object, and by one that is opened later."""
        asyncio.run(_released_again(self._target(tmp_path)))

    def test_documents_are_looked_at_by_an_object_that_is_not_opened(self, tmp_path: Path) -> None:
        """`refused` names places of documents, with reasons, and needs no connection."""
        found = self._maker(tmp_path)().refused([_document(n) for n in range(3)])
        assert all(0 <= place < len(range(3)) and reason for place, reason in found.items()), f"refused: {found}"

    # --- its world ----------------------------------------------------------------------------------------------------------

    def _maker(self, folder: Path) -> Callable[[], Sink[Any, Any]]:
        config, settings = self.given(folder)
        return lambda: make_of(self.plugin.__name__, self.plugin, config, settings)

    def _target(self, folder: Path) -> _Outside:
        return _Outside(self._maker(folder), lambda: self.visible(folder))


def _document(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"n{number}", "even": number % 2 == 0}


def _marker(turn: int) -> bytes:
    return b'{"turn": %d}' % turn


@contextmanager
def _opened(make: Callable[[], Sink[Any, Any]]) -> Iterator[Sink[Any, Any]]:
    sink = make()
    try:
        sink.open()
        yield sink
    finally:
        sink.close()


def _overtaken(sink: Sink[Any, Any], identity: str, number: int, marker: bytes, after: bytes | None) -> None:
    try:
        sink.write(identity, [_document(number)], marker, after)
    except Overtaken:
        return
    raise AssertionError(f"expected Overtaken: {after!r} is not the last marker of {identity}")


def _race(make: Callable[[], Sink[Any, Any]], turn: int, after: bytes | None) -> tuple[int, list[Exception]]:
    """How many of two writes were done, and what the others raised; one that was Away has tried again."""
    both = threading.Barrier(2)
    writes = [_Write(make, turn, after, both.wait) for _ in range(2)]
    for each in writes:
        each.start()
    for each in writes:
        each.join()
    return sum(each.done for each in writes), [each.raised for each in writes if each.raised is not None]


def _overtaking(line: int, plugin: type[Any], make: Callable[[], Sink[Any, Any]]) -> tuple[int, list[Exception], bool]:
    """As `_race`, with one that stands still at a line of the plug-in's code; and whether it came through before."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait()

    lines = _Lines(line, plugin, stand)
    first = _Write(make, 0, None, lambda: sys.settrace(lines.trace))
    second = _Write(make, 0, None, lambda: None)
    first.start()
    while first.is_alive() and not stands.wait(_PAUSE_S):
        pass
    second.start()
    second.join(_PAUSE_S)  # it may wait for the first one
    goes_on.set()
    for each in (first, second):
        each.join()
    raised = [each.raised for each in (first, second) if each.raised is not None]
    return first.done + second.done, raised, not stands.is_set()


class _Write(threading.Thread):
    """One write of one document, by an object of its own; one that was Away is tried again."""

    def __init__(
        self, make: Callable[[], Sink[Any, Any]], turn: int, after: bytes | None, begins: Callable[[], object]
    ) -> None:
        super().__init__(daemon=True)
        self._make, self._turn, self._after, self._begins = make, turn, after, begins
        self.done = False
        self.raised: Exception | None = None

    def run(self) -> None:
        """See `Thread.run`."""
        try:
            with _opened(self._make) as sink:
                self._begins()
                for _ in range(100):
                    try:
                        sink.write("a", [_document(self._turn)], _marker(self._turn), self._after)
                        self.done = True
                    except Away:
                        continue
                    return
        except Exception as error:  # noqa: BLE001 - the test judges it
            self.raised = error
        finally:
            sys.settrace(None)


def _killed_at(
    line: int, plugin: type[Any], make: Callable[[], Sink[Any, Any]], documents: Sequence[dict[str, Any]]
) -> bool:
    """Write in a child that is killed at a line of the plug-in's package, counted from 1; whether it came through before."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # that threads of ours are not in the child, which needs none
        child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return False
        assert status == 0, f"the write failed in a child process, status {status}"
        return True
    status = 1
    try:
        sys.settrace(_Lines(line, plugin, lambda: os.kill(os.getpid(), signal.SIGKILL)).trace)
        sink = make()
        sink.open()
        sink.write("a", documents, _SECOND, sink.marker("a"))
        sys.settrace(None)
        status = 0
    finally:
        os._exit(status)


@dataclass
class _Lines:
    """Counts the lines of a plug-in's package, and does something at one."""

    left: int
    plugin: type[Any]
    reached: Callable[[], None]

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """See `sys.settrace`."""
        del arg
        package = self.plugin.__module__.partition(".")[0]
        if frame.f_globals.get("__name__", "").partition(".")[0] != package:
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                self.reached()
        return self.trace


async def _aborted(target: _Outside) -> None:
    world = World(target)
    task = Task(world)
    await task.start()
    await task.accept()
    await task.stage()
    assert await target.visible() == [], "what is not committed is visible"
    await task.accept()
    await task.stage()
    await task.commit()
    await task.release()
    await world.complete()


async def _released_again(target: _Outside) -> None:
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    await task.sink.release(*world.commits[0])
    later = target.sink()
    assert await later.open(IDENTITY, world.last) == world.last
    await later.release(*world.commits[0])
    await later.accept(batch_of([world.committed_rows]))
    epoch = world.next_epoch()
    staged = await later.stage(epoch, world.last)
    await later.release(row_of(epoch, world.last, staged), staged)
    assert sorted(await target.visible()) == list(range(world.committed_rows + 1))
    assert await target.sink().open(IDENTITY, Epoch(epoch)) == epoch
