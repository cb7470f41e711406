"""D17: `$setStreamMeta` among stages drawn at random: what `{$meta: "stream.NAME"}` tells is what a plain walk over the documents says."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_operators_columns import (
    batch_of_records,
    canonical,
    documents,
    expressions,
    names,
    of,
    parsed,
    queries,
)
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.stages import SetStreamMeta, Stateless
from tidemark.shared.language.stages.base import Failure, Passed
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.plan import DLQ
from tidemark.shared.model.values import Document
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.program import through
from tidemark.shared.operators.rows import environments

_SETTABLE = ("u", "v", "w")
values = st.one_of(
    expressions, expressions.map(lambda e: {"y": e}), st.just("$$ROOT"), st.just({"$meta": "stream.source.offset"})
)
changes = st.one_of(
    st.dictionaries(st.sampled_from(_SETTABLE), values, min_size=1, max_size=2).map(lambda f: ("set", f)),
    st.dictionaries(st.sampled_from(_SETTABLE), st.sampled_from([*_SETTABLE, "u.y"]), min_size=1, max_size=2).map(lambda f: ("copy", f)),
    st.dictionaries(names, st.sampled_from([*_SETTABLE, "u.y", "w.x.y", ""]), min_size=1, max_size=2).map(lambda f: ("read", f)),
    queries.map(lambda q: ("stage", {"$match": q})),
    names.map(lambda n: ("stage", {"$unset": n})),
    st.dictionaries(names, expressions, min_size=1, max_size=2).map(lambda f: ("stage", {"$addFields": f})),
    st.just(("stage", {"$replaceRoot": {"newRoot": {"s": "$s", "i": "$i", "x": [1, 2]}}})),
    st.just(("stage", {"$unwind": "$x"})),
)  # fmt: skip


def _meta(name: str) -> dict[str, str]:
    return {"$meta": f"stream.{name}" if name else "stream"}


def _stages(drawn: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """A pipeline that sets each name once at first, so that every other stage may read all of them."""
    found: list[dict[str, Any]] = [{"$setStreamMeta": {f"stream.{name}": "$$REMOVE" for name in _SETTABLE}}]
    for kind, what in drawn:
        if kind == "stage":
            found.append(what)
        elif kind == "read":
            found.append({"$addFields": {name: _meta(read) for name, read in what.items()}})
        else:
            told = {f"stream.{n}": _meta(v) if kind == "copy" else v for n, v in what.items()}
            found.append({"$setStreamMeta": told})
    return found


def _walk(
    chain: tuple[Stateless, ...], document: Document, env: Environment, told: Document, failed: list[Document]
) -> list[tuple[Document, Document]]:
    """The documents that come out, each with what has been set of it."""
    if not chain:
        return [(document, told)]
    here = Environment(document, now=env.now, meta={**told, **env.meta})
    outcome = chain[0].apply(document, here)
    if isinstance(outcome, Failure):
        failed.append(outcome.document)
        return []
    assert isinstance(outcome, Passed)
    if isinstance(chain[0], SetStreamMeta):
        told = chain[0].metadata_of(here)
    return [pair for each in outcome.documents for pair in _walk(chain[1:], each, env, told, failed)]


@given(given_documents=st.lists(documents, max_size=6), drawn=st.lists(changes, min_size=1, max_size=5))
@settings(max_examples=120)
def test_metadata_stays_with_its_document(given_documents: list[dict[str, Any]], drawn: list[tuple[str, Any]]) -> None:
    """Through stages that keep, copy, drop and make documents: same documents, same metadata, same dead letters, in the same order."""
    _, chain = parsed(_stages(drawn))
    batch = batch_of_records(given_documents)
    staged = through(chain, batch, NOWHERE)
    failed: list[Document] = []
    wanted = [
        pair
        for env in environments(batch, documents_of(batch))
        for pair in _walk(chain, env.root, env, {}, failed)
    ]  # fmt: skip
    found = documents_of(staged.batch)
    assert canonical(found) == canonical([document for document, _ in wanted])
    told = [
        {name: value for name, value in env.meta.items() if name in _SETTABLE}
        for env in environments(staged.batch, found)
    ]
    assert list(map(encode_value, told)) == [encode_value(own) for _, own in wanted]
    assert sorted(canonical([d["doc"] for d in of(staged.letters, DLQ)])) == sorted(canonical(failed))
