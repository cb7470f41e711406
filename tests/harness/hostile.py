"""Hostile inputs in great numbers, against what reads bytes of others: `python -m tests.harness.hostile COUNT [SEED]` (`make hostile`).

Recorded bytes and documents are damaged, grown, nested and swapped about. Whatever comes, it is read or refused by the errors that its
reader names. Each thousand runs in a process of its own, so that a crash is a finding, too. An input is a function of its seed.
"""

import json
import logging
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tests.harness import hostile_outside
from tests.harness.damage import damaged
from tests.harness.formats import FORMS, recorded
from tidemark.services.cli.process import quiet
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.schema import NO_SCHEMA, parse_schema
from tidemark.shared.model.formats import FORMATS, FormatError
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.decode import decode
from tidemark.shared.ports.sink import TargetRefused
from tidemark.shared.wire.arrow import decode_batch, encode_batch
from tidemark.shared.wire.limits import WireError

ROOT: Final = Path(__file__).parents[2]
EACH: Final = 1_000
"""Inputs of one process."""
SLOW_S: Final = 10.0
"""An input that takes more of the processor than this is a finding."""


@cache
def _trees() -> Sequence[Any]:
    return [parse_tree(path) for path in sorted((ROOT / "deploy/pipelines").glob("*/pipeline.yaml"))]


def parse_tree(path: Path) -> Any:
    """A document's tree."""
    import yaml

    return yaml.safe_load(path.read_text())


def _swapped(tree: Any, other: Any, chooser: random.Random) -> Any:
    """The tree with a part of another in the place of one of its own."""
    if not isinstance(tree, dict | list) or not tree or chooser.random() < 0.1:
        return chooser.choice(
            (other, None, [], {}, -1, 2**70, 1.5e308, "$a.b", "$$x", {"$add": [tree, other]}, [[other]] * 5)
        )
    if isinstance(tree, dict):
        name = chooser.choice(list(tree))
        inner = other[chooser.choice(list(other))] if isinstance(other, dict) and other else other
        changed = {**tree, name: _swapped(tree[name], inner, chooser)}
        return changed if chooser.random() < 0.9 else {("$" + k).replace("$$", "$"): v for k, v in changed.items()}
    at = chooser.randrange(len(tree))
    inner = chooser.choice(other) if isinstance(other, list) and other else other
    return [*tree[:at], _swapped(tree[at], inner, chooser), *tree[at + chooser.randrange(2) :]]


def a_tree(chooser: random.Random) -> Any:
    """A document with parts of another in it."""
    tree, other = chooser.choice(_trees()), chooser.choice(_trees())
    for _ in range(chooser.choice((1, 2, 6))):
        tree = _swapped(tree, other, chooser)
    return tree


def a_document(chooser: random.Random) -> None:
    """As text, damaged, and as a tree, parts of one document in another."""
    tree = a_tree(chooser)
    given = tree if chooser.random() < 0.7 else damaged(json.dumps(tree).encode(), chooser).decode(errors="replace")
    try:
        parse(given)
    except InvalidDocument:
        return


def a_recorded(chooser: random.Random) -> None:
    """Messages, frames, rows of the store, snapshots, staged output: all formats that one process writes for another."""
    fmt = chooser.choice(FORMATS)
    example = chooser.choice(recorded(fmt, chooser.choice(fmt.reads)))
    try:
        FORMS[fmt].decode(damaged(example.data, chooser))
    except (FormatError, WireError, TargetRefused):
        return


@cache
def _batch() -> bytes:
    columns = {"a": [1, None, 3], "b": ["x", "", None], "c": [[1], [], None], "d": [{"e": 1}, None, {"e": None}]}
    return encode_batch(pa.RecordBatch.from_pydict(columns))


def a_batch(chooser: random.Random) -> None:
    """Columns of a frame."""
    try:
        decode_batch(damaged(_batch(), chooser))
    except WireError:
        return


_RECORDS: Final = (
    b'{"a": 1, "b": "text", "c": [1, 2.5, {"d": null}], "t": {"$date": "2024-01-01T00:00:00Z"}, "n": {"$numberDecimal": "1.50"}}',
    b'{"a":{"b":{"c":[[[[1]]]]}},"s":"\\u00e4\\ud83d\\ude00","z":-1e-7,"y":true}',
)


def records(chooser: random.Random) -> None:
    """Records of a topic, with columns for declared fields and without."""
    schema = parse_schema({"a": "int", "b": "string", "t": "date", "n": "decimal"}, "schema", Problems({}))
    texts = [damaged(chooser.choice(_RECORDS), chooser) for _ in range(3)]
    documents_of(decode(pa.array(texts, pa.binary()), schema if chooser.random() < 0.5 else NO_SCHEMA).batch)


FAMILIES: Final[tuple[Callable[[random.Random], None], ...]] = (
    a_document, a_recorded, a_batch, records, *hostile_outside.FAMILIES
)  # fmt: skip


def run(first: int, count: int) -> list[str]:
    """What was found in so many inputs from a seed on, of all families in turn."""
    found = []
    for seed in range(first, first + count):
        family = FAMILIES[seed % len(FAMILIES)]
        began = time.process_time()
        try:
            family(random.Random(seed))
        except Exception as error:  # noqa: BLE001 - whatever its reader does not name is a finding
            found.append(f"seed {seed}, {family.__name__}: {type(error).__name__}: {str(error)[:200]}")
        if time.process_time() - began > SLOW_S:
            found.append(f"seed {seed}, {family.__name__}: took {time.process_time() - began:.0f} s")
    return found


def _apart(first: int, count: int, out: Any) -> None:
    out.send(run(first, count))


def main(count: int, seed: int) -> int:
    """How many findings; each is printed."""
    quiet(logging.CRITICAL)
    made = multiprocessing.get_context("fork")
    findings = 0
    for first in range(seed, seed + count, EACH):
        ours, theirs = made.Pipe()
        child = made.Process(target=_apart, args=(first, min(EACH, seed + count - first), theirs))
        child.start()
        theirs.close()
        try:
            found = ours.recv()
        except EOFError:
            child.join()
            found = [f"seeds {first} to {first + EACH - 1}: the process ended with {child.exitcode}"]
        child.join()
        for line in found:
            sys.stdout.write(line + "\n")
        findings += len(found)
    sys.stdout.write(f"{count} inputs from seed {seed}: {findings} findings\n")
    return findings


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
