"""The departures feed: what is sent, in which order, to which partition; and the oracle's reading of it."""

import json
from datetime import UTC, datetime

import pytest

from tests.oracle import departures as oracle
from tests.oracle.check_demo import feed_of, settled_feed
from tidemark.deploy.pipelines.departures.data import Feed, Gap, departures, utc_of


@pytest.fixture(scope="module")
def feed() -> Feed:
    return feed_of()


@pytest.fixture(scope="module")
def settled() -> oracle.Settled:
    return settled_feed()


def test_every_departed_flight_is_sent_and_no_other(feed: Feed) -> None:
    """The ids in the feed are those of the flights that departed, as pandas derives them from the raw data."""
    flights = oracle.scheduled_flights()
    ids = {json.loads(v)["id"] for p in feed.partitions for _, v in p}
    assert ids == set(flights[flights.departed].id)
    assert feed.flights == len(ids) == 336_776 - 8_255


def test_order_is_that_of_leaving(feed: Feed) -> None:
    """Without its repeats each partition is in the order of scheduled + delay, and so is the merged feed."""
    once = departures(repeat_rate=0)
    last = 0
    for _, _, value in once.in_order():
        doc = json.loads(value)
        left = oracle.utc_ms(doc["scheduled"]) + doc["delay_min"] * 60_000
        assert left >= last, doc
        last = left
    assert [v for _, _, v in feed.in_order()] != [v for _, _, v in once.in_order()]


def test_an_event_is_small_and_has_its_fields(feed: Feed) -> None:
    """An event is a flat JSON document of at most 150 bytes with the declared fields, the time in UTC with Z."""
    first = json.loads(feed.partitions[0][0][1])
    assert list(first) == ["id", "origin", "dest", "carrier", "flight", "scheduled", "delay_min"]
    assert first["scheduled"].endswith("Z")
    assert max(len(v) for p in feed.partitions for _, v in p) <= 150


def test_repeats_are_near_their_original_in_its_partition(feed: Feed) -> None:
    """Each repeat is the same bytes as its original, in the same partition, at most some 200 places later; their number is known."""
    repeats = 0
    for pairs in feed.partitions:
        place: dict[bytes, int] = {}
        for i, (_, value) in enumerate(pairs):
            if value in place:
                repeats += 1
                assert 0 < i - place[value] < 220
            place.setdefault(value, i)
    assert repeats == feed.repeats
    assert 0.004 < repeats / feed.sent < 0.006


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_a_key_lies_in_one_partition(partitions: int) -> None:
    """All events of one key are in one partition, for any number of partitions, and the same events are sent."""
    feed = departures(partitions, days=20)
    homes: dict[bytes, set[int]] = {}
    for p, pairs in enumerate(feed.partitions):
        for key, _ in pairs:
            homes.setdefault(key, set()).add(p)
    assert all(len(h) == 1 for h in homes.values())
    assert feed.sent == departures(days=20).sent


def test_a_gap_takes_out_its_flights_and_nothing_else(feed: Feed) -> None:
    """The control feed is the feed less the flights of that airport and time, repeats included."""
    gap = Gap("EWR", datetime(2013, 6, 4, 14, tzinfo=UTC), datetime(2013, 6, 4, 18, tzinfo=UTC))
    control = departures(without=[gap])
    for kept, everything in zip(control.partitions, feed.partitions, strict=True):
        inside = [
            v
            for _, v in everything
            if b'"origin":"EWR"' in v and b"2013-06-04T14" <= v.split(b'"scheduled":"')[1][:13] < b"2013-06-04T18"
        ]
        assert sorted(v for _, v in everything) == sorted([v for _, v in kept] + inside)
    assert control.removed > 50


@pytest.mark.parametrize(
    ("local", "utc"),
    [
        (datetime(2013, 1, 1, 5, 15), datetime(2013, 1, 1, 10, 15, tzinfo=UTC)),  # noqa: DTZ001 - local on purpose
        (datetime(2013, 7, 1, 5, 15), datetime(2013, 7, 1, 9, 15, tzinfo=UTC)),  # noqa: DTZ001
        (datetime(2013, 11, 3, 1, 30), datetime(2013, 11, 3, 5, 30, tzinfo=UTC)),  # noqa: DTZ001
        (datetime(2013, 3, 10, 2, 30), datetime(2013, 3, 10, 7, 30, tzinfo=UTC)),  # noqa: DTZ001
    ],
    ids=["winter", "summer", "twice", "skipped"],
)
def test_local_time_becomes_utc(local: datetime, utc: datetime) -> None:
    """Winter and summer have their offsets; a time that is there twice is the first; a skipped one has the offset before."""
    assert utc_of(local) == utc


def test_every_event_is_counted_late_or_a_duplicate(feed: Feed, settled: oracle.Settled) -> None:
    """Counts + late + duplicates = sent; the counts are pandas' less the late flights; 0.01 % to 2 % are late."""
    assert settled.counted + len(settled.late) + settled.duplicates == settled.sent == feed.sent
    assert settled.duplicates == feed.repeats
    late = [f.id for f in settled.late]
    assert settled.counts == oracle.counts_of(oracle.scheduled_flights(), late)
    assert 0.0001 < len(late) / feed.flights < 0.02
    assert len(late) == 226


def test_no_hour_is_lost_to_lateness(settled: oracle.Settled) -> None:
    """Every hour in which flights departed keeps a count: lateness alone makes no hour look absent."""
    assert settled.counts.keys() == oracle.counts_of(oracle.scheduled_flights()).keys()


def test_the_year_s_absences_are_found(settled: oracle.Settled) -> None:
    """All 32 absences alert as absent; the three others are the evening of Thanksgiving; under 1,500 alerts in all."""
    flights = oracle.scheduled_flights()
    alerts = oracle.alerts(settled.counts)
    absent = {(a["origin"], a["hour"]) for a in alerts if a["cause"] == "absent"}
    must = {(o, oracle.iso(h)) for o, h in oracle.absences(flights)}
    assert len(must) == 32
    assert must <= absent
    assert absent - must == {
        ("EWR", "2013-11-29T01:00:00Z"),
        ("LGA", "2013-11-29T01:00:00Z"),
        ("LGA", "2013-11-29T02:00:00Z"),
    }
    assert len(alerts) <= 1500
