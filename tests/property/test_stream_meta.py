"""D17: `$setStreamMeta` among stages drawn at random, with names and paths: what `$meta` tells is what a plain walk over documents says."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_operators_columns import (
    batch_of_records,
    documents,
    exact,
    expressions,
    names,
    of,
    parsed,
    queries,
)
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.stages import SetStreamMeta, Stateless
from tidemark.shared.language.stages.base import Failure, Passed
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.plan import DLQ
from tidemark.shared.model.values import MISSING, Document
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
    assert exact(found) == exact([document for document, _ in wanted])
    told = [
        {name: value for name, value in env.meta.items() if name in _SETTABLE}
        for env in environments(staged.batch, found)
    ]
    assert list(map(encode_value, told)) == [encode_value(own) for _, own in wanted]
    assert sorted(exact([d["doc"] for d in of(staged.letters, DLQ)])) == sorted(exact(failed))


_PATHS = ("u", "v", "u.y", "u.z", "u.y.z", "u.y.w.v", "v.a.b")
_SETS = st.lists(st.sampled_from(_PATHS), min_size=1, max_size=3, unique=True).filter(
    lambda some: not any(one.startswith(f"{other}.") for one in some for other in some)
)
_TOLD = st.sampled_from(
    ["$i", "$x", "$nowhere", "$$REMOVE", "$$ROOT", "$s", {"$literal": {"y": {"z": 1}}}, {"$literal": [{"y": 1}]}]
)


def _put(told: Any, names: list[str], value: Any) -> Any:
    """What is told with a value at a path, where objects stand for all that is no object on the way."""
    own = dict(told) if isinstance(told, dict) else {}
    if len(names) > 1:
        own[names[0]] = _put(own.get(names[0]), names[1:], value)
    elif value is MISSING:
        own.pop(names[0], None)
    else:
        own[names[0]] = value
    return own


@given(
    given_documents=st.lists(documents, min_size=1, max_size=4),
    drawn=st.lists(
        _SETS.flatmap(lambda some: st.fixed_dictionaries(dict.fromkeys(some, _TOLD))), min_size=1, max_size=4
    ),
)
@settings(max_examples=120)
def test_a_path_sets_a_field_of_an_object(given_documents: list[dict[str, Any]], drawn: list[dict[str, Any]]) -> None:
    """Beside what was told before: by columns and by documents the same as a walk over plain objects, and `$meta` reads it."""
    stages: list[dict[str, Any]] = [
        {"$setStreamMeta": {f"stream.{path}": item for path, item in each.items()}} for each in drawn
    ]
    _, chain = parsed([*stages, {"$replaceRoot": {"newRoot": {"at": {"$meta": f"stream.{next(iter(drawn[-1]))}"}}}}])
    batch = batch_of_records(given_documents)
    staged = through(chain, batch, NOWHERE)
    wanted: list[Document] = []
    ats: list[Document] = []
    for env in environments(batch, documents_of(batch)):
        told: Any = {}
        for each, stage in zip(drawn, chain, strict=False):
            before = told
            for path, item in each.items():
                told = _put(told, path.split("."), evaluate(parse_expression(item, "e", Scope(Problems())), env))
            assert isinstance(stage, SetStreamMeta)
            assert stage.metadata_of(Environment(env.root, meta={**before, **env.meta})) == told
        wanted.append(told)
        at = told
        for name in next(iter(drawn[-1])).split("."):
            at = at.get(name, MISSING) if isinstance(at, dict) else MISSING
        ats.append({} if at is MISSING else {"at": at})
    found = documents_of(staged.batch)
    assert exact(found) == exact(ats)
    names = {path.partition(".")[0] for each in drawn for path in each}
    told_of = [{n: v for n, v in env.meta.items() if n in names} for env in environments(staged.batch, found)]
    assert told_of == wanted
