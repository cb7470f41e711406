"""Internal topics are closed to documents: who names one is refused, whatever cluster it is to be on."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from tidemark.services.cli.explain import validate
from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.shared.model.ids import Incarnation, JobId
from tidemark.shared.protocol.coordinator.plans import topic_name
from tidemark.shared.runtime.coordinator import PlanRefusal
from tidemark.shared.runtime.topics import Topics, is_internal

CONNECTIONS = {"b": {"type": "kafka", "bootstrapServers": "elsewhere:9092"}}
SOURCE = {"$source": {"connectionName": "b", "topic": "t"}}
EMIT = {"$emit": {"connectionName": "b", "topic": "o"}}


def names_of(topics: Topics) -> set[str]:
    """Every topic that an installation names."""
    plain = {
        getattr(topics, name) for name, what in inspect.getmembers(Topics) if isinstance(what, property)
    } | topics.plain().keys()
    job = JobId("j")
    edge = topic_name(topics.prefix, "p", "a-b", Incarnation("i"))
    return {*plain, topics.commits(job), f"{topics.markers(job)}v.0", edge}


@pytest.mark.parametrize("prefix", ["tidemark", "mine", "a.b"])
def test_every_name_of_an_installation_is_internal(prefix: str) -> None:
    """Whatever `Topics` and the coordinator name, and what the broker has of its own."""
    names = names_of(Topics(prefix))
    assert len(names) > 12
    assert [name for name in sorted(names | {"__consumer_offsets"}) if not is_internal(name, prefix)] == []


@pytest.mark.parametrize(
    "name", ["tidemark", "tidemarks.commands", "commands", "_x", "mine", "mine-x.commands", "a.tidemark.b"]
)
def test_names_beside_them_are_the_users(name: str) -> None:
    """A name that only looks alike is nobody's but the user's."""
    assert not is_internal(name, "mine")


def documents() -> list[tuple[str, dict[str, Any]]]:
    """Place of the internal name, and the document."""
    name = "mine.commands"
    return [
        ("pipeline[0].$source.topic", {"pipeline": [{"$source": {"connectionName": "b", "topic": name}}, EMIT]}),
        ("pipeline[0].$source.topic", {"pipeline": [{"$source": {"connectionName": "b", "topic": ["t", name]}}, EMIT]}),
        ("pipeline[1].$emit.topic", {"pipeline": [SOURCE, {"$emit": {"connectionName": "b", "topic": name}}]}),
        (
            "options.dlq.topic",
            {"pipeline": [SOURCE, EMIT], "options": {"dlq": {"connectionName": "b", "topic": name}}},
        ),
    ]


@pytest.mark.parametrize(("place", "document"), documents(), ids=lambda item: item if isinstance(item, str) else "")
def test_a_document_that_names_an_internal_topic_is_not_planned(
    place: str,
    document: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Refused with the place and the name, by the coordinator and by `tidemark validate`."""
    text = json.dumps({"connections": CONNECTIONS, **document})
    with pytest.raises(PlanRefusal) as refused:
        plan_for_coordinator("local", text, {}, None, {}, prefix="mine")
    assert f"{place}: mine.commands is an internal topic" in str(refused.value)
    plan_for_coordinator("local", text, {}, None, {}, prefix="other")
    (tmp_path / "p.json").write_text(text)
    monkeypatch.setenv("TIDEMARK_PREFIX", "mine")
    assert validate(tmp_path / "p.json", here=False) == 1
    assert f"{place}: mine.commands is an internal topic" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["größe", "my orders", "orders\u00a0", "a/b", ".", "..", "x" * 250, "orders'"])
@pytest.mark.parametrize("place", [place for place, _ in documents()])
def test_a_topic_that_kafka_does_not_have_is_refused_with_its_place(name: str, place: str) -> None:
    """Its source would wait for it for ever, and its sink make each record a dead letter."""
    text = next(json.dumps({"connections": CONNECTIONS, **d}) for p, d in documents() if p == place)
    with pytest.raises(PlanRefusal) as refused:
        plan_for_coordinator("local", text.replace("mine.commands", name), {}, None, {}, prefix="mine")
    assert f"{place}: expected a topic's name of 1 to 249 letters" in str(refused.value)
    plan_for_coordinator("local", text.replace("mine.commands", "x" * 249), {}, None, {}, prefix="mine")
