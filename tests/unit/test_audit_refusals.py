"""What an audit does not claim to compute again."""

from typing import Any

import pytest

from tidemark.services.audit.check import NotAuditable, can_be_computed_again
from tidemark.shared.language.documents import parse

SOURCE: dict[str, Any] = {"$source": {"connectionName": "broker", "topic": "in"}}
CONNECTIONS: dict[str, Any] = {
    **{name: {"type": "kafka", "bootstrapServers": "memory"} for name in ("broker", "c")},
    "r": {"type": "schemaRegistry", "schemaRegistryUrls": ["http://r"]},
}
REGISTRY = {"connectionName": "r", "valueSchema": {"type": "json", "schema": {"title": "T"}}}
WITHIN: dict[str, Any] = {"before": {"size": 1, "unit": "ms"}}


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ({"$lookup": {"from": {"documents": []}, "localField": "k", "foreignField": "k", "as": "r"}}, r"\$lookup: .* answered then"),
        ({"$emit": {"plugin": "shelf"}}, "asks no plug-in for what was read or written"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_again_is_no_success(stage: dict[str, Any], says: str) -> None:
    """What a table once answered, say, is named by the stage, instead of being computed wrongly."""
    with pytest.raises(NotAuditable, match=says):
        can_be_computed_again(parse({"connections": CONNECTIONS, "pipeline": [SOURCE, stage]}))


@pytest.mark.parametrize(
    "stage",
    [
        {"$match": {"k": 1}},
        {"$union": {"pipelines": [[SOURCE]]}},
        {"$emit": {"connectionName": "c", "topic": "t", "schemaRegistry": REGISTRY}},
        {"$emit": {"connectionName": "c", "topic": {"$meta": "stream.source.topic"}, "schemaRegistry": REGISTRY}},
        {"$emit": {"connectionName": "c", "topic": {"$meta": "stream.source.topic"}, "format": "messagePack"}},
        {"$join": {"from": [SOURCE], "leftKey": "$k", "rightKey": "$k", "within": WITHIN, "as": "r"}},
    ],
)
def test_what_follows_from_records_is_computed_again(stage: dict[str, Any]) -> None:
    """A pipeline of one source is audited, and one in which streams meet."""
    can_be_computed_again(parse({"connections": CONNECTIONS, "pipeline": [SOURCE, stage]}))
