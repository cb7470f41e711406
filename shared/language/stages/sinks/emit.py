"""`$emit`: its options tell which of its kinds is meant."""

from typing import Final

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import StageSpec
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.sinks import files, kafka, merge, plugin
from tidemark.shared.language.stages.sinks.base import SinkBase

_KINDS: Final = (
    (("plugin",), plugin.read),
    (("path",), files.read),
    (("topic",), kafka.read),
    (("db", "coll"), merge.read_collection),
)
"""By the options that tell, in this order; without any a topic is missed."""
_ELSEWHERE: Final = {
    "timeseries": "a time series collection is no target here: it has no unique keys, so no release into it could be repeated",
    "stream": "Kinesis is no target here: write to a topic",
}
"""Targets of Atlas' cloud, by an option that tells, and why there are none here."""


def _read(tree: object, path: str, scope: Scope) -> SinkBase | None:
    given = tree.keys() if type(tree) is dict else frozenset()
    if not given & {"plugin", "path", "topic"}:
        for name, why in _ELSEWHERE.items():
            if name in given:
                scope.problems.add(join(path, name), why)
                return None
    read = next((read for names, read in _KINDS if given & set(names)), kafka.read)
    return read(tree, path, scope)


SPEC: Final = StageSpec(
    "Writes to a topic, to files, into a collection, or where a plug-in does.",
    _read,
    {"oneOf": [kafka.SCHEMA, files.SCHEMA, merge.COLLECTION_SCHEMA, plugin.SCHEMA]},
)
