# ruff: noqa: N802 -- a test carries its rule's name
"""What every source must keep: order and positions of its splits, exact resumption, ends (source port; W4, E1, D11)."""

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tidemark_shelf import ShelfSource

from tests.contract.sources_worlds import (
    AvroLanes,
    ChangeLanes,
    DocumentLanes,
    FileLanes,
    GatewayLanes,
    KafkaLanes,
    PluginLanes,
    ScriptLanes,
    TableLanes,
    World,
    number_of,
)
from tests.harness.opening import open_splits
from tests.harness.raw_log import LogRawReader
from tests.harness.registry import MemoryRegistry
from tidemark.plugins import Away
from tidemark.services.source.connectors.filecursors import Files
from tidemark.services.source.connectors.tables import _SplitReader
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.registry import RegistryUnavailable
from tidemark.shared.ports.source import KnowsOrigins, SourcePort
from tidemark.shared.runtime.body import Fetched

BOUNDED: dict[str, Callable[[Path], World]] = {
    "kafka-until": lambda _: KafkaLanes(until="latest"),
    "avro-until": lambda _: AvroLanes(until="latest"),
    "gateway-until": lambda _: GatewayLanes(until="latest"),
    "json": lambda path: FileLanes(path, "json", ordered=False, follow=False),
    "csv": lambda path: FileLanes(path, "csv", ordered=False, follow=False),
    "parquet": lambda path: FileLanes(path, "parquet", ordered=False, follow=False),
    "json-ordered": lambda path: FileLanes(path, "json", ordered=True, follow=False),
    "csv-ordered": lambda path: FileLanes(path, "csv", ordered=True, follow=False),
    "parquet-ordered": lambda path: FileLanes(path, "parquet", ordered=True, follow=False),
    "delta": lambda path: TableLanes(path, "delta", ordered=False, follow=False),
    "delta-ordered": lambda path: TableLanes(path, "delta", ordered=True, follow=False),
    "iceberg": lambda path: TableLanes(path, "iceberg", ordered=False, follow=False),
    "iceberg-ordered": lambda path: TableLanes(path, "iceberg", ordered=True, follow=False),
    "script": lambda _: ScriptLanes(),
    "documents": lambda _: DocumentLanes(),
    "plugin": lambda path: PluginLanes(path, follow=False),
}
GROWING: dict[str, Callable[[Path], World]] = {
    "kafka": lambda _: KafkaLanes(),
    "avro": lambda _: AvroLanes(),
    "gateway": lambda _: GatewayLanes(),
    "json-follow": lambda path: FileLanes(path, "json", ordered=False, follow=True),
    "csv-follow": lambda path: FileLanes(path, "csv", ordered=False, follow=True),
    "parquet-follow": lambda path: FileLanes(path, "parquet", ordered=False, follow=True),
    "csv-ordered-follow": lambda path: FileLanes(path, "csv", ordered=True, follow=True),
    "plugin-follow": lambda path: PluginLanes(path, follow=True),
    "json-ordered-follow": lambda path: FileLanes(path, "json", ordered=True, follow=True),
    "delta-follow": lambda path: TableLanes(path, "delta", ordered=True, follow=True),
    "iceberg-follow": lambda path: TableLanes(path, "iceberg", ordered=True, follow=True),
    "change-stream": lambda _: ChangeLanes(),
}


OUTSIDE: tuple[tuple[type, Any, str, Exception], ...] = (
    (FileLanes, Files, "read", LogUnavailable("the share stutters")),
    (FileLanes, Files, "state", LogUnavailable("the share stutters")),
    (TableLanes, _SplitReader, "_fill", LogUnavailable("the store stutters")),
    (PluginLanes, ShelfSource, "read", Away("the shelf stutters")),
    (AvroLanes, MemoryRegistry, "schema", RegistryUnavailable("the registry stutters")),
    (KafkaLanes, LogRawReader, "fetch", LogUnavailable("the broker stutters")),
)
"""What leads outside in a world, and how it says that it does not answer."""


async def fill(world: World, lanes: int = 3, each: int = 10) -> None:
    """Numbers 0, 1, 2, … dealt to lanes in turn."""
    single = isinstance(world, DocumentLanes | ChangeLanes)
    for lane in range(lanes):
        await world.add(0 if single else lane, [lanes * i + lane for i in range(each)])


async def filled(make: Callable[[Path], World], path: Path) -> AsyncIterator[World]:
    made = make(path)
    await fill(made)
    yield made
    if isinstance(made, ChangeLanes):
        await made.close()


@pytest.fixture(params=[*BOUNDED, *GROWING])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async for made in filled({**BOUNDED, **GROWING}[request.param], tmp_path):
        yield made


@pytest.fixture(params=list(BOUNDED))
async def bounded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async for made in filled(BOUNDED[request.param], tmp_path):
        yield made


@pytest.fixture(params=list(GROWING))
async def growing(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async for made in filled(GROWING[request.param], tmp_path):
        yield made


async def opened(
    world: World, positions: Mapping[SplitId, Offset] | None = None, of: SourcePort | None = None
) -> SourcePort:
    """A source on the world; as a later generation, at positions of another source with what a snapshot has beside them."""
    source = world.source()
    if positions is not None and isinstance(of, KnowsOrigins) and isinstance(source, KnowsOrigins):
        source.know({split: of.origins(split, position) for split, position in positions.items()})
    await open_splits(source, positions)
    return source


def numbers(batches: list[RawBatch]) -> dict[SplitId, list[int]]:
    found: dict[SplitId, list[int]] = {}
    for batch in batches:
        assert len(batch.positions) == len(batch.values) == len(batch.timestamps_ms)
        found.setdefault(batch.split, []).extend(number_of(value) for value in batch.values.to_pylist())
    return found


async def drain(source: SourcePort, max_bytes: int = 1 << 20) -> list[RawBatch]:
    """Everything up to where all splits are at their end."""
    batches: list[RawBatch] = []
    while not all(status.at_end for status in source.status()):
        batches += await source.fetch(max_bytes, 5)
    return batches


async def test_each_split_is_read_whole_and_in_order(world: World) -> None:
    """All records of every split come once, in the split's order, with positions that grow."""
    source = await opened(world)
    batches = await drain(source, max_bytes=40)
    assert sorted(numbers(batches).values()) == sorted(world.lanes)
    for split in numbers(batches):
        positions = [p for batch in batches if batch.split == split for p in batch.positions.tolist()]
        assert positions == sorted(set(positions))


async def test_C6_a_restart_resumes_exactly_from_any_status(world: World) -> None:
    """From the positions after any fetch, a fresh source gives exactly what had not been given: no input need be stored besides."""
    source = await opened(world)
    given: list[RawBatch] = []
    while not all(status.at_end for status in source.status()):
        given += await source.fetch(30, 5)
        positions = {s.split: s.next_position for s in source.status()}
        rest = await drain(await opened(world, positions, source))
        assert sorted(numbers(given + rest).values()) == sorted(world.lanes)


async def test_C2_a_fetch_may_be_divided_anywhere(world: World) -> None:
    """Rows of a fetch in pieces: behind each piece a fresh source goes on from its statuses, and gives exactly the rows of the others."""
    source = await opened(world)
    given: list[RawBatch] = []
    positions = {status.split: status.next_position for status in source.status()}
    while not all(status.at_end for status in source.status()):
        rest: Fetched | None = Fetched(await source.fetch(1 << 20, 5), source.status())
        while rest is not None:
            piece, rest = rest.divided(4)
            given += piece.batches
            positions |= {status.split: status.next_position for status in piece.statuses}
            behind = await drain(await opened(world, positions, source))
            assert sorted(numbers([*given, *behind]).values()) == sorted(world.lanes)
            divided = {batch.split for batch in (rest.batches if rest else ())}
            assert not any(s.at_end or s.finished for s in piece.statuses if s.split in divided)


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_read_in_front_of_an_outage_comes_once(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The other side breaks off at any read of any split, also behind others of the same fetch: each record comes once, none is lost."""
    source, chooser, broken = await opened(world), random.Random(seed), []

    def breaks(owner: Any, name: str, error: Exception) -> None:
        asks = getattr(owner, name)

        def asked(*args: Any, **named: Any) -> Any:
            if chooser.random() < 0.4:
                broken.append(name)
                raise error
            return asks(*args, **named)

        monkeypatch.setattr(owner, name, asked)

    outside = [where for kind, *where in OUTSIDE if isinstance(world, kind)]
    for where in outside:
        breaks(*where)
    given: list[RawBatch] = []
    while not all(status.at_end for status in source.status()):
        with suppress(LogUnavailable):
            given += await source.fetch(chooser.choice((30, 200, 1 << 20)), 5)
    assert broken or not outside
    assert sorted(numbers(given).values()) == sorted(world.lanes)


async def test_d11_ordinals_and_splits_agree_between_tasks(world: World) -> None:
    """Two tasks see the same splits with the same ordinals, all different; divided among them, everything is read once."""
    one, two = world.source(), world.source()
    splits = await one.splits()
    assert splits == await two.splits()
    assert len(set(splits.values())) == len(splits)
    names = list(splits)
    await open_splits(one, splits=names[::2])
    await open_splits(two, splits=names[1::2])
    batches = await drain(one) + await drain(two)
    assert sorted(numbers(batches).values()) == sorted(world.lanes)
    assert all(batch.partition == splits[batch.split] for batch in batches)


async def test_E1_a_bounded_split_is_finished_at_its_end(bounded: World) -> None:
    """Every split of a bounded source says that it is finished, only after its last record, and gives nothing more."""
    source = await opened(bounded)
    seen: list[RawBatch] = []
    while not all(status.finished for status in source.status()):
        seen += await source.fetch(50, 5)
    assert sorted(numbers(seen).values()) == sorted(bounded.lanes)
    assert await source.fetch(50, 1) == []


async def test_E1_a_restart_at_the_end_is_finished_without_records(bounded: World) -> None:
    """Opened at the end positions, a bounded source finishes and repeats nothing."""
    source = await opened(bounded)
    await drain(source)
    again = await opened(bounded, {s.split: s.next_position for s in source.status()}, source)
    assert numbers(await drain(again)) == {}
    assert all(status.finished for status in again.status())


async def test_W4_a_growing_split_at_its_end_goes_on_when_more_comes(growing: World) -> None:
    """At the end it is not finished; what is added later is read, from where it stood."""
    source = await opened(growing)
    await drain(source)
    assert not any(status.finished for status in source.status())
    await growing.add(0, [100, 101])
    found: list[int] = []
    while len(found) < 2:
        found += [n for lane in numbers(list(await source.fetch(1000, 5))).values() for n in lane]
    assert found == [100, 101]


async def test_E2_end_at_stops_named_splits_there(growing: World) -> None:
    """With `end_at`, positions from the named ones on are not read, and the splits finish there; others go on."""
    probe = await opened(growing)
    batches = await drain(probe)
    split = batches[0].split
    positions = [p for batch in batches if batch.split == split for p in batch.positions.tolist()]
    source = await opened(growing)
    source.end_at({split: Offset(positions[4])})
    read = await drain(source)
    assert [p for batch in read if batch.split == split for p in batch.positions.tolist()] == positions[:4]
    assert [s.split for s in source.status() if s.finished] == [split]
    assert {s.split: s.next_position for s in source.status()}[split] == positions[4]


async def test_I3_ends_are_behind_what_is_there_now(growing: World) -> None:
    """Asked at any position, a source that goes on names the end of what is there; read up to it, all splits finish with all of it."""
    source = await opened(growing)
    given = list(await source.fetch(30, 5))
    ends = await source.ends({s.split: s.next_position for s in source.status()})
    source.end_at({split: end for split, end in ends.items() if end is not None})
    lanes = [list(lane) for lane in growing.lanes]
    await growing.add(0, [100, 101])
    while not all(status.finished for status in source.status()):
        given += await source.fetch(1 << 20, 5)
    assert sorted(numbers(given).values()) == sorted(lanes)


async def test_I3_what_ends_by_itself_is_not_cut_short(bounded: World) -> None:
    """A bounded source ends where it would have ended, or does not say where that is."""
    source = await opened(bounded)
    given = list(await source.fetch(30, 5))
    ends = await source.ends({s.split: s.next_position for s in source.status()})
    source.end_at({split: end for split, end in ends.items() if end is not None})
    while not all(status.finished for status in source.status()):
        given += await source.fetch(1 << 20, 5)
    assert sorted(numbers(given).values()) == sorted(bounded.lanes)


async def test_I2_what_has_not_been_replaced_passes_the_check(world: World) -> None:
    """A source made anew on the same files or topics finds the origins that were known."""
    known = await open_splits(world.source())
    await world.source().check(known)


async def test_I2_what_only_grew_passes_the_check(growing: World) -> None:
    """Records that are added, and splits, change no origin."""
    known = await open_splits(growing.source())
    await growing.add(0, [100, 101])
    await growing.source().check(known)


@pytest.mark.parametrize("name", ["kafka", "gateway", "json-follow", "csv-follow", "parquet-follow", "plugin-follow"])
async def test_new_splits_are_noticed_and_read_from_their_beginning(name: str, tmp_path: Path) -> None:
    """A split that appears while the source runs shows in `splits`; opened besides the others, it is read whole."""
    growing = GROWING[name](tmp_path)
    await fill(growing)
    source = await opened(growing)
    await drain(source)
    before = await source.splits()
    await growing.add(3, [100, 101])
    after = await source.splits()
    assert before.items() <= after.items()
    new = after.keys() - before.keys()
    await open_splits(source, splits=list(new), first=False)
    assert [n for lane in numbers(await drain(source)).values() for n in lane] == [100, 101]
