"""Documents of many fields, in each other and one behind the other: as the interpreter has them, whatever their number and names."""

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_drawn_pipelines import SOURCE, interpreted, on_columns
from tidemark.shared.compiled import documents, rendering, values
from tidemark.shared.compiled.name_tables import name_table
from tidemark.shared.language.documents import parse
from tidemark.shared.language.kernels import calls
from tidemark.shared.language.schema import NO_SCHEMA
from tidemark.shared.language.values import encode_docs, encode_value, parse_json, render_json
from tidemark.shared.operators.base import RAW
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.operators.rendered import rendered

SEEDS = st.integers(0, 2**64)
COUNTS = (0, 1, 7, 8, 9, 23, 24, 25, 26, 40, 130, 600)


class Wide:
    """Names and objects that a seed draws."""

    def __init__(self, chooser: random.Random) -> None:
        self.chooser = chooser
        self.names = [self._name(number) for number in range(700)]

    def _name(self, number: int) -> str:
        form = self.chooser.choice(
            ("f{}", "signal_of_a_sensor_{:04d}", "{}", "é{}", "{:08d}", "{:016d}x", '"{}\\', "{}" * 7)
        )
        return form.format(*[number] * 7)

    def object(self, depth: int = 0) -> dict[str, Any]:
        """Fields in an order of their own; some are large objects, or arrays of such."""
        count = self.chooser.choice(COUNTS[: 9 if depth else None])
        found: dict[str, Any] = {}
        for name in self.chooser.sample(self.names, count):
            found[name] = self.chooser.choice((1, "x", None, 2.5, [1, 2]))
            if depth < 2 and self.chooser.random() < 0.02:
                found[name] = self.object(depth + 1)
            elif depth < 2 and self.chooser.random() < 0.01:
                found[name] = [self.object(depth + 1) for _ in range(3)]
        return found

    def record(self) -> dict[str, Any]:
        return {"n": self.chooser.randint(0, 9), "o": self.object(1), "p": self.object(1), **self.object()}

    def text(self) -> bytes:
        """At times with a name that stands twice somewhere, which the last value wins."""
        text = json.dumps(self.record(), ensure_ascii=self.chooser.random() < 0.3)
        if self.chooser.random() < 0.3:
            again = json.dumps(self.chooser.choice(self.names[:40]))
            place = self.chooser.choice([i for i, each in enumerate(text) if each == "{"])
            text = (
                f"{text[: place + 1]}{again}: 7, {again}: 8{', ' if text[place + 1] != '}' else ''}{text[place + 1 :]}"
            )
        return text.encode()

    def some(self) -> list[str]:
        plain = [
            name for name in self.names if not name.startswith(("$", '"')) and "." not in name and not name.isdigit()
        ]
        return self.chooser.sample(plain, min(len(plain), self.chooser.choice(COUNTS[1:])))

    def stage(self) -> dict[str, Any]:
        names = self.some()
        return self.chooser.choice((
            {"$project": dict.fromkeys(names, 1)},
            {"$project": dict.fromkeys(names, 0)},
            {"$project": {"o": dict.fromkeys(names, 1), "n": 1}},
            {"$project": {"o": dict.fromkeys(names, 0)}},
            {"$unset": names},
            {"$set": dict.fromkeys(names, "$n")},
            {"$set": {"o": dict.fromkeys(names, "$n")}},
            {"$set": {"r": [f"${name}" for name in names]}},
            {"$set": {"r": [f"$o.{name}" for name in names]}},
            {"$set": {"r": {"$mergeObjects": ["$o", "$p", dict.fromkeys(names[:5], 1)]}}},
            {"$replaceWith": {"$mergeObjects": ["$p", "$$ROOT"]}},
            {"$set": {"r": {"$arrayToObject": {"$concatArrays": [{"$objectToArray": "$o"}, {"$objectToArray": "$p"}]}}}},
            {"$set": {"r": {"$setField": {"field": names[0], "input": "$o", "value": "$n"}}}},
        ))  # fmt: skip


@given(SEEDS)
@settings(max_examples=120)
def test_stages_give_on_columns_what_they_give_of_each_wide_record(seed: int) -> None:
    """Reading, keeping, leaving out, setting, merging and putting together."""
    chooser = random.Random(seed)
    wide = Wide(chooser)
    chain: Any = parse({"pipeline": [SOURCE, *(wide.stage() for _ in range(chooser.choice((1, 1, 2))))]}).pipeline[1:]
    texts = [wide.text() for _ in range(chooser.choice((1, 4)))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calls, "FEW_ROWS", 0)
        found, _ = on_columns(chooser, chain, texts, NO_SCHEMA)
    assert found.comparable() == interpreted(chain, texts, NO_SCHEMA).comparable()


@given(SEEDS)
@settings(max_examples=120)
def test_wide_documents_are_written_as_the_interpreter_writes_them(seed: int) -> None:
    """As JSON and in the codec; names that stand twice are found at whatever distance."""
    wide = Wide(random.Random(seed))
    texts = [wide.text() for _ in range(4)]
    batch = pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], names=[RAW])
    found: Any = [parse_json(text) for text in texts]
    assert rendered(batch).to_pylist() == [render_json(document) for document in found]
    assert encoded(batch).to_pylist() == encode_docs(found)


@given(SEEDS)
@settings(max_examples=60)
def test_paths_are_found_among_others(seed: int) -> None:
    """Each path alone reads what it reads among all."""
    wide = Wide(random.Random(seed))
    texts = pa.array([json.dumps(wide.record()).encode() for _ in range(3)], pa.binary())
    paths = [(name,) for name in wide.some()] + [("o", name) for name in wide.some()]
    found = documents.read(texts, paths).columns
    for path in wide.chooser.sample(paths, min(len(paths), 12)):
        alone = documents.read(texts, [path]).columns[path]
        assert [found[path].piece(row) for row in range(3)] == [alone.piece(row) for row in range(3)]


def test_a_document_of_large_objects_of_other_names_each_is_written() -> None:
    """Their names fill the slots; beyond them the interpreter writes, and nothing is taken for a name that stands twice."""
    found: Any = [{"a": [{f"f{i}_{j}": j for j in range(40)} for i in range(count)]} for count in (1, 50, 150, 400)]
    texts = [json.dumps(each).encode() for each in found]
    batch = pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], names=[RAW])
    assert rendered(batch).to_pylist() == [render_json(each) for each in found]


@pytest.mark.parametrize("count", [24, 25, 26, 1_000, 40_000])
def test_compiled_code_alone_writes_a_document_of_so_many_names(count: int) -> None:
    """And knows of each whether it stands twice."""
    for twice in (None, 0, count // 2, count - 1):
        text = {f"signal_{i:04d}": i for i in range(count)}
        made = json.dumps(text, separators=(",", ":")).encode()
        whole = made if twice is None else made[:-1] + b',"signal_%04d":0}' % twice
        out, sure = np.empty(len(whole) + 64, np.uint8), np.ones(1, np.bool_)
        size = rendering.render(
            rendering.RELAXED, np.frombuffer(whole, np.uint8), np.array([0, len(whole)]), False, *name_table(()),
            np.empty((0, 1), np.uint8), *np.empty((3, 0, 1), np.int64), np.empty(0, np.uint8), out, np.empty(2, np.int64), sure,
            *rendering.room_to_work(0, len(whole)),
        )  # fmt: skip
        assert sure[0] == (twice is None)
        assert out[:size].tobytes() == (made if twice is None else b"")


@pytest.mark.parametrize("count", [20, 26, 300])
def test_compiled_code_alone_writes_values_of_so_many_names(count: int) -> None:
    """Row after row, with the same names or with others."""
    texts = [json.dumps({"o": {f"signal_{i * row}_{i}": i for i in range(count)}}).encode() for row in (1, 1, 2, 3)]
    cells = documents.read(pa.array(texts, pa.binary()), [("o",)]).columns["o",]
    made, sure = values.write(cells)
    assert sure.all()
    assert made.to_pylist() == [encode_value(parse_json(text)["o"]) for text in texts]
