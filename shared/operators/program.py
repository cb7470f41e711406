"""Stages on the rows of a batch: each is a program from columns to columns.

`through` gives the result of `apply_stage` on each document (D1). A computed field becomes a column, by a kernel or interpreted
(frame.py); an unchanged one stays where it lies, in a column or in the text or encoded document of its row. Only where a stage
makes whole documents anew (a `$redact` that looks inside, a `$replaceRoot` by any expression) its rows are documents behind it, encoded.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.apply import Discarded, Failure, Passed, ValidationStop, apply_stage
from tidemark.shared.language.apply.stages import add_to_value, computes, include_value
from tidemark.shared.language.expressions.ast import Call, Expr, FieldPath, ObjectExpr, Variable, fields_used
from tidemark.shared.language.expressions.environment import RESULT_UNITS_MAX, Environment
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.fields import expression_paths, predicate_paths, reads
from tidemark.shared.language.kernels import Bools, Unvectorised, verdict_of
from tidemark.shared.language.query.ast import All, Always, AnyOf, ExprTrue, Not, Predicate
from tidemark.shared.language.stages import (
    AddFields,
    Branch,
    Computed,
    Leaf,
    Match,
    Project,
    Redact,
    ReplaceRoot,
    Stateless,
    Unset,
    Unwind,
    Validate,
)
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.values import MISSING, Document, Value
from tidemark.shared.operators import dead_letters, inside
from tidemark.shared.operators.base import RAW, REST, OperatorError, Out
from tidemark.shared.operators.batches import (
    TAGGED_FIELD,
    batch_of,
    column_field,
    documents_of,
    empty_of,
    engine_columns,
    is_engine,
    is_tagged,
    select,
    user_columns,
)
from tidemark.shared.operators.cells import encoded_cells
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.operators.frame import Computed as Cells
from tidemark.shared.operators.frame import Frame
from tidemark.shared.operators.paths_ahead import tree_paths
from tidemark.shared.operators.pieces import COPIED_BYTES, ranges, row_bytes
from tidemark.shared.operators.rows import environments

_Named = dict[str, tuple[pa.Field, pa.Array]]


@dataclass(slots=True)
class Staged:
    """Rows behind some stages, the dead letters on the way, and how many rows `$validate` discarded."""

    batch: pa.RecordBatch
    letters: list[Out] = field(default_factory=list)
    failed: int = 0
    discarded: int = 0
    interpreted: int = 0
    """How many values the interpreter gave, a row and an expression each."""


def through(stages: Sequence[Stateless], batch: pa.RecordBatch, context: TaskContext) -> Staged:
    """Rows through stages."""
    (staged,) = _behind(stages, Staged(batch), context, None)
    return staged


def through_in_pieces(
    stages: Sequence[Stateless], batch: pa.RecordBatch, context: TaskContext, most: int = COPIED_BYTES
) -> Iterator[Staged]:
    """Rows through stages; where arrays are unwound, the items go on in pieces of so many bytes."""
    return _behind(stages, Staged(batch), context, most)


def _behind(stages: Sequence[Stateless], staged: Staged, context: TaskContext, most: int | None) -> Iterator[Staged]:
    for number, stage in enumerate(stages):
        if not staged.batch.num_rows:
            break
        if any(map(is_engine, _written(stage))):
            _whole(stage, staged, context)
        elif isinstance(stage, Unwind):
            for piece in _unwound(stage, staged, context, most):
                staged.batch = piece
                yield from _behind(stages[number + 1 :], staged, context, most)
                staged = Staged(piece)
            return
        else:
            _RUN.get(type(stage), _whole)(stage, staged, context)
    yield staged


def _written(stage: Stateless) -> Iterator[str]:
    """The fields that a stage writes, keeps by name or takes away. Those named as the engine's columns are can be none (B5)."""
    match stage:
        case AddFields() | Project() | Unset():
            yield from (name for name, _ in stage.fields.fields)
        case ReplaceRoot(new_root=ObjectExpr(fields=fields)):
            yield from (name for name, _ in fields)
        case ReplaceRoot():
            added = _merged_into_root(stage)
            yield from (name for name, _ in added.fields) if added is not None else ()
        case Unwind():
            yield stage.names[0]
            yield from (stage.include_array_index or ())[:1]


# --- rows kept or not -------------------------------------------------------------------------------------------------


def judged(predicate: Predicate, frame: Frame) -> tuple[Bools, Bools]:
    """Which rows meet a predicate by its kernel, and of which only the interpreter can tell; shape (n,) each."""
    frame.prepare(predicate_paths(predicate))
    try:
        found, doubt = verdict_of(predicate, frame)
    except Unvectorised:
        return np.zeros(frame.size, dtype=np.bool_), np.ones(frame.size, dtype=np.bool_)
    return found, np.zeros(frame.size, dtype=np.bool_) if doubt is None else doubt


def _predicate(stage: Match | Validate | Redact) -> Predicate:
    """Which documents a stage keeps as they are."""
    match stage:
        case Match(predicate=predicate):
            return predicate
        case Validate(validator=predicate):
            return predicate
        case _:
            found = _decided(stage.expr)
            assert found is not None, "others are not kept whole"
            return found


def _decided(expr: Expr) -> Predicate | None:
    """Of which documents a `$redact` keeps all, where it keeps all or nothing of each; None where it may look inside."""
    match expr:
        case Variable("KEEP" | "PRUNE" as name, ()):
            return Always(name == "KEEP")
        case Call("$cond", (condition, then, other)) if (
            condition is not None and then is not None and other is not None
        ):
            kept, otherwise = _decided(then), _decided(other)
            if kept is None or otherwise is None:
                return None
            truth = ExprTrue(condition)
            return AnyOf((All((truth, kept)), All((Not(truth), otherwise))))
        case _:
            return None


def _redacted(stage: Redact, staged: Staged, context: TaskContext) -> None:
    (_whole if _decided(stage.expr) is None else _kept)(stage, staged, context)


def _kept(stage: Match | Validate | Redact, staged: Staged, context: TaskContext) -> None:
    """`$match`, `$validate`, and a `$redact` that does not look inside, keep rows as they are."""
    batch = staged.batch
    frame = Frame(batch, reads(stage), context.topic)
    predicate = _predicate(stage)
    kept, doubt = judged(predicate, frame)
    kept = kept & ~doubt
    rows = np.flatnonzero(~kept if isinstance(stage, Validate) else doubt)
    staged.interpreted += len(rows)
    failed: list[tuple[int, Failure]] = []
    for row, env in zip(rows.tolist(), frame.environments(rows), strict=True):
        match _applied(stage, env.root, env):
            case Passed(documents):
                kept[row] = bool(documents)
            case Discarded():
                kept[row] = False
                staged.discarded += 1
            case Failure() as failure:
                kept[row] = False
                failed.append((row, failure))
    _add_letters(stage, staged, context, failed)
    staged.batch = select(batch, kept)


def _applied(stage: Stateless, document: Document, env: Any) -> Passed | Discarded | Failure:
    """The result of a stage for one document; OperatorError if that stops the processor."""
    outcome = apply_stage(stage, document, env)
    if isinstance(outcome, ValidationStop):
        raise OperatorError(
            f"{outcome.path}: {outcome.reason} validationAction is error: mend the document's source or the validator"
        )
    return outcome


# --- fields -----------------------------------------------------------------------------------------------------------


def _added(stage: AddFields, staged: Staged, context: TaskContext) -> None:
    frame = _frame(stage, staged, context)
    new: _Named = {}
    errors: dict[int, Any] = {}
    for name, leaf in stage.fields.fields:
        cells = _leaf(name, leaf, frame)
        if cells is not None:
            new[name] = (cells.field.with_name(name), cells.array)
            errors = {**cells.errors, **errors}
            staged.interpreted += cells.interpreted_rows
    _replace(staged, new)
    _without_errors(stage, staged, context, frame, errors)


def _leaf(name: str, leaf: Leaf, frame: Frame) -> Cells | None:
    """The new value of a field by `$addFields`; None where nothing is computed."""
    if isinstance(leaf, Computed):
        return frame.computed(leaf.expr)
    if isinstance(leaf, Branch) and computes(leaf):
        if frame.absent(name):
            return frame.computed(_object(leaf))
        return frame.each(lambda env: add_to_value(leaf, env.root.get(name, MISSING), env))
    return None


def _object(tree: Branch) -> ObjectExpr:
    """The new value of a branch where there was none: the object of the computed fields."""
    fields: list[tuple[str, Expr]] = []
    for name, leaf in tree.fields:
        if isinstance(leaf, Computed):
            fields.append((name, leaf.expr))
        elif isinstance(leaf, Branch) and computes(leaf):
            fields.append((name, _object(leaf)))
    return ObjectExpr(tuple(fields))


def _included(stage: Project, staged: Staged, context: TaskContext) -> None:
    """The fields that are kept in the order of the documents, then those that are computed."""
    frame = _frame(stage, staged, context)
    kept = [name for name, leaf in stage.fields.fields if not isinstance(leaf, Computed)]
    order = document_order(staged.batch, kept)
    if order is None:
        _whole(stage, staged, context)
        return
    leaves = dict(stage.fields.fields)
    names = [*order, *(name for name, leaf in stage.fields.fields if isinstance(leaf, Computed))]
    _made_of(stage, staged, context, frame, {name: _included_leaf(name, leaves[name], frame) for name in names})


def _included_leaf(name: str, leaf: Leaf, frame: Frame) -> Cells:
    match leaf:
        case Computed(expr):
            return frame.computed(expr)
        case Branch():
            return frame.each(lambda env: include_value(leaf, env.root.get(name, MISSING), env))
        case _:
            return frame.computed(FieldPath((name,)))


def _made_of(stage: Stateless, staged: Staged, context: TaskContext, frame: Frame, cells: Mapping[str, Cells]) -> None:
    """Rows that have these fields and no others."""
    errors: dict[int, Any] = {}
    for each in cells.values():
        errors = {**each.errors, **errors}
        staged.interpreted += each.interpreted_rows
    named = {name: (each.field.with_name(name), each.array) for name, each in cells.items() if not _nowhere(each)}
    staged.batch = _batch(named, engine_columns(staged.batch, (RAW, REST)), staged.batch)
    _without_errors(stage, staged, context, frame, errors)


def _nowhere(cells: Cells) -> bool:
    """Whether no row has a value."""
    return is_tagged(cells.field) and cells.array.null_count == len(cells.array)


def _excluded(stage: Project | Unset, staged: Staged, context: TaskContext) -> None:
    """Fields left out: columns go, and a column without a value hides the documents' own fields."""
    if isinstance(stage, Project) and stage.mode == "inclusion":
        _included(stage, staged, context)
        return
    frame = _frame(stage, staged, context)
    batch = staged.batch
    new: _Named = {}
    gone: list[str] = []
    for name, leaf in stage.fields.fields:
        if isinstance(leaf, Branch):
            cells = _of_field(name, frame, staged)
            if cells.null_count < len(cells):
                new[name] = (TAGGED_FIELD.with_name(name), inside.without(leaf, cells))
        elif not unwritten(batch, name):
            new[name] = (TAGGED_FIELD.with_name(name), pa.nulls(batch.num_rows, pa.binary()))
        elif name in batch.schema.names:
            gone.append(name)
    _replace(staged, new)
    if gone:
        staged.batch = staged.batch.drop_columns(gone)


def _rooted(stage: ReplaceRoot, staged: Staged, context: TaskContext) -> None:
    if not isinstance(stage.new_root, ObjectExpr):
        added = _merged_into_root(stage)
        if added is None or _largest(staged.batch) > RESULT_UNITS_MAX:
            _whole(stage, staged, context)
        else:
            _merged(stage, added, staged, context)
        return
    frame = _frame(stage, staged, context)
    _made_of(stage, staged, context, frame, {name: frame.computed(expr) for name, expr in stage.new_root.fields})


def _largest(batch: pa.RecordBatch) -> int:
    """Bytes that no row has more of."""
    total = 0
    for column in batch.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            total += pc.max(pc.binary_length(column)).as_py() or 0
        elif pa.types.is_nested(column.type):
            total += column.nbytes
    return total


def _merged_into_root(stage: ReplaceRoot) -> ObjectExpr | None:
    """The fields of `{$mergeObjects: ["$$ROOT", {…}]}`, which keeps the documents' other fields; None for another new root."""
    match stage.new_root:
        case Call("$mergeObjects", (Variable("ROOT", ()), ObjectExpr() as added)):
            return added
        case _:
            return None


def _merged(stage: ReplaceRoot, added: ObjectExpr, staged: Staged, context: TaskContext) -> None:
    """Fields written over; one without a value stays as it was."""
    used = [fields_used(expr) for _, expr in added.fields]
    names = None if None in used else frozenset({name for name, _ in added.fields}.union(*(u for u in used if u)))
    frame = Frame(staged.batch, names, context.topic)
    frame.prepare(expression_paths(stage.new_root))
    new: _Named = {}
    errors: dict[int, Any] = {}
    for name, expr in added.fields:
        cells = frame.computed(expr)
        if cells.array.null_count and (is_tagged(cells.field) or empty_of(cells.field) != "null"):
            cells = frame.each(lambda env, expr=expr, name=name: _or_as_it_was(evaluate(expr, env), name, env))  # type: ignore[misc]
        new[name] = (cells.field.with_name(name), cells.array)
        errors = {**cells.errors, **errors}
        staged.interpreted += cells.interpreted_rows
    _replace(staged, new)
    _without_errors(stage, staged, context, frame, errors)


def _or_as_it_was(value: Value, name: str, env: Environment) -> Value:
    return env.root.get(name, MISSING) if value is MISSING else value


def _of_field(name: str, frame: Frame, staged: Staged) -> pa.BinaryArray:
    """The values of a field, encoded; null for a missing one."""
    cells = frame.computed(FieldPath((name,)))
    staged.interpreted += cells.interpreted_rows
    return encoded_cells(cells.array, cells.field)


_COPIES: Final = 8
"""So many copies of a document cost less than to write it without its array."""


def _unwound(stage: Unwind, staged: Staged, context: TaskContext, most: int | None) -> Iterator[pa.RecordBatch]:
    """Rows as often as the array has items, without a large array; only fields that change are looked at. One piece at the least."""
    batch = staged.batch
    top, within = stage.names[0], stage.names[1:]
    index_path = stage.include_array_index or ()
    names = {top, *index_path[:1]}
    frame = Frame(batch, names, context.topic)
    frame.prepare((name,) for name in names)
    fields = {name: _of_field(name, frame, staged) for name in sorted(names)}
    arrays = inside.at(fields[top], *within)
    rows, items, indices = inside.unwound(arrays, keep_empty=stage.preserve_null_and_empty_arrays)
    if within:
        fields[top] = inside.put(fields[top], within, inside.emptied(arrays))
    else:
        fields[top] = pa.nulls(batch.num_rows, pa.binary())
    sizes = row_bytes(batch)
    if int(sizes[rows].sum()) > _COPIES * int(sizes.sum()):
        batch = _without_value(batch, top)
        sizes = row_bytes(batch)
    sizes += sum(pc.binary_length(cells).fill_null(0).to_numpy() for cells in fields.values())
    for begin, end in [(0, len(rows))] if most is None else ranges(sizes[rows], most) or [(0, 0)]:
        places = pa.array(rows[begin:end])
        own = {name: cells.take(places) for name, cells in fields.items()}
        own[top] = inside.put(own[top], within, items.slice(begin, end - begin))
        if index_path:
            numbers = indices.slice(begin, end - begin)
            cells = encoded_cells(numbers, column_field(numbers.type, empty="null"))
            own[index_path[0]] = inside.put(own[index_path[0]], index_path[1:], cells)
        staged.batch = batch.take(places)
        _replace(staged, {name: (TAGGED_FIELD.with_name(name), cells) for name, cells in own.items()})
        yield staged.batch


def _without_value(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """The batch with null as the value of a field, which keeps its place in the documents."""
    at = batch.schema.get_field_index(name)
    if at >= 0:
        field = batch.schema.field(at)
        batch = batch.set_column(at, field, pa.nulls(batch.num_rows, field.type))
    kept = next((engine for engine in (REST, RAW) if engine in batch.schema.names), None)
    if kept is None:
        return batch
    null = pa.repeat(pa.scalar(encode_value(None), pa.binary()), batch.num_rows)
    documents = pa.RecordBatch.from_arrays(
        [batch.column(kept), null], schema=pa.schema([batch.schema.field(kept), TAGGED_FIELD.with_name(name)])
    )
    at = batch.schema.get_field_index(kept)
    return batch.set_column(at, REST, encoded(documents))


# --- whole documents --------------------------------------------------------------------------------------------------


def _whole(stage: Stateless, staged: Staged, context: TaskContext) -> None:
    """Each document by itself, all of it: the output is encoded."""
    batch = staged.batch
    places: list[int] = []
    documents: list[Document] = []
    failed: list[tuple[int, Failure]] = []
    for row, env in enumerate(environments(batch, documents_of(batch), context.topic)):
        match _applied(stage, env.root, env):
            case Passed(found):
                places += [row] * len(found)
                documents += found
            case Failure() as failure:
                failed.append((row, failure))
    _add_letters(stage, staged, context, failed)
    staged.interpreted += batch.num_rows
    taken = batch.take(pa.array(places, pa.int64()))
    staged.batch = batch_of(documents, engine_columns(taken))


# --- parts ------------------------------------------------------------------------------------------------------------


def _frame(stage: AddFields | Project | Unset | ReplaceRoot, staged: Staged, context: TaskContext) -> Frame:
    frame = Frame(staged.batch, reads(stage), context.topic)
    if isinstance(stage, ReplaceRoot):
        frame.prepare(expression_paths(stage.new_root))
    else:
        frame.prepare(tree_paths(stage.fields))
    return frame


def _replace(staged: Staged, new: _Named) -> None:
    """Columns take the place of those of their names, or come behind the others."""
    batch = staged.batch
    named = {name: new.get(name) or (batch.schema.field(name), batch.column(name)) for name in user_columns(batch)}
    staged.batch = _batch({**named, **new}, engine_columns(batch), batch)


def _batch(named: _Named, engine: Mapping[str, pa.Array], like: pa.RecordBatch) -> pa.RecordBatch:
    fields = [f for f, _ in named.values()] + [like.schema.field(n) for n in engine]
    return pa.RecordBatch.from_arrays([*(a for _, a in named.values()), *engine.values()], schema=pa.schema(fields))


def _without_errors(
    stage: Stateless, staged: Staged, context: TaskContext, frame: Frame, errors: Mapping[int, Any]
) -> None:
    """The rows on which nothing failed; the others are dead letters, with the document as it came to the stage."""
    if not errors:
        return
    kept = np.ones(frame.size, dtype=np.bool_)
    kept[list(errors)] = False
    behind = staged.batch
    staged.batch = frame.batch
    failures = [(row, Failure(e.reason, e.code, e.path or stage.path, {})) for row, e in sorted(errors.items())]
    _add_letters(stage, staged, context, failures)
    staged.batch = select(behind, kept)


def _add_letters(stage: Stateless, staged: Staged, context: TaskContext, failed: Sequence[tuple[int, Failure]]) -> None:
    """Dead letters of rows of the batch as it came to the stage."""
    found = [dead_letters.Failure(row, f.reason, f.code, f.path) for row, f in failed]
    staged.failed += len(found)
    staged.letters += dead_letters.dead_letters(staged.batch, found, stage.name, context)


def unwritten(batch: pa.RecordBatch, name: str) -> bool:
    """Whether the documents of a batch, its columns aside, have no field of this name, nor another that looks like it."""
    escaped = json.dumps(name, ensure_ascii=False)[1:-1] != name or "/" in name
    for column, wanted in ((RAW, (f'"{name}"', "\\u")), (REST, (name,))):
        if column not in batch.schema.names:
            continue
        texts = batch.column(column)
        if texts.null_count == len(texts):
            continue
        if escaped or any(pc.any(pc.match_substring(texts, text)).as_py() for text in wanted):
            return False
    return True


def document_order(batch: pa.RecordBatch, names: Sequence[str]) -> list[str] | None:
    """Names in the order in which the documents have these fields; None where they may have them in different ones."""
    user = user_columns(batch)
    source = next((name for name in (RAW, REST) if name in batch.schema.names), None)
    if source is None or len(names) < 2:  # noqa: PLR2004 - nothing to order
        return [*(name for name in user if name in names), *(name for name in names if name not in user)]
    texts = batch.column(source)
    found: list[tuple[Any, str]] = []
    for name in names:
        if source == REST and name in user:
            continue
        found.append((_places(texts, name, source), name))
    ordered = sorted(found, key=lambda each: _first(each[0]))
    highest = np.full(batch.num_rows, -1, dtype=np.int64)
    for places, _ in ordered:
        if bool(((places >= 0) & (places < highest)).any()):
            return None
        highest = np.maximum(highest, places)
    inside = [name for _, name in ordered]
    return [*inside, *(name for name in user if name in names and name not in inside)]


def _places(texts: pa.Array, name: str, source: str) -> Any:
    """Where a field's name stands first; -1 where it does not."""
    if source == RAW:
        pattern = re.escape(json.dumps(name, ensure_ascii=False)) + r"\s*:"  # a value may look like the name
        found = pc.find_substring_regex(texts, pattern)
    else:
        found = pc.find_substring(texts, encode_value(name))
    return pc.fill_null(found, -1).to_numpy(zero_copy_only=False)


def _first(places: Any) -> tuple[bool, int]:
    """Where the field stands in the first document that has it; those that none has come last."""
    there = np.flatnonzero(places >= 0)
    return (not len(there), int(places[there[0]]) if len(there) else 0)


_RUN: Final[Mapping[type, Callable[[Any, Staged, TaskContext], None]]] = {
    Match: _kept,
    Validate: _kept,
    AddFields: _added,
    Project: _excluded,
    Unset: _excluded,
    ReplaceRoot: _rooted,
    Redact: _redacted,
}
