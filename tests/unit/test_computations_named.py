"""Computations by the names that packages have for them: found, refused and loaded as classes are."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness.plugins import package
from tests.tidy_rules import ROOT
from tidemark import try_out
from tidemark.services.audit.check import can_be_computed_again
from tidemark.services.coordinator.planning import classes_of, plan_for_coordinator
from tidemark.shared.computation import ComputationError, load_computation
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.planning import plan_processor
from tidemark.shared.process.allowed import Allowed
from tidemark.shared.runtime.coordinator import PlanRefusal

CODE = """
from dataclasses import dataclass
from tidemark import Computation

@dataclass
class Config:
    factor: int = 2

class Times(Computation):
    Config = Config

    def process(self, record, state, timers):
        yield {"n": record.value["n"] * self.config.factor}

class Other:
    pass
"""
ENTRIES = {
    "times": "named_ones:Times",
    "other": "named_ones:Other",
    "nowhere": "named_nowhere:Times",
    "os": "os:getcwd",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = package(tmp_path / "site", "named-ones", {"tidemark.computations": ENTRIES}, CODE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "named_ones", raising=False)
    return folder


def document(plugin: str = "times", **more: Any) -> dict[str, Any]:
    compute = {"plugin": plugin, "key": "$n", **more}
    emit = {"$emit": {"path": "out", "format": "json"}}
    return {"pipeline": [{"$source": {"documents": [{"n": 1}, {"n": 3}]}}, {"$compute": compute}, emit]}


@pytest.mark.usefixtures("site")
def test_a_name_stands_for_the_class_of_the_package() -> None:
    """With its config; a try-out runs it, and an audit computes it again."""
    assert load_computation("times", {"factor": 3}).config.factor == 3
    assert "named_ones" in sys.modules
    found = try_out(document(config={"factor": 5})).documents
    assert sorted(each["n"] for each in found) == [5, 15]
    tree = document()
    tree["pipeline"][0] = {"$source": {"connectionName": "k", "topic": "t"}}
    tree["connections"] = {"k": {"type": "kafka", "bootstrapServers": "k"}}
    can_be_computed_again(parse(tree))


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("name", "config", "says"),
    [
        ("tims", {}, r"computation tims: no package .* \(entry points tidemark.computations\); there are .*did you mean times\?"),
        ("other", {}, "class 'named_ones:Other': expected a subclass"),
        ("nowhere", {}, "class 'named_nowhere:Times': module named_nowhere cannot be imported"),
        ("times", {"factors": 1}, "config.factors is not known; known: factor"),
        ("times", {"factor": "a"}, "named_ones:Times: config: Expected `int`"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_named(name: str, config: dict[str, Any], says: str) -> None:
    """As for a class in the document; names that are there, and the nearest."""
    with pytest.raises(ComputationError, match=says):
        load_computation(name, config)


@pytest.mark.parametrize(
    ("compute", "says"),
    [
        ({}, r"\$compute needs one of class \(module:Class\) and plugin \(a name\)"),
        ({"plugin": "a", "class": "b:C"}, r"\$compute needs one of class"),
        ({"plugin": "os:getcwd"}, r"\$compute\.plugin: expected the name of a computation, found 'os:getcwd'"),
        ({"plugin": ""}, r"\$compute\.plugin: expected the name"),
        ({"class": "times"}, r'\$compute\.class: expected "module:Class", found'),
    ],
)
def test_a_stage_has_a_class_or_a_name(compute: dict[str, Any], says: str) -> None:
    """One of them; a name is none of a class, so that it leads to no module but a package's."""
    source: dict[str, Any] = {"$source": {"documents": []}}
    with pytest.raises(InvalidDocument, match=says):
        parse({"pipeline": [source, {"$compute": {"key": "$k", **compute}}]})


@pytest.mark.parametrize(
    ("name", "allowed", "says"),
    [
        ("times", Allowed(), r"\$compute: plug-in 'times': none is used here until it is named"),
        (
            "times",
            Allowed(plugins=("*",), modules=("mine",)),
            r"\$compute: class 'named_ones:Times': computations come from mine here",
        ),
        ("os", Allowed(plugins=("*",)), r"\$compute: class 'os:getcwd': os has no computations of users"),
        ("tims", Allowed(plugins=("*",)), r"\$compute: computation tims: no package .* did you mean times\?"),
    ],
)
def test_an_installation_says_which_names_and_which_modules(site: Path, name: str, allowed: Allowed, says: str) -> None:
    """Both lists count, before anything is imported; a name that is not there is refused when the processor is created."""
    plan = partial(plan_for_coordinator, "local", json.dumps(document(name)), {}, None, {})
    with pytest.raises(PlanRefusal, match=says):
        plan(allowed=allowed)
    assert "named_ones" not in sys.modules
    plan_for_coordinator(
        "local", json.dumps(document()), {}, None, {}, allowed=Allowed(plugins=("times",), modules=("named_ones",))
    )


@pytest.mark.usefixtures("site")
def test_the_code_of_a_named_computation_travels_as_that_of_a_class() -> None:
    """What is no installed package's is taken when the processor is created."""
    assert classes_of(plan_processor(parse(document()), engine="local")) == ["named_ones:Times"]


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({}, 0, "3 stages, no errors"),
        ({"plugin": "tims"}, 1, "pipeline[1].$compute.plugin: computation tims: no package that is installed here has it"),
        ({"config": {"factors": 1}}, 1, "pipeline[1].$compute.plugin: named_ones:Times: config.factors is not known"),
    ],
)  # fmt: skip
def test_validate_predicts_what_a_run_would_say(
    tmp_path: Path, site: Path, change: dict[str, Any], status: int, says: str
) -> None:
    """Without connecting: the class is loaded in a child process."""
    (tmp_path / "p.json").write_text(json.dumps(document(**change)))
    done = subprocess.run(
        [sys.executable, "-m", "tidemark.services.cli", "validate", "p.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{site}", "PATH": "/usr/bin:/bin", "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, says in " ".join((done.stdout + done.stderr).split())) == (status, True), done.stderr
