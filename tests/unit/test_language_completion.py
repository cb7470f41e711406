"""What is proposed in a document that is being written: `|` is the cursor."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.shared.language.completion import PROPOSALS_MAX, Completion, complete
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.stages.table import STAGES

SOURCE = '{"$source": {"connectionName": "k", "topic": "t", "schema": {"user": "string", "at": {"day": "int"}}}}'


def at(text: str, **registry: str) -> Completion:
    before, _, after = text.partition("|")
    return complete(before, after, registry)


def labels(text: str, **registry: str) -> list[str]:
    return [proposal.label for proposal in at(text, **registry).proposals]


def taken(text: str, label: str, **registry: str) -> str:
    """The text with a proposal taken, and the cursor where it then is."""
    before, _, after = text.partition("|")
    found = at(text, **registry)
    (proposal,) = [each for each in found.proposals if each.label == label]
    assert before.endswith(found.before)
    assert after.startswith(found.after)
    head = before[: len(before) - len(found.before)] + proposal.insert
    place = len(head) - proposal.back
    whole = head + after[len(found.after) :]
    return f"{whole[:place]}|{whole[place:]}"


def test_every_stage_operator_and_option_has_its_place() -> None:
    """Names come from the schema of documents, so none is missing; one stage has one name."""
    assert labels("{|}") == ["pipeline", "name", "connections", "options"]
    assert labels('{"pipeline": [{"|"}]}') == list(STAGES)
    assert labels('{"pipeline": [{"$match": {}, "|"}]}') == []
    for name in OPERATORS:
        assert name in labels(f'{{"pipeline": [{SOURCE}, {{"$set": {{"x": {{"{name}|"}}}}}}]}}')
    assert "$sum" in labels(
        '{"pipeline": [{"$tumblingWindow": {"pipeline": [{"$group": {"_id": null, "n": {"$s|"}}}]}}]}'
    )
    assert {"$gt", "$elemMatch"} <= set(labels('{"pipeline": [{"$match": {"user": {"|"}}}]}'))


def test_details_are_the_reference_s() -> None:
    """A line on each, and whether it must be there."""
    (found,) = [each for each in at('{"|"}').proposals if each.label == "pipeline"]
    assert found.detail == "the stages (required)"
    assert all(each.detail for each in at('{"pipeline": [{"|"}]}').proposals)


def test_connections_are_the_document_s_and_the_registry_s() -> None:
    """With their types, wherever in the document they stand."""
    text = '{"pipeline": [{"$emit": {"connectionName": "|"}}], "connections": {"k": {"type": "kafka"}, "f": {}}}'
    found = {each.label: each.detail for each in at(text, r="files").proposals}
    assert found == {"r": "connection, files", "k": "connection, kafka", "f": "connection"}


def test_fields_are_those_that_the_source_declares() -> None:
    """As paths of expressions, and as keys of queries, also of objects in objects."""
    assert labels(f'{{"pipeline": [{SOURCE}, {{"$set": {{"x": "$a|"}}}}]}}') == ["$at", "$at.day"]
    assert labels(f'{{"pipeline": [{SOURCE}, {{"$match": {{"u|"}}}}]}}') == ["user"]
    assert "$user" in labels(f'{{"pipeline": [{SOURCE}, {{"$set": {{"x": {{"$add": [1, "$|"]}}}}}}]}}')


def test_alternatives_are_those_that_allow_what_is_there() -> None:
    """By their keys, and by constants among the values."""
    found = labels('{"connections": {"k": {"type": "kafka", "|"}}}')
    assert (found, labels('{"connections": {"k": {"|", "type": "kafka"}}}')) == (["bootstrapServers", "config"], found)
    assert "topic" not in labels('{"pipeline": [{"$source": {"path": "x", "|"}}]}')


@pytest.mark.parametrize(
    ("text", "label", "expected"),
    [
        ("{|", "pipeline", '{"pipeline": [|]'),
        ('{"pi|', "pipeline", '{"pipeline": [|]'),
        ('{"pi|"}', "pipeline", '{"pipeline": [|]}'),
        ('{"pi|pe": []}', "pipeline", '{"pipeline|": []}'),
        ('{"options": {"|}, "pipeline": []}', "lateness", '{"options": {"lateness": "|"}, "pipeline": []}'),
        ('{"options": {"lateness": "|"}}', "split", '{"options": {"lateness": "split|"}}'),
        ('{"options": {"lateness": "s|}}', "split", '{"options": {"lateness": "split"|}}'),
        ('{"options": {"lateness": |}}', "split", '{"options": {"lateness": "split"|}}'),
        ('{"pipeline": [|]}', "{}", '{"pipeline": [{|}]}'),
        ('{"pipeline": [{"$source": {"path": "p", "follow": t|}}]}', "true", '{"pipeline": [{"$source": {"path": "p", "follow": true|}}]}'),
    ],
)  # fmt: skip
def test_what_is_taken_fits_into_the_text(text: str, label: str, expected: str) -> None:
    """No quote too many or too few, and the cursor inside of what was opened."""
    assert taken(text, label) == expected


def test_a_pipeline_is_written_by_taking_proposals_alone() -> None:
    """Each step's cursor stands where the next one is proposed."""
    text = "{|}"
    for label in ("pipeline", "{}", "$tumblingWindow", "interval", "unit", "minute"):
        text = taken(text, label)
    assert json.loads(text.replace("|", "")) == {"pipeline": [{"$tumblingWindow": {"interval": {"unit": "minute"}}}]}


def test_nothing_is_proposed_where_nothing_is_known() -> None:
    """YAML, no document, names that only the user knows, and what lies too deep."""
    for text in (
        "pipeline:\n  - $|",
        "|",
        "[" * 200 + "|",
        '{"pipeline": [{"$source": {"topic": "|"}}]}',
        '{"x": {"|"}}',
    ):
        assert labels(text) == [], text


@given(st.text('{}[]":,$ab\\\n 1', max_size=60), st.integers(0, 60))
def test_any_text_has_an_answer(text: str, cursor: int) -> None:
    """However broken: what is replaced is what stands there, and proposals are bounded."""
    found = complete(text[:cursor], text[cursor:], {"a": "kafka"})
    assert text[:cursor].endswith(found.before)
    assert text[cursor:].startswith(found.after)
    assert len(found.proposals) <= PROPOSALS_MAX
