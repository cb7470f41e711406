"""Plug-ins where nothing runs for good: a try-out reads them, and `check --connect` asks them."""

import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
from tidemark_shelf.file import Place, ShelfFile

from tests.harness.plugins import package
from tidemark.services.cli.connected import refused_by_what_is_there
from tidemark.services.library.trial import tried
from tidemark.services.library.trying import TryOutFailed, try_out
from tidemark.shared.language.documents import parse

CODE = """
from tidemark.plugins import Away, Batch, Lookup, NoConfig, Refused, Sink, Source, Split

def answer():
    raise {raises}

class AskedSource(Source):
    api = 1
    def splits(self): return answer()
    def read(self, split, position, max_bytes): return answer()
    def end(self, split): return answer()

class AskedSink(Sink):
    api = 1
    def open(self): answer()
    def marker(self, identity): raise AssertionError("nobody has an identity yet, and a target may make a place for one")
    def write(self, identity, documents, marker, after): raise AssertionError("nobody writes")

class AskedLookup(Lookup):
    api = 1
    def open(self): answer()
    def find(self, fields, wanted): raise AssertionError("nobody asks")
"""
KINDS = ("source", "sink", "lookup")


@pytest.fixture(autouse=True)
def _shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {f"tidemark.{kind}s": {"shelf": f"tidemark_shelf:Shelf{kind.title()}"} for kind in KINDS}
    monkeypatch.syspath_prepend(str(package(tmp_path / "shelf", "shelves", entries)))


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, raises: str) -> None:
    """The plug-ins of CODE, by the name asked."""
    entries = {f"tidemark.{kind}s": {"asked": f"asking:Asked{kind.title()}"} for kind in KINDS}
    code = CODE.replace("{raises}", raises)
    monkeypatch.syspath_prepend(str(package(folder / "asking", "asking", entries, code)))
    monkeypatch.delitem(sys.modules, "asking", raising=False)


def document(plugin: str, file: Path | None = None, **config: Any) -> dict[str, Any]:
    """A source, a lookup and a sink of a plug-in."""
    use: dict[str, Any] = {"plugin": plugin}
    tree: dict[str, Any] = {}
    if file is not None:
        use["connectionName"] = "c"
        tree["connections"] = {"c": {"type": "plugin", "plugin": plugin, "config": {"file": str(file)}}}
    shelf = {"config": {"shelf": "out"}} if file is not None else {}
    found = {"from": {**use, **shelf}, "localField": "n", "foreignField": "n", "as": "found"}
    return {
        **tree,
        "pipeline": [{"$source": {**use, **config}}, {"$lookup": found}, {"$emit": {**use, **shelf}}],
    }


@pytest.mark.parametrize("seed", range(4))
def test_a_try_out_reads_what_is_there(tmp_path: Path, seed: int) -> None:
    """Drawn: any number of shelves, that follow or not, in windows or not: each document once, up to where splits end now."""
    chance = random.Random(seed)
    file = tmp_path / "shelf.db"
    opened = ShelfFile(Place(str(file)))
    numbers = list(range(chance.choice([0, 1, 30, 1_500])))
    with opened.changed() as db:
        rows = [(f"s{chance.randrange(4)}", 1_000 * n, json.dumps({"n": n})) for n in numbers]
        db.executemany("INSERT INTO documents (shelf, added_ms, document) VALUES (?, ?, ?)", rows)
    opened.close()
    tree = document("shelf", file, config={"follow": chance.random() < 0.7})
    tree["pipeline"] = [tree["pipeline"][0], tree["pipeline"][2]]
    assert sorted(each["n"] for each in try_out(tree).documents) == numbers
    hour = {"interval": {"size": 1, "unit": "hour"}, "pipeline": [{"$group": {"_id": None, "sum": {"$sum": "$n"}}}]}
    tree["pipeline"].insert(1, {"$tumblingWindow": hour})
    tree["options"] = {"lateness": "split"}
    assert sum(each["sum"] for each in try_out(tree).documents) == sum(numbers)


@pytest.mark.parametrize("raises", ["Away('nobody there')", "Refused('no entry')", "KeyError('x')"])
async def test_check_says_what_a_plugin_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: str) -> None:
    """At each of its places, with its words; nothing is written, and no table is asked for all that it has."""
    installed(tmp_path, monkeypatch, raises)
    found = await refused_by_what_is_there(parse(document("asked")))
    places = ["pipeline[0].$source", "pipeline[1].$lookup.from", "pipeline[2].$emit"]
    words = raises.partition("'")[2].strip("')")
    said = sorted(str(each) for each in found)
    assert [(text.partition(",")[0], words in text) for text in said] == [(place, True) for place in places]


async def test_check_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that makes a place for each identity that it is asked about makes none."""
    places = tmp_path / "places"
    places.mkdir()
    code = """
from pathlib import Path
from tidemark.plugins import Sink

class Making(Sink):
    api = 1
    def marker(self, identity): Path({places!r}, identity).mkdir()
    def write(self, identity, documents, marker, after): raise AssertionError("nobody writes")
"""
    entries = {"tidemark.sinks": {"making": "making:Making"}}
    code = code.replace("{places!r}", repr(str(places)))
    monkeypatch.syspath_prepend(str(package(tmp_path / "making", "making", entries, code)))
    tree = {"pipeline": [{"$source": {"documents": [{"n": 1}]}}, {"$emit": {"plugin": "making"}}]}
    assert await refused_by_what_is_there(parse(tree)) == []
    assert list(places.iterdir()) == []


async def test_check_says_nothing_of_plugins_that_answer(tmp_path: Path) -> None:
    """And opens those alone whose connections it knows."""
    file = tmp_path / "shelf.db"
    assert await refused_by_what_is_there(parse(document("shelf", file))) == []
    tree = document("shelf", file)
    tree["connections"]["c"]["config"] = {"file": "/dev/null/none/${NOT_SET_HERE}"}
    assert await refused_by_what_is_there(parse(tree)) == []
    tree["connections"]["c"]["config"] = {"file": "/dev/null/none"}
    assert len(await refused_by_what_is_there(parse(tree))) == len(KINDS)


@pytest.mark.parametrize("raises", ["Away('nobody there')", "Refused('no entry')"])
def test_a_try_out_ends_with_what_a_plugin_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: str) -> None:
    """Its source cannot be waited for on virtual time."""
    installed(tmp_path, monkeypatch, raises)
    with pytest.raises(TryOutFailed, match=raises.partition("'")[2].strip("')")):
        try_out({"pipeline": [{"$source": {"plugin": "asked"}}]})


def test_a_try_out_for_others_asks_no_plugin(tmp_path: Path) -> None:
    """It reads nothing but its rows."""
    tree = document("shelf", tmp_path / "shelf.db")
    with pytest.raises(TryOutFailed, match=r"pipeline\[1\]\.\$lookup: reaches outside"):
        tried({"document": json.dumps(tree), "rows": [{"k": 1}], "limit": 10})
    other = [{"$source": {"plugin": "shelf"}}]
    tree["pipeline"][1:2] = [{"$union": {"pipelines": [other]}}]
    with pytest.raises(TryOutFailed, match=r"pipelines\[0\]\[0\]\.\$source: reaches outside"):
        tried({"document": json.dumps(tree), "rows": [{"k": 1}], "limit": 10})


WRONG = """
from tidemark.plugins import Batch, Record, Source, Split

class AskedSource(Source):
    api = 1
    def splits(self): return {splits}
    def read(self, split, position, max_bytes):
        secret = "hidden"
        return {read}
    def end(self, split): return {end}
"""
RIGHT = {"splits": "[Split('a')]", "read": "Batch([], 0, 'nothing')", "end": "0"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"splits": "['a']"}, r"plug-in asked: expected Split in splits\(\), found 'a'"),
        ({"splits": "None"}, "plug-in asked, listing splits: the plug-in raises TypeError"),
        ({"end": "None"}, r"plug-in asked: expected Integral from end\(\), found None"),
        ({"read": "[{'a': 1}]", "end": "1"}, r"plug-in asked: expected Batch from read\(\), found \[\{'a': 1\}\]"),
        ({"read": "Batch([{'a': 1}], 1)", "end": "1"}, r"expected Record in the batch of read\(\), found \{'a': 1\}"),
        ({"read": "Batch([Record('0', {}, 0)], 1)", "end": "1"}, "expected Integral as a record's position, found '0'"),
        ({"read": "Batch([Record(0, {}, '0')], 1)", "end": "1"}, "expected Integral as a record's timestamp_ms, found '0'"),
    ],
)  # fmt: skip
def test_an_answer_of_another_type_is_told_of_the_plugin(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: dict[str, str],
    says: str,
) -> None:
    """The method, what was expected and what came; and no value of a variable stands in the log."""
    code = WRONG
    for name, answer in {**RIGHT, **wrong}.items():
        code = code.replace("{" + name + "}", answer)
    entries = {"tidemark.sources": {"asked": "asking:AskedSource"}}
    monkeypatch.syspath_prepend(str(package(tmp_path / "asking", "asking", entries, code)))
    monkeypatch.delitem(sys.modules, "asking", raising=False)
    structlog.reset_defaults()
    with pytest.raises(TryOutFailed, match=says):
        try_out({"pipeline": [{"$source": {"plugin": "asked"}}, {"$emit": {"path": "out", "format": "json"}}]})
    assert "locals" not in capsys.readouterr().err


def _raises(_logger: Any, _method: str, event: Any) -> Any:
    raise ValueError(f"{event['event']}: this program's log is broken")


def test_a_failure_is_told_though_the_log_of_the_program_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does where warnings are errors and something warns while a line is made."""
    code = WRONG
    for name, answer in {**RIGHT, "splits": "['a']"}.items():
        code = code.replace("{" + name + "}", answer)
    entries = {"tidemark.sources": {"asked": "asking:AskedSource"}}
    monkeypatch.syspath_prepend(str(package(tmp_path / "asking", "asking", entries, code)))
    monkeypatch.delitem(sys.modules, "asking", raising=False)
    structlog.configure(processors=[_raises], wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        with pytest.raises(TryOutFailed, match=r"expected Split in splits\(\), found 'a'"):
            try_out({"pipeline": [{"$source": {"plugin": "asked"}}, {"$emit": {"path": "out", "format": "json"}}]})
    finally:
        structlog.reset_defaults()
