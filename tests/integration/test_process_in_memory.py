"""`tidemark process`, `validate` and `explain`: the real services in one process, on memory and virtual time."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemark.services.cli.__main__ import app
from tidemark.services.cli.process import Runner, quiet, run_case
from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.services.source.connecting import RealSources
from tidemark.services.source.steps import ClockNotSettable
from tidemark.shared.process.connections import Connections
from tidemark.shared.runtime.coordinator import PlanRefusal

COUNT = {
    "$tumblingWindow": {
        "interval": {"size": 10, "unit": "second"},
        "allowedLateness": 0,
        "pipeline": [{"$group": {"_id": None, "values": {"$push": "$v"}}}],
    }
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


def at(second: int) -> dict[str, str]:
    return {"$date": f"2024-01-01T00:00:{second:02d}Z"}


def run(*stages: dict[str, Any], **document: Any) -> dict[str, Any]:
    return run_case(Runner("local"), {"id": "x", "pipeline": list(stages), **document})


def invoke(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(args))
    return result.exit_code, result.stdout, result.stderr


def data(second: int, value: int) -> dict[str, Any]:
    return {"data": {"ts": at(second), "v": value}}


def script(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"$source": {"script": list(steps), "timeField": {"$toDate": "$ts"}}}


def test_each_step_takes_effect_before_the_next() -> None:
    """A document behind a watermark that the step before has raised is late, though nothing but the order tells."""
    found = run(script(data(1, 1), {"watermark": at(20)}, data(2, 2)), COUNT)
    assert found["output"] == [{"_id": None, "values": [1]}]
    assert [letter["doc"]["v"] for letter in found["dlq"]] == [2]


def test_a_step_that_moves_nothing_costs_no_epoch() -> None:
    """Documents that move no watermark are read on at once, and are in the same window as the one before."""
    found = run(script(data(9, 1), data(3, 2), data(2, 3)), COUNT)
    assert found["output"] == [{"_id": None, "values": [3, 2, 1]}]
    assert found["dlq"] == []


def test_now_is_what_the_script_says() -> None:
    """`$$NOW` of a document is the processing time that the last step has set, not that of any machine."""
    steps = [{"processingTime": at(5)}, data(1, 1), {"processingTime": at(40)}, data(2, 2)]
    found = run(script(*steps), {"$project": {"now": "$$NOW", "v": 1}})
    assert found["output"] == [{"now": at(5), "v": 1}, {"now": at(40), "v": 2}]


def test_processing_time_closes_windows_when_it_is_set() -> None:
    """A window on processing time closes at the step that reaches its end: what comes at that instant is in the next."""
    window = {
        "$tumblingWindow": {
            "boundary": "processingTime",
            "interval": {"size": 10, "unit": "second"},
            "pipeline": [{"$group": {"_id": None, "values": {"$push": "$v"}}}],
        }
    }
    steps = [{"processingTime": at(5)}, data(0, 1), {"processingTime": at(10)}, data(0, 2)]
    found = run(script(*steps), window)
    assert [document["values"] for document in found["output"]] == [[1], [2]]


def test_sinks_of_every_kind_are_collected() -> None:
    """What a tap and the last sink write comes out, in the order of release; no connection is looked for."""
    emit = {"$emit": {"connectionName": "k", "topic": "t"}}
    found = run({"$source": {"documents": [{"v": 1}]}}, emit, {"$addFields": {"w": 2}}, emit)
    assert found["error"] is None
    assert sorted(found["output"], key=len) == [{"v": 1}, {"v": 1, "w": 2}]


def test_a_processor_that_fails_gives_its_reason() -> None:
    """`validationAction: error` ends the case with the stage's place and reason, at once and without a second try."""
    validate = {"$validate": {"validator": {"v": {"$gt": 1}}, "validationAction": "error"}}
    found = run({"$source": {"documents": [{"v": 1}]}}, validate)
    assert "pipeline[1].$validate" in found["error"]


def test_a_topic_cannot_be_tried_out() -> None:
    """Without a broker a Kafka source is refused by its place, with what to do."""
    found = run({"$source": {"connectionName": "k", "topic": "t"}})
    assert "pipeline[0].$source" in found["error"]
    assert "tidemark run" in found["error"]


def test_cases_do_not_see_each_other() -> None:
    """The same case twice in one process gives the same, with dead letters and all."""
    running = Runner("local")
    case = {"id": "x", "pipeline": [script(data(1, 1), {"watermark": at(20)}, data(2, 2)), COUNT]}
    first, second = (run_case(running, case) for _ in range(2))
    assert first["output"] == second["output"]
    assert len(first["dlq"]) == len(second["dlq"]) == 1


def test_files_come_in_and_the_limit_ends_the_run(tmp_path: Path) -> None:
    """`process FILE --limit N` prints N documents; dead letters go where `--dlq` says."""
    (tmp_path / "in.json").write_text('{"v": 1}\nno json\n{"v": 2}\n{"v": 3}\n')
    document = tmp_path / "p.json"
    document.write_text(json.dumps({"pipeline": [{"$source": {"path": str(tmp_path / "in.json"), "format": "json"}}]}))
    dlq = tmp_path / "dlq.jsonl"
    status, out, err = invoke("process", str(document), "--limit", "2", "--dlq", str(dlq))
    assert (status, out, err) == (0, '{"v":1}\n{"v":2}\n', "")
    assert len(dlq.read_text().splitlines()) == 1


@pytest.mark.parametrize("ordered", [True, False])
def test_a_letter_of_a_file_names_the_file_and_the_place_in_it(tmp_path: Path, *, ordered: bool) -> None:
    """A CSV record with a field too many, and one whose time cannot be read, stop nothing; who looks for them finds them."""
    (tmp_path / "a.csv").write_text("at,v\n2024-01-01T00:00:00Z,1\n")
    (tmp_path / "b.csv").write_text("at,v\nnever,2\n2024-01-01T00:00:01Z,3,{}\n2024-01-01T00:00:02Z,4\n")
    time = {"$dateFromString": {"dateString": "$at"}}
    found = run(
        {"$source": {"path": str(tmp_path / "*.csv"), "format": "csv", "ordered": ordered, "timeField": time}},
        {"$unset": "at"},
    )
    assert sorted(found["output"], key=str) == [{"v": "1"}, {"v": "4"}]
    sources = [letter["_stream_meta"]["source"] for letter in found["dlq"]]
    assert [(Path(s["file"]).name, int(s["position"])) for s in sources] == [("b.csv", 13), ("b.csv", 5)]
    reason = "The record does not decode: it has 3 fields, but the header names 2."
    assert found["dlq"][0]["errInfo"] == {"reason": reason, "code": "DecodeFailure", "path": ""}


def files(folder: Path, count: int) -> dict[str, Any]:
    """A source of so many files, a record each, all of one time."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:04}.json").write_text(json.dumps({"n": number, "at": at(0), "id": number % 7}) + "\n")
    return {"path": str(folder / "*.json"), "format": "json", "timeField": "$at"}


def test_streams_of_many_files_that_flow_together_keep_their_order(tmp_path: Path) -> None:
    """Of equal times the first stream comes before the second, and each in the order of its files, however many they are."""
    of_all = {"$group": {"_id": None, "n": {"$push": "$n"}, "last": {"$last": "$n"}}}
    found = run(
        {"$source": files(tmp_path / "a", 70)},
        {"$union": {"pipelines": [[{"$source": files(tmp_path / "b", 80)}]]}},
        {"$tumblingWindow": {"interval": {"size": 1, "unit": "minute"}, "pipeline": [of_all]}},
        {"$unset": "_id"},
    )
    assert found["output"] == [{"n": [*range(70), *range(80)], "last": 79}]


def test_a_horizon_of_positions_goes_over_the_ends_of_files(tmp_path: Path) -> None:
    """A repeat is found within so many positions, in whichever of a sequence of files it stands."""
    found = run(
        {
            "$source": {
                **files(tmp_path / "a", 40),
                "recordId": "$id",
                "recordIdHorizon": {"positions": 1_000_000},
                "recordIdScope": "split",
            }
        },
        {"$unset": ["at", "id"]},
    )
    assert found["output"] == [{"n": number} for number in range(7)]


def test_a_file_that_grows_ends_where_it_ends_now(tmp_path: Path) -> None:
    """`follow` does not keep a try-out from ending."""
    (tmp_path / "in.json").write_text('{"v": 1}\n')
    found = run({"$source": {"path": str(tmp_path / "in.json"), "format": "json", "follow": True}})
    assert (found["output"], found["error"]) == ([{"v": 1}], None)


def test_cases_have_a_result_line_each(tmp_path: Path) -> None:
    """A wrong case has its error in its line, and the others go on."""
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"id": "wrong", "pipeline": [{"$nope": 1}]},
        {"id": "good", "pipeline": [{"$source": {"documents": [{}]}}]},
    ]
    cases.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert invoke("process", "--cases", str(cases), "--out", str(out))[0] == 0
    wrong, good = map(json.loads, out.read_text().splitlines())
    assert "$nope" in wrong["error"]
    assert good == {"id": "good", "output": [{}], "dlq": [], "error": None, "engine": "local", "spark_jobs": 0}


def test_contradicting_options_are_a_usage_error() -> None:
    """Neither a file nor cases: status 2 and what is expected."""
    status, _, err = invoke("process")
    assert status == 2
    assert "--cases" in err


def test_an_installation_refuses_what_only_a_try_out_runs() -> None:
    """Outside a try-out a pipeline without a sink is refused, and so is a script that would set the machine's clock."""
    document = json.dumps({"pipeline": [{"$source": {"documents": []}}, {"$addFields": {"a": 1}}]})
    with pytest.raises(PlanRefusal, match=r"pipeline\[1\].\$addFields.*\$emit"):
        plan_for_coordinator("local", document, {}, None, {})
    with pytest.raises(ClockNotSettable, match="processingTime"):
        RealSources(Connections("x")).set_time(0)


def test_validate_names_all_errors_with_their_lines(tmp_path: Path) -> None:
    """Two mistakes, two lines, each with path, line and the nearest name; status 1."""
    file = tmp_path / "p.yaml"
    file.write_text("pipeline:\n- $source: {documents: []}\n- $addFeelds: {a: 1}\n- $match: {a: {$gtt: 1}}\n")
    status, _, err = invoke("validate", str(file))
    assert status == 1
    first, second = err.splitlines()
    assert "pipeline[1].$addFeelds (line 3)" in first
    assert "$addFields" in first
    assert "(line 4)" in second


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([{"$count": "n"}], "rows travel without fields in"),
        (
            [{"$sort": {"v": 1}}, {"$group": {"_id": "$k", "n": {"$first": "$v"}}}],
            "rows travel with the fields k, v in",
        ),
        ([{"$sort": {"v": 1}}, {"$skip": 2}, {"$limit": 3}], "of a batch the first 5 rows of each window travel in"),
    ],
)
def test_explain_tells_what_of_rows_travels(stages: list[dict[str, Any]], said: str, tmp_path: Path) -> None:
    """Of a window that sees all of its rows: the fields that go to it, and whether all rows do."""
    window = {"$tumblingWindow": {"interval": {"size": 1, "unit": "minute"}, "pipeline": stages}}
    file = tmp_path / "document.json"
    file.write_text(json.dumps({"pipeline": [{"$source": {"documents": []}}, window]}))
    status, out, _ = invoke("explain", str(file))
    assert status == 0
    assert said in out


def test_explain_shows_the_three_phases() -> None:
    """Stages with what they read, vertices and edges with the lifted aggregation, and the operators of each task."""
    file = Path(__file__).parents[2] / "deploy" / "pipelines" / "departures" / "pipeline.yaml"
    status, out, _ = invoke("explain", str(file))
    assert status == 0
    stages, physical, tasks = out.split("\n\n")
    assert "timeField: kernel" in stages
    assert "aggregated before the shuffle, on columns in source-1" in physical
    assert "source-1 → window-1: by key, large batches by reference" in physical
    assert "step on Spark: merge, close, finish, then $project" in tasks
    assert "source_1 ==>|key| window_1" in invoke("explain", str(file), "--mermaid")[1]


def test_no_secret_of_a_connection_is_explained(tmp_path: Path) -> None:
    """`explain` and `validate` print nothing of what a connection's settings hold."""
    connection = {"type": "kafka", "bootstrapServers": "b:1", "config": {"sasl_password": "s3cr3t"}}
    pipeline = [{"$source": {"connectionName": "k", "topic": "t"}}, {"$emit": {"connectionName": "k", "topic": "o"}}]
    document = tmp_path / "p.json"
    document.write_text(json.dumps({"connections": {"k": connection}, "pipeline": pipeline}))
    for args in (("explain", str(document)), ("explain", str(document), "--mermaid"), ("validate", str(document))):
        status, out, err = invoke(*args)
        assert status == 0
        assert "s3cr3t" not in out + err
