"""What `{$meta: "stream…"}` tells in and behind windows is the same on Spark as on the local engine."""

import logging
from typing import Any

import pytest

from tidemark.services.cli.process import Runner, quiet, run_case, runner

pytestmark = pytest.mark.spark
_SECOND = {"size": 1, "unit": "second"}
_ROWS = [{"t": {"$date": f"2024-01-01T00:00:0{s}.5Z"}, "k": "a", "n": n} for n, s in enumerate((0, 0, 1))]
_SET = {"$setStreamMeta": {"stream.set": {"n": "$n"}}}
_TOLD = {
    "$addFields": {"ts": {"$meta": "stream.source.ts"}, "set": {"$meta": "stream.set.n"}, "whole": {"$meta": "stream"}}
}
_OFFSETS = {"offsets": {"$push": {"$meta": "stream.source.offset"}}, "set": {"$sum": {"$meta": "stream.set.n"}}}
_GROUP = {"$group": {"_id": "$k", **_OFFSETS}}


def _case(kind: str, inside: list[dict[str, Any]]) -> dict[str, Any]:
    extent = {"interval": _SECOND} if kind == "$tumblingWindow" else {"gap": _SECOND, "partitionBy": "$k"}
    window = {kind: {**extent, "pipeline": inside}}
    source = {"$source": {"documents": _ROWS, "timeField": "$t"}}
    return {"id": "x", "pipeline": [source, _SET, window, {"$addFields": {"behind": {"$meta": "stream"}}}]}


def test_both_engines_tell_the_same_of_the_source() -> None:
    """Rows inside, groups, sorted rows and what stands behind a window, tumbling and session."""
    quiet(logging.CRITICAL)
    pipelines: list[list[dict[str, Any]]] = [[_TOLD], [_TOLD, _GROUP, _TOLD], [{"$sort": {"n": -1}}, _TOLD]]
    cases = [_case(kind, inside) for kind in ("$tumblingWindow", "$sessionWindow") for inside in pipelines]
    with runner("spark") as spark:
        for case in cases:
            here, there = run_case(Runner("local"), case), run_case(spark, case)
            assert here["output"]
            assert all(row["behind"].keys() == {"window"} for row in here["output"])
            assert sum(row["set"] for row in here["output"] if "set" in row) in (0, 3)
            assert (there["error"], there["output"]) == (here["error"], here["output"])
