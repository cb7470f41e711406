"""What an audit does not claim to compute again."""

from typing import Any

import pytest

from tidemark.services.audit.check import NotAuditable, can_be_computed_again
from tidemark.shared.language.documents import parse

SOURCE: dict[str, Any] = {"$source": {"documents": []}}
WITHIN: dict[str, Any] = {"before": {"size": 1, "unit": "ms"}}


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ({"$union": {"pipelines": [[SOURCE]]}}, r"pipeline\[1\]\.\$union: .* streams meet"),
        ({"$join": {"from": [SOURCE], "leftKey": "$k", "rightKey": "$k", "within": WITHIN, "as": "r"}}, r"\$join: .* streams meet"),
        ({"$lookup": {"from": {"documents": []}, "localField": "k", "foreignField": "k", "as": "r"}}, r"\$lookup: .* answered then"),
        ({"$emit": {"connectionName": "c", "topic": "t", "config": {"key": "$k", "tombstoneWhen": {"$meta": "stream.source.offset"}}}},
         r"tombstoneWhen: what \$meta told"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_again_is_no_success(stage: dict[str, Any], says: str) -> None:
    """Streams that meet, and what a table once answered, are named by the stage, instead of being computed wrongly."""
    with pytest.raises(NotAuditable, match=says):
        can_be_computed_again(parse({"pipeline": [SOURCE, stage]}))


def test_one_source_is_computed_again() -> None:
    """A pipeline of one source is audited."""
    can_be_computed_again(parse({"pipeline": [SOURCE, {"$match": {"k": 1}}]}))
