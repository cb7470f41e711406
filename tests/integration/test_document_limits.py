"""`options.limits`: what bounds results stands in the document, acts in every stage that it bounds, and refuses what cannot be."""

import base64
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tidemark.services.cli.process import Runner, quiet, run_case
from tidemark.services.source.connectors.filereaders import reader_of
from tidemark.shared.computation import Computation, Document, NoConfig, Record, Timer, Timers
from tidemark.shared.computation.harness import Harness
from tidemark.shared.language.documents import InvalidDocument, parse, refusals
from tidemark.shared.language.documents.parse import RANGES
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.ports.log import LogError

SECOND = {"size": 1, "unit": "second"}
VALUES: dict[str, Any] = {"$group": {"_id": None, "v": {"$push": "$v"}}}
WINDOW = {"$tumblingWindow": {"interval": SECOND, "allowedLateness": 0, "pipeline": [VALUES]}}


@dataclass
class Kept:
    """What a key keeps."""

    texts: list[str] = field(default_factory=list)


class Greedy(Computation[Kept, NoConfig]):
    """Does as much of a thing as its record says."""

    State = Kept
    tries = 0

    def process(self, record: Record, state: Kept, timers: Timers) -> Iterator[Document]:
        """Texts kept, timers set, documents yielded, failures."""
        state.texts += ["x" * 100] * record.value.get("keep", 0)
        for number in range(record.value.get("set", 0)):
            timers.set(f"t{number}", record.timestamp + 1_000)
        if "again" in record.value:
            timers.set("again", record.timestamp)
        yield from ({"n": number} for number in range(record.value.get("give", 0)))
        if "fail" in record.value:
            Greedy.tries += 1
            raise ValueError("no")

    def on_timer(self, timer: Timer, state: Kept, timers: Timers) -> None:
        """One that was set for a passed time sets itself again."""
        if timer.name == "again":
            state.texts.append("")
            timers.set("again", timer.time)


def run(stages: list[dict[str, Any]], records: list[dict[str, Any]], **limits: int) -> dict[str, Any]:
    """What a try-out of a document with these limits gives."""
    quiet(logging.CRITICAL)
    source = {
        "$source": {"documents": [{"t": {"$date": "2024-01-01T00:00:00Z"}, **r} for r in records], "timeField": "$t"}
    }
    case = {"id": "x", "pipeline": [source, *stages], "options": {"limits": limits}}
    return run_case(Runner("local"), case)


def compute(record: dict[str, Any], **limits: int) -> dict[str, Any]:
    """What `Greedy` makes of a record."""
    stage = {"$compute": {"class": f"{__name__}:Greedy", "key": "$k"}}
    return run([stage], [{"k": 1, **record}], **limits)


def reasons(result: dict[str, Any]) -> list[str]:
    """The reasons of the dead letters."""
    assert result["error"] is None
    return [letter["errInfo"]["reason"] for letter in result["dlq"]]


def hops(of: int, **limits: int) -> dict[str, Any]:
    """A document whose windows overlap so often."""
    stage = {
        "$hoppingWindow": {"interval": {"size": of, "unit": "ms"}, "hopSize": {"size": 1, "unit": "ms"}, "pipeline": []}
    }
    return {"pipeline": [{"$source": {"documents": []}}, stage, {"$emit": {"path": "out", "format": "json"}}],
            "options": {"limits": limits}}  # fmt: skip


# --- how they are written ---------------------------------------------------------------------------------------------


def test_each_limit_can_be_written_and_has_a_default_within_its_range() -> None:
    """All fields have an option; what is written is read, and the others keep their defaults."""
    assert {each.name for each in fields(Limits)} == set(RANGES)
    for name, each in RANGES.items():
        assert each.least <= getattr(DEFAULTS, name) <= each.most
        limits = parse(hops(1, **{each.name: each.most})).options.limits
        assert {f.name for f in fields(Limits) if getattr(limits, f.name) != getattr(DEFAULTS, f.name)} == {name}


@pytest.mark.parametrize("each", RANGES.values(), ids=lambda each: each.name)
def test_a_limit_out_of_its_range_is_refused_with_its_place_and_the_range(each: Any) -> None:
    """Place, expectation and finding are said, once."""
    for wrong in (each.least - 1, each.most + 1):
        with pytest.raises(InvalidDocument) as refused:
            parse(hops(1, **{each.name: wrong}))
        assert [str(e) for e in refused.value.errors] == [
            f"options.limits.{each.name}: expected a whole number from {each.least} to {each.most}, found {wrong}"
        ]


def test_an_unknown_limit_is_refused_with_the_nearest_name() -> None:
    """A word that is no limit is no silence."""
    with pytest.raises(InvalidDocument, match=r"options.limits.timerPerKey.*did you mean timersPerKey"):
        parse(hops(1, timerPerKey=3))


def test_limits_may_change_while_a_processor_goes_on() -> None:
    """They are no part of what made the state: a changed document is taken, and says what holds from there."""
    stages = [WINDOW, {"$compute": {"class": "m:A", "key": "$k"}}, {"$emit": {"path": "out", "format": "json"}}]
    documents = [
        {
            "pipeline": [{"$source": {"documents": []}}, *stages],
            "options": {"limits": {"valuesPerGroup": n, "attempts": n}},
        }
        for n in (2, 3)
    ]
    assert refusals(*map(parse, documents)) == ()


# --- that they act ----------------------------------------------------------------------------------------------------


def test_windows_per_document() -> None:
    """As many hops as are allowed are taken; one more is refused at the hop, with the remedy."""
    parse(hops(7, windowsPerDocument=7))
    with pytest.raises(InvalidDocument, match=r"hopSize: the interval has more than 6 hops.*windowsPerDocument"):
        parse(hops(7, windowsPerDocument=6))


def test_values_per_group() -> None:
    """A group keeps so many values; with more the processor fails at the place, and names the limit, however rows were split."""
    records = [{"v": number} for number in range(3)]
    assert run([WINDOW], records, valuesPerGroup=3)["output"][0]["v"] == [0, 1, 2]
    error = run([WINDOW], records, valuesPerGroup=2)["error"]
    assert "pipeline[1].$tumblingWindow.pipeline[0].$group: $push keeps more than 2 values for one group" in error
    assert "options.limits.valuesPerGroup" in error
    twice = {"$group": {"_id": None, "v": {"$push": "$_id"}}}
    again = {"$tumblingWindow": {**WINDOW["$tumblingWindow"], "pipeline": [{"$group": {"_id": "$v"}}, twice]}}
    assert "pipeline[1].$group: $push keeps more than 2" in run([again], records, valuesPerGroup=2)["error"]
    field = {"$group": {"_id": None, "v": {"$mergeObjects": "$v"}}}
    window = {"$tumblingWindow": {**WINDOW["$tumblingWindow"], "pipeline": [field]}}
    wide = run([window], [{"v": {"a": 1, "b": 2, "c": 3}}, {"v": {"a": 4}}], valuesPerGroup=2)
    assert "more than 2 values" in reasons(wide)[0], "what is too much by itself is a dead letter"
    assert wide["output"] == [{"_id": None, "v": {"a": 4}}]


def test_matches_and_combinations_per_document() -> None:
    """A document is given so many matches, and looks for so many values; with more it is a dead letter."""
    foreign = {"documents": [{"a": 1, "n": n} for n in range(3)]}
    stage = {"$lookup": {"from": foreign, "localField": "a", "foreignField": "a", "as": "found"}}
    assert len(run([stage], [{"a": 1}], matchesPerDocument=3)["output"][0]["found"]) == 3
    assert "more than 2 foreign documents match" in reasons(run([stage], [{"a": 1}], matchesPerDocument=2))[0]
    several = [{"a": [1, 2, 3]}]
    assert not reasons(run([stage], several, combinationsPerDocument=3))
    assert "more than 2 combinations" in reasons(run([stage], several, combinationsPerDocument=2))[0]
    mixed = run([stage], [{"a": [1, 2, 3]}, {"a": 2}, {"a": 1}, {"a": [1, 2, 3]}], combinationsPerDocument=2)
    assert [(row["a"], len(row["found"])) for row in mixed["output"]] == [(2, 0), (1, 3)]
    assert len(reasons(mixed)) == 2


@pytest.mark.parametrize(
    ("record", "option", "least", "reason"),
    [
        ({"keep": 2}, "stateBytes", 214, "the state of one key has 214 bytes, at most 213 are allowed"),
        ({"set": 3}, "timersPerKey", 3, "this key has 2 timers already"),
        ({"give": 4}, "outputsPerCall", 4, "one callback yielded more than 3 documents"),
    ],
)
def test_what_a_computation_may_keep_set_and_yield(
    record: dict[str, Any], option: str, least: int, reason: str
) -> None:
    """What just fits is applied; with one less allowed the record is a dead letter that names the limit."""
    fits = compute(record, **{option: least})
    assert reasons(fits) == []
    assert len(fits["output"]) == record.get("give", 0)
    (found,) = reasons(compute(record, **{option: least - 1}))
    assert reason in found
    assert f"options.limits.{option}" in found


def test_letter_bytes() -> None:
    """Of a document that is larger the dead letter has the beginning, and says how large it was; one that fits is there whole."""
    failing = [{"$project": {"x": {"$divide": [1, "$zero"]}}}]
    record = {"zero": 0, "text": "x" * 1_000}
    whole, cut = (run(failing, [record], letterBytes=most)["dlq"][0] for most in (4_096, 64))
    assert whole["doc"]["text"] == record["text"]
    assert "docBytes" not in whole
    assert cut["docBytes"] > 1_000
    assert len(base64.b64decode(cut["doc"]["$binary"]["base64"])) == 64


@pytest.mark.parametrize("attempts", [1, 5])
def test_attempts(attempts: int) -> None:
    """A callback that fails is tried so often, and no more."""
    Greedy.tries = 0
    assert len(reasons(compute({"fail": True}, attempts=attempts))) == 1
    assert Greedy.tries == attempts


def test_passed_timers_in_a_row() -> None:
    """A timer that sets itself for a passed time is given up after so many; the limit is named."""
    for most in (1, 20):
        h = Harness(Greedy, key="k", raises=False, limits=Limits(passed_timers_max=most))
        h.record({"k": 1, "again": True}, 10)
        h.watermark(20)
        assert h.task.counters.timers_fired == most + 1
        assert "passedTimersInARow" in str(h.failures[0].error)


@pytest.mark.parametrize(
    ("format_", "text", "fill"),
    [("json", '{"a": "%s"}\n{"a": 1}\n', "x"), ("csv", 'a\n"%s"\n', "x"), ("csv", 'a\n"%s"\n', "\n")],
)
def test_record_bytes(tmp_path: Path, format_: Any, text: str, fill: str) -> None:
    """A record of a file that is longer, quoted line ends included, is an error that names the limit; one that fits is read."""
    path = tmp_path / "in"
    path.write_text(text % (fill * 1_100))
    for most, fits in ((1_000, False), (2_000, True)):
        reader, opening = reader_of(format_, {}, most), partial(path.open, "rb")
        if fits:
            assert reader.read(opening, "in", 0, 100, grows=False).values
            continue
        with pytest.raises(LogError, match=r"options\.limits\.recordBytes"):
            reader.read(opening, "in", 0, 100, grows=False)


@pytest.mark.parametrize("fetched", [100, 700, 100_000])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize(("format_", "text"), [("json", '{"a": "%s"}\n{"a": 1}\n'), ("csv", "a\n%s\n1\n")])
def test_record_bytes_say_the_same_however_much_is_fetched(
    tmp_path: Path, format_: Any, text: str, fetched: int, *, grows: bool
) -> None:
    """A line that fits is read, and one that does not is refused, whatever a process fetches at once and whether the file grows."""
    path = tmp_path / "in"
    path.write_text(text % ("x" * 1_300))
    for most, fits in ((1_000, False), (1_350, True)):
        reader, opening = reader_of(format_, {}, most), partial(path.open, "rb")
        if fits:
            assert reader.read(opening, "in", 0, fetched, grows=grows).values
            continue
        with pytest.raises(LogError, match=r"options\.limits\.recordBytes"):
            reader.read(opening, "in", 0, fetched, grows=grows)


def test_a_line_without_an_end_is_no_line_that_is_waited_for(tmp_path: Path) -> None:
    """In a file that grows, too: a source that waited for the end of it would stand still for ever, and say nothing."""
    path = tmp_path / "in"
    path.write_text("a\n" + "x" * 5_000)
    with pytest.raises(LogError, match=r"byte 2: .*options\.limits\.recordBytes"):
        reader_of("csv", {}, 1_000).read(partial(path.open, "rb"), "in", 0, 100, grows=True)
