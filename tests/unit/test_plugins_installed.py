"""Plug-ins of other packages: found by name, loaded when used, checked before they run; used where an installation says so."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness.plugins import CODE, package, several
from tests.tidy_rules import ROOT
from tidemark.services.audit.check import NotAuditable, can_be_computed_again
from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.services.library.trying import TryOutFailed, try_out
from tidemark.shared.computation.entries import names_in
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.plugins.installed import check_plugin, find, make_plugin
from tidemark.shared.plugins.interface import PluginError
from tidemark.shared.process.allowed import Allowed, NotAllowed
from tidemark.shared.process.connections import Connections
from tidemark.shared.runtime.coordinator import PlanRefusal

SETTINGS = {"host": "h"}


@pytest.fixture
def much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(several(tmp_path / "site")))
    monkeypatch.delitem(sys.modules, "much", raising=False)


def document(plugin: str = "fine", connection: str = "fine", **config: Any) -> dict[str, Any]:
    return {
        "connections": {"c": {"type": "plugin", "plugin": connection, "config": {"host": "${HOST}"}}},
        "pipeline": [
            {"$source": {"plugin": "given", "config": {"a": 1}}},
            {"$emit": {"plugin": plugin, "connectionName": "c", "config": config}},
        ],
    }


@pytest.mark.usefixtures("much")
def test_a_plugin_is_made_with_its_config() -> None:
    """As the classes that it names have it, with defaults; nothing is loaded before."""
    assert "fine" in names_in("tidemark.sinks")
    assert names_in("tidemark.sources") == ()
    assert "much" not in sys.modules
    made = make_plugin("sink", "fine", {"table": "t"}, SETTINGS)
    assert (made.config.table, made.config.rows, made.settings.host) == ("t", 5, "h")
    assert make_plugin("sink", "fine", {"table": "t", "rows": 1}, SETTINGS).config.rows == 1


@pytest.mark.usefixtures("much")
@pytest.mark.parametrize(
    ("name", "config", "settings", "says"),
    [
        ("fien", {"table": "t"}, SETTINGS, "sink fien: no package that is installed here has it .*half.*; did you mean fine?"),
        ("early", {"table": "t"}, SETTINGS, "sink early of much 1.2.3: expected a plug-in of version 1 .* found 2"),
        ("unversioned", {"table": "t"}, SETTINGS, r"expected a plug-in of version 1 of the interface \(`api = 1`.* found 0"),
        ("other", {}, {}, "expected much:Other to be a subclass of tidemark.plugins.Sink"),
        ("number", {}, {}, "expected much:number to be a subclass"),
        ("nobody", {}, {}, "loading much:Nobody raises AttributeError"),
        ("nowhere", {}, {}, "loading much_less:Fine raises ModuleNotFoundError"),
        ("half", {}, {}, "sink half of much 1.2.3: expected the class Half to have .*write, found none"),
        ("fine", {}, SETTINGS, "sink fine of much 1.2.3: config: .*table"),
        ("fine", {"table": "t", "row": 1}, SETTINGS, "config.row is not known; known: table, rows"),
        ("fine", {"table": 7}, SETTINGS, "config: Expected `str`, got `int`"),
        ("fine", {"table": "t", "rows": 0}, SETTINGS, "config: rows must be at least 1"),
        ("fine", {"table": "t"}, {}, "config of the connection: .*host"),
        ("fine", {"table": "t"}, {"host": "h", "port": 1}, "config of the connection.port is not known; known: host"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(name: str, config: Any, settings: Any, says: str) -> None:
    """Name, package and version, the expectation and the finding; it is lasting, for time mends none of it."""
    with pytest.raises(PluginError, match=says):
        make_plugin("sink", name, config, settings)
    with pytest.raises(PluginError, match=says):
        check_plugin("sink", name, config, settings)


@pytest.mark.usefixtures("much")
def test_settings_that_are_not_known_here_are_not_looked_at() -> None:
    """A connection of the registry is the workers'; the stage's own config is checked all the same."""
    check_plugin("sink", "fine", {"table": "t"}, None)
    with pytest.raises(PluginError, match=r"config\.row is not known"):
        check_plugin("sink", "fine", {"row": 1}, None)


@pytest.mark.usefixtures("much")
def test_two_packages_with_one_name_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them is meant is not guessed."""
    entries = {"tidemark.sinks": {"fine": "more:Fine"}}
    monkeypatch.syspath_prepend(str(package(tmp_path / "more", "more", entries, CODE)))
    with pytest.raises(
        PluginError, match=r"expected one package with it, found (more|much) 1\.2\.3 and (more|much) 1\.2\.3"
    ):
        find("sink", "fine")
    assert names_in("tidemark.sinks").count("fine") == 1


def test_a_name_without_any_package_says_that_there_is_none() -> None:
    """Where nothing is installed, nothing is meant."""
    with pytest.raises(
        PluginError, match=r"source x: no package .*\(entry points tidemark\.sources\); there are none$"
    ):
        find("source", "x")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"connection": "other"}, "the connection c is of the plug-in other, expected fine"),
        ({"connection": ""}, r"connections\.c\.plugin"),
    ],
)
def test_a_connection_is_for_the_plugin_that_it_names(change: dict[str, Any], says: str) -> None:
    """Else any plug-in could be given the passwords that were meant for another."""
    with pytest.raises(InvalidDocument, match=says):
        parse(document(**change))


def test_a_stage_of_a_plugin_takes_no_connection_of_another_type() -> None:
    """As every stage; and an option that it does not have is named."""
    tree = document()
    tree["connections"]["c"] = {"type": "kafka", "bootstrapServers": "b:1"}
    with pytest.raises(InvalidDocument, match="the connection c is of type kafka, expected plugin"):
        parse(tree)
    with pytest.raises(InvalidDocument, match="topic"):
        parse({"pipeline": [{"$source": {"plugin": "given", "topic": "t"}}, {"$emit": {"plugin": "fine"}}]})


@pytest.mark.parametrize(
    ("allowed", "says"),
    [
        (Allowed(), r"\$emit: plug-in 'fine': none is used here until it is named \(plugins of TIDEMARK_ALLOW"),
        (Allowed(plugins=("given", "f")), r"\$emit: plug-in 'fine': expected given, f \(plugins of TIDEMARK_ALLOW"),
        (Allowed(plugins=("*",), hosts=("a",)), r"\$emit\.config\.url: host 'b'"),
    ],
)
def test_plugins_are_used_where_an_installation_names_them(allowed: Allowed, says: str) -> None:
    """The coordinator refuses the document, and a worker before it loads anything; URLs of a stage's config are looked at, too."""
    tree = document(url="http://b/x")
    plan = partial(plan_for_coordinator, "local", json.dumps(tree), {}, None, {})
    with pytest.raises(PlanRefusal, match=says):
        plan(allowed=allowed)
    connections = Connections("test", allowed=allowed, values={"HOST": "h"})
    processor = parse(tree)
    with pytest.raises(NotAllowed, match=says):
        connections.plugin_settings(processor, processor.sinks[0])  # type: ignore[arg-type]


def test_a_plugin_that_is_named_has_the_config_of_its_connection() -> None:
    """With values put in; without a connection it has none."""
    processor = parse(document())
    connections = Connections("test", allowed=Allowed(plugins=("f*", "given")), values={"HOST": "h"})
    assert connections.plugin_settings(processor, processor.sinks[0]) == {"host": "h"}  # type: ignore[arg-type]
    assert connections.plugin_settings(processor, processor.source) == {}  # type: ignore[arg-type]


def test_a_try_out_collects_and_an_audit_says_that_it_asks_no_plugin() -> None:
    """A sink's documents are collected, whatever it is; a source has to be there."""
    with pytest.raises(TryOutFailed, match="source given: no package that is installed here has it"):
        try_out(document())
    rows = try_out({"pipeline": [{"$emit": {"plugin": "fine"}}]}, [{"a": 1}]).documents
    assert rows == [{"a": 1}]
    topics = {"connectionName": "k", "topic": "t"}
    tree = {"pipeline": [{"$source": {**topics, "format": {"plugin": "x"}}}, {"$emit": {**topics, "topic": "o"}}]}
    can_be_computed_again(parse(tree))  # what a format gives follows from what it is given
    with pytest.raises(NotAuditable, match=r"pipeline\[0\]\.\$source: an audit asks no plug-in"):
        can_be_computed_again(parse(document()))


VALIDATED = [
    ({}, 0, "2 stages, no errors"),
    ({"plugin": "fien"}, 1, "pipeline[1].$emit.plugin: sink fien: no package that is installed here has it"),
    ({"rows": 0}, 1, "config: rows must be at least 1"),
    ({"row": 0}, 1, "config.row is not known"),
]


@pytest.mark.parametrize(("change", "status", "says"), VALIDATED)
def test_validate_predicts_what_a_run_would_say(tmp_path: Path, change: dict[str, Any], status: int, says: str) -> None:
    """Without connecting: the plug-in is loaded in a child process, and asked for its config."""
    site = several(tmp_path / "site")
    plugin = change.get("plugin", "fine")
    tree = document(**{"plugin": plugin, "connection": plugin, "table": "t", **change})
    tree["pipeline"][0] = {"$source": {"documents": [{"a": 1}]}}
    (tmp_path / "p.json").write_text(json.dumps(tree))
    done = subprocess.run(
        [sys.executable, "-m", "tidemark.services.cli", "validate", "p.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{site}", "PATH": "/usr/bin:/bin", "COLUMNS": "300", "HOST": "h"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, says in " ".join((done.stdout + done.stderr).split())) == (status, True), done.stderr
