"""`{$meta: "stream.source…"}` is told of records alone: what is made of several has none."""

from typing import Any

import pytest

from tidemark.services.cli.process import Runner, run_case

SECOND = {"size": 1, "unit": "second"}
ROWS = [{"t": {"$date": f"2024-01-01T00:00:0{second}.5Z"}, "k": "a", "n": n} for n, second in enumerate((0, 0, 1))]
SOURCE = {"$source": {"documents": ROWS, "timeField": "$t"}}
TOLD = {
    "$addFields": {
        "source": {"$meta": "stream.source"},
        "offset": {"$meta": "stream.source.offset"},
        "ts": {"$meta": "stream.source.ts"},
        "whole": {"$meta": "stream"},
    }
}
GROUP = {"$group": {"_id": "$k", "n": {"$sum": 1}}}
TUMBLING = "$tumblingWindow"


def windowed(*stages: dict[str, Any], kind: str = TUMBLING) -> dict[str, Any]:
    if kind == TUMBLING:
        return {kind: {"interval": SECOND, "pipeline": list(stages)}}
    return {kind: {"gap": SECOND, "partitionBy": "$k", "pipeline": list(stages)}}


def run(*stages: dict[str, Any]) -> list[dict[str, Any]]:
    result = run_case(Runner("local"), {"id": "x", "pipeline": [SOURCE, *stages]})
    assert (result["error"], result["dlq"]) == (None, [])
    output: list[dict[str, Any]] = result["output"]
    assert output
    return output


@pytest.mark.parametrize("kind", [TUMBLING, "$sessionWindow"])
@pytest.mark.parametrize(
    ("inside", "behind"),
    [
        ([GROUP, TOLD], []),
        ([GROUP], [TOLD]),
        ([{"$sort": {"n": 1}}], [TOLD]),
        ([{"$match": {"k": "a"}}], [TOLD]),
        ([{"$count": "n"}, TOLD], []),
        ([{"$limit": 1}, {"$group": {"_id": "$k"}}, TOLD], []),
        ([{"$match": {"k": "a"}}], [windowed({"$match": {"k": "a"}}, TOLD)]),
    ],
    ids=["group inside", "group", "sort", "rows", "count", "limit then group", "window behind a window"],
)
def test_results_of_a_window_name_no_record(
    kind: str, inside: list[dict[str, Any]], behind: list[dict[str, Any]]
) -> None:
    """No partition, offset or time of a record is told of what a window has made; the window is."""
    for document in run(windowed(*inside, kind=kind), *behind):
        assert document.keys().isdisjoint({"source", "offset", "ts"})
        assert document["whole"].keys() == {"window"}
        assert document.get("_id") in ("a", None)


@pytest.mark.parametrize("operator", ["$tumblingWindow", "$sessionWindow"])
@pytest.mark.parametrize("last", [[], [{"$sort": {"n": 1}}], [{"$group": {"_id": "$n", "rows": {"$push": "$$ROOT"}}}]])
def test_records_inside_a_window_have_their_own_place(operator: str, last: list[dict[str, Any]]) -> None:
    """Before a stage makes new documents, a row in a window tells the offset and the event time of its record."""
    found = run(windowed(TOLD, *last, kind=operator))
    rows = [row for document in found for row in document.get("rows", [document])]
    told = sorted((row["n"], row["offset"], row["ts"] == row["t"]) for row in rows)
    assert told == [(0, 0, True), (1, 1, True), (2, 2, True)]


@pytest.mark.parametrize("operator", ["$tumblingWindow", "$sessionWindow"])
@pytest.mark.parametrize("first", [{"$sort": {"n": -1}}, {"$limit": 9}, {"$skip": 0}])
def test_what_puts_rows_into_order_makes_no_new_ones(operator: str, first: dict[str, Any]) -> None:
    """Behind it a row still tells the place of its record, to stages and to a group."""
    rows = run(windowed(first, TOLD, kind=operator))
    assert sorted((row["n"], row["offset"], row["ts"] == row["t"]) for row in rows) == [
        (0, 0, True), (1, 1, True), (2, 2, True),
    ]  # fmt: skip
    offset = {"$meta": "stream.source.offset"}
    groups = run(windowed(first, {"$group": {"_id": offset, "n": {"$push": "$n"}}}, kind=operator))
    assert sorted((group["_id"], group["n"]) for group in groups) == [(0, [0]), (1, [1]), (2, [2])]


def test_pairs_of_a_join_name_no_record() -> None:
    """A pair is made of two records, so it has the place of neither."""
    join = {
        "$join": {
            "from": [SOURCE], "leftKey": "$k", "rightKey": "$k", "type": "inner", "as": "other",
            "within": {"before": SECOND, "after": SECOND},
        }
    }  # fmt: skip
    for document in run(join, TOLD):
        assert document.keys().isdisjoint({"source", "offset", "ts"})
