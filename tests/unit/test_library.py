"""`import tidemark`: pipelines checked, explained and tried out from Python."""

import asyncio
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal, DefaultContext, FloatOperation, localcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import tidemark
from tidemark.services.library.documents import to_language, to_python
from tidemark.shared.language.values import from_json
from tidemark.shared.model.values import Date
from tidemark.testing import Harness

QUAKES: dict[str, Any] = {
    "pipeline": [
        {"$source": {"connectionName": "c", "topic": "quakes", "timeField": "$at"}},
        {
            "$tumblingWindow": {
                "interval": {"size": 1, "unit": "hour"},
                "pipeline": [{"$group": {"_id": "$place", "count": {"$sum": 1}, "most": {"$max": "$mag"}}}],
            }
        },
        {"$emit": {"connectionName": "c", "topic": "out"}},
    ]
}
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
ROWS = [{"at": BEGIN + timedelta(minutes=i), "place": "ab"[i % 2], "mag": float(i)} for i in range(6)]


def test_rows_of_the_callers_go_through_a_documents_windows() -> None:
    """Rows take the source's place and keep its event time; the sink is left out; windows close at the end."""
    result = tidemark.try_out(QUAKES, ROWS)
    found = sorted((row["_id"], row["count"], row["most"]) for row in result.documents)
    assert (found, result.dead_letters) == ([("a", 3, 4.0), ("b", 3, 5.0)], [])
    assert sorted(result.to_pandas()["most"]) == [4.0, 5.0]
    assert result.to_arrow().num_rows == 2


def test_rows_take_the_place_of_a_history_and_a_stream_with_the_streams_event_time() -> None:
    """Rows on both sides of the switch count: it divides sources, and here is one. The third row is late for a window that has closed."""
    past = {"path": "past/*.json", "format": "json", "timeField": "$then"}
    live = {"connectionName": "c", "topic": "quakes", "timeField": "$at"}
    switched = {"history": past, "then": live, "switchAt": {"$date": "2024-01-01T01:00:00Z"}}
    document = {"pipeline": [{"$source": switched}, *QUAKES["pipeline"][1:]]}
    rows = [{"at": BEGIN + timedelta(hours=hour), "place": "a", "mag": 1.0} for hour in (0, 2, 0)]
    result = tidemark.try_out(document, rows)
    assert ([row["count"] for row in result.documents], len(result.dead_letters)) == ([1, 1], 1)


def test_explain_names_the_sides_of_a_switch() -> None:
    """Each of the two reading vertices with the event times that are its."""
    past = {"path": "past/*.json", "format": "json", "timeField": "$at"}
    switched = {
        "history": past,
        "then": QUAKES["pipeline"][0]["$source"],
        "switchAt": {"$date": "2024-01-01T01:00:00Z"},
    }
    told = str(tidemark.explain({"pipeline": [{"$source": switched}, *QUAKES["pipeline"][1:]]}))
    assert "read file, event times before 2024-01-01T01:00:00Z" in told
    assert "read kafka, event times from 2024-01-01T01:00:00Z on" in told


@pytest.mark.parametrize("rows", [pd.DataFrame(ROWS), pa.Table.from_pylist(ROWS), (row for row in ROWS)])
def test_rows_may_be_a_table(rows: object) -> None:
    """A data frame, an Arrow table and an iterator are rows as a list is."""
    assert len(tidemark.try_out(QUAKES, rows).documents) == 2


def test_rows_may_be_more_than_a_document_holds() -> None:
    """A table of some MB: an assignment's bound is for documents."""
    rows = [{"n": n, "text": "x" * 100} for n in range(20_000)]
    assert len(tidemark.try_out({"pipeline": [{"$match": {"n": {"$gte": 5}}}]}, rows).documents) == 19_995


def test_rows_of_a_window_come_many_at_a_time_and_are_late_as_one_by_one() -> None:
    """Each kind of window, over rows that come out of order: the same rows, letters and order as with an epoch for each row."""
    chooser = random.Random(7)
    rows = [{"at": BEGIN + timedelta(seconds=n - chooser.choice([0, 0, 3, 40])), "k": n % 3} for n in range(150)]
    group = {
        "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": 1}}}],
        "allowedLateness": {"size": 2, "unit": "second"},
    }
    size, hop, one = ({"size": each, "unit": "second"} for each in (10, 5, 1))
    for window in (
        {"$tumblingWindow": {"interval": size, **group}},
        {"$hoppingWindow": {"interval": size, "hopSize": hop, **group}},
        {"$tumblingWindow": {"interval": one, **group}},
    ):
        pipeline = [{"$source": {"connectionName": "c", "topic": "t", "timeField": "$at"}}, window]
        found = tidemark.try_out({"pipeline": pipeline}, rows)
        one_by_one = tidemark.try_out({"pipeline": pipeline, "options": {"lateness": "merged"}}, rows)
        assert found.documents == one_by_one.documents
        assert [letter["doc"] for letter in found.dead_letters] == [letter["doc"] for letter in one_by_one.dead_letters]


COUNTED = {"$compute": {"class": "tests.harness.computations:Marks", "key": "$k"}}


def test_records_of_a_computation_come_many_at_a_time_and_are_late_as_one_by_one() -> None:
    """Rows out of order: the same records, letters and order as of the document's own, which take an epoch each."""
    chooser = random.Random(7)
    times = [BEGIN + timedelta(seconds=n - chooser.choice([0, 0, 3, 40])) for n in range(150)]
    rows = [{"at": at, "k": n % 3} for n, at in enumerate(times)]
    own = [{"at": {"$date": at.isoformat()}, "k": n % 3} for n, at in enumerate(times)]
    of_topic = {"$source": {"connectionName": "c", "topic": "t", "timeField": "$at"}}
    found = tidemark.try_out({"pipeline": [of_topic, COUNTED]}, rows)
    one_by_one = tidemark.try_out({"pipeline": [{"$source": {"documents": own, "timeField": "$at"}}, COUNTED]})
    assert len(found.dead_letters) > 10
    assert found.documents == one_by_one.documents
    assert [letter["doc"] for letter in found.dead_letters] == [letter["doc"] for letter in one_by_one.dead_letters]


SESSIONS = {
    "gap": {"size": 1, "unit": "minute"},
    "pipeline": [{"$group": {"_id": "$place", "count": {"$sum": 1}, "all": {"$push": "$$ROOT"}}}],
}


HOURS = {
    "interval": {"size": 1, "unit": "hour"},
    "pipeline": [{"$group": {"_id": None, "count": {"$sum": {"$ifNull": ["$count", 1]}}}}],
}
ITSELF = {
    "from": [{"$source": {"documents": [{"at": {"$date": BEGIN.isoformat()}, "place": "a"}], "timeField": "$at"}}],
    "leftKey": "$place",
    "rightKey": "$nothing",
    "within": {"before": {"size": 1, "unit": "second"}},
    "type": "left",
    "as": "other",
}


@pytest.mark.parametrize(
    "stages",
    [
        [QUAKES["pipeline"][1]],
        [{"$sessionWindow": SESSIONS}],
        [{"$sessionWindow": SESSIONS}, {"$compute": {**COUNTED["$compute"], "key": "$_id"}}],
        [{"$sessionWindow": SESSIONS}, {"$tumblingWindow": HOURS}],
        [{"$tumblingWindow": HOURS}, {"$sessionWindow": {**SESSIONS, "pipeline": HOURS["pipeline"]}}],
        [{"$join": ITSELF}, {"$sessionWindow": SESSIONS}, {"$hoppingWindow": {**HOURS, "hopSize": HOURS["interval"]}}],
    ],
    ids=["tumbling", "session", "computation", "session-tumbling", "tumbling-session", "join-session-hopping"],
)
def test_a_long_table_goes_through_what_looks_at_time(stages: list[dict[str, Any]]) -> None:
    """With an epoch for each row, and all of the state in each, it would take hours."""
    rows = [{"at": BEGIN + timedelta(seconds=n), "place": "ab"[n % 2], "mag": 1.0} for n in range(20_000)]
    document = {"pipeline": [QUAKES["pipeline"][0], *stages]}
    assert sum(row["count"] for row in tidemark.try_out(document, rows).documents) == 20_000


def test_a_document_that_fits_into_no_record_is_refused_with_its_size() -> None:
    """And with what to do, as the log's own error would not say."""
    documents = [{"n": n, "text": "x" * 100} for n in range(20_000)]
    with pytest.raises(
        tidemark.TryOutFailed,
        match=r"a request of \d+ bytes fits into no record: put a document's data into files",
    ):
        tidemark.try_out({"pipeline": [{"$source": {"documents": documents}}]})


def test_a_row_that_is_no_document_is_named() -> None:
    """By its number."""
    with pytest.raises(tidemark.TryOutFailed, match=r"rows\[1\]: expected a document, found int"):
        tidemark.try_out({"pipeline": [{"$match": {}}]}, [{}, 1])


async def test_a_pipeline_is_tried_out_where_a_loop_runs() -> None:
    """Notebooks have a loop of their own."""
    assert asyncio.get_running_loop().is_running()
    assert tidemark.try_out({"pipeline": [{"$match": {"a": 1}}]}, [{"a": 1}, {"a": 2}]).documents == [{"a": 1}]


def test_a_document_reads_its_own_documents(tmp_path: Path) -> None:
    """Without rows, from a text or a file."""
    text = "pipeline: [{$source: {documents: [{a: 1}, {a: 2}]}}, {$match: {a: 2}}]"
    (tmp_path / "p.yaml").write_text(text)
    assert tidemark.try_out(text).documents == tidemark.try_out(tmp_path / "p.yaml").documents == [{"a": 2}]


def test_a_server_is_not_asked_in_a_try_out() -> None:
    """Inside a pipeline that is an error with the reason; at its end the documents come out that would be told."""
    asks = {"$https": {"connectionName": "a", "as": "x"}}
    kept = {"$match": {"a": 1}}
    with pytest.raises(tidemark.TryOutFailed, match=r"pipeline\[1\].\$https: a server is not asked in a try-out"):
        tidemark.try_out({"pipeline": [asks, kept]}, [{"a": 1}])
    assert tidemark.try_out({"pipeline": [kept, asks]}, [{"a": 1}, {"a": 2}]).documents == [{"a": 1}]


def test_what_fails_raises_and_says_why() -> None:
    """A stage that is unknown, a document that is none, a value that has no type of the language."""
    with pytest.raises(tidemark.TryOutFailed, match=r"\$nonsense"):
        tidemark.try_out({"pipeline": [{"$nonsense": {}}]}, [])
    with pytest.raises(tidemark.TryOutFailed, match="expected a list of stages"):
        tidemark.try_out({"pipeline": 5}, [])
    with pytest.raises(TypeError, match="expected a document"):
        tidemark.try_out(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"rows\[0\]\.a: not a value of the language: set"):
        tidemark.try_out({"pipeline": []}, [{"a": {1}}])


def test_validate_gives_all_that_is_wrong_and_explain_how_it_runs() -> None:
    """A list of sentences, empty where nothing is wrong; the three phases as text."""
    assert (
        tidemark.validate({"pipeline": [{"$source": {"documents": []}}, {"$emit": {"path": "out", "format": "json"}}]})
        == []
    )
    wrong = tidemark.validate({"pipeline": [{"$source": {"documents": []}}, {"$mtch": {}}, {"$project": 5}]})
    assert len(wrong) == 2
    assert "$match" in wrong[0]
    assert "vertices and edges" in tidemark.explain(QUAKES)


def test_a_path_that_is_a_text_is_told_from_a_document() -> None:
    """Whoever gives a file's name as a text hears of `pathlib.Path`."""
    with pytest.raises(TypeError, match=r"found the text 'a/b\.yaml': the path of a file is a pathlib\.Path"):
        tidemark.validate("a/b.yaml")
    assert (
        tidemark.validate("pipeline: [{$source: {documents: [{a: x.json}]}}, {$emit: {path: a, format: json}}]") == []
    )


def test_what_is_hardly_meant_is_a_warning() -> None:
    """Python hears what `tidemark validate` says."""
    match = {"$match": {"shop": {"in": ["north"]}}}
    document = {
        "pipeline": [
            {"$source": {"documents": [{"shop": "north"}]}},
            match,
            {"$emit": {"path": "out", "format": "json"}},
        ]
    }
    with pytest.warns(tidemark.DocumentWarning, match=r"\$match.shop: .*the operator is written \$in") as said:
        assert tidemark.validate(document) == []
    assert said[0].filename == __file__


def test_values_keep_their_types() -> None:
    """Dates, decimals, numpy's scalars and nested values reach the language as what they are, and come back."""
    row = {
        "at": BEGIN,
        "naive": BEGIN.replace(tzinfo=None),
        "n": [1, 2.0, {"d": Decimal("1.10")}],
        "x": pd.Series([7])[0],
    }
    value = from_json(to_language(row))
    assert value["at"] == value["naive"] == Date(1_704_067_200_000)
    assert [type(each).__name__ for each in value["n"][:2]] == ["int", "float"]
    assert to_python(value)["at"] == BEGIN
    assert to_python(Date(2**62)) == Date(2**62)
    assert value["x"] == 7


def test_a_try_out_says_nothing_but_its_result() -> None:
    """What services log stays out of a notebook, unless the program has configured its logging."""
    script = "import tidemark; print(tidemark.try_out({'pipeline': []}, [{'a': 1}]).documents)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[{'a': 1}]\n", "")


def test_a_program_may_have_closed_its_output() -> None:
    """As one does that lives on without its terminal: what runs pipelines is loaded, and the program finds its output as it had it."""
    script = "import sys; out = sys.stdout; out.close(); import tidemark; tidemark.run; assert sys.stdout is out"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_warning_that_repeats_is_one_line() -> None:
    """In an outage each reader warns several times a second."""
    script = (
        "import structlog; from tidemark.services.cli.process import keep_quiet; keep_quiet();"
        "[structlog.get_logger().warning('log.away', topic='a') for _ in range(9)]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr.count("log.away")) == ("", 1)


def test_the_name_costs_next_to_nothing_until_it_is_used() -> None:
    """`import tidemark` loads none of its parts, and none of the libraries that these load."""
    script = "import sys, tidemark; print(sorted(m for m in sys.modules if m.split('.')[0] in ('tidemark', 'pyarrow', 'numba', 'pandas')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['tidemark']"


def test_every_name_is_there_and_another_is_named_with_those_that_are() -> None:
    """What `__all__` promises can be had."""
    assert all(getattr(tidemark, name) is not None for name in tidemark.__all__)
    assert set(tidemark.__all__) <= set(dir(tidemark))
    with pytest.raises(AttributeError, match=r"no attribute 'tryout'; it has .*try_out"):
        tidemark.tryout  # noqa: B018


class Careless(tidemark.Computation[tidemark.NoState, tidemark.NoConfig]):
    """Raises at each record."""

    def process(self, *_: object) -> None:
        """A mistake of its author's."""
        raise KeyError("amount")


def careless(*, raises: bool) -> Harness:
    """It has had a record."""
    harness = Harness(Careless, key="k", raises=raises)
    harness.record({"k": 1}, at=0)
    harness.end()
    return harness


def test_a_test_sees_what_a_callback_raises() -> None:
    """The harness raises it; to look at dead letters, a test asks for them."""
    with pytest.raises(KeyError, match="amount"):
        careless(raises=True)
    assert [type(failure.error) for failure in careless(raises=False).failures] == [KeyError]


def test_what_a_program_sets_for_its_decimals_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its threads, and in the one that asks: a service's process has Python's own."""
    source = {
        "$source": {"script": [{"data": {"_id": 0, "a": -1.2, "p": 0}}, {"data": {"_id": 1, "a": 1.298, "p": 1}}]}
    }
    stages = [source, {"$project": {"whole": {"$trunc": ["$a", "$p"]}}}]
    plain = tidemark.try_out({"pipeline": stages}).documents
    monkeypatch.setitem(DefaultContext.traps, FloatOperation, True)
    with localcontext() as own:
        own.traps[FloatOperation] = True
        assert tidemark.try_out({"pipeline": stages}).documents == plain
        assert tidemark.validate({"pipeline": [*stages, {"$emit": {"path": "out", "format": "json"}}]})[1:] == []
