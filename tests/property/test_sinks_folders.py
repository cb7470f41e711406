"""Rows of files are divided a column at a time, as each would be alone."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.sinks_targets import expression
from tests.property.language_strategies import SCALARS
from tidemark.services.sink.connectors.filerows import NULL_FOLDER, Encoding, RowBuffer
from tidemark.shared.language.csv_cells import text_of
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.paths import read_path
from tidemark.shared.language.values import encode_value, render_json
from tidemark.shared.model.values import MISSING, Document
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import documents_of

FOLDERS: list[Any] = [None, "$f", {"$concat": ["a/", "$f"]}, {"$toString": {"$divide": [1, "$n"]}}]
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "f": st.sampled_from(["x", "y/z", "", ".hidden", "_own", "a b", "é", "a//b", "x" * 300, 5, None]),
    "n": st.sampled_from([0, 1, 2, None, "1"]),
    "p": st.sampled_from(["u", "", "v w", 0.5, 7, None, True, "u" * 300, [1], {"q": "r"}]) | SCALARS,
    "o": st.fixed_dictionaries({}, optional={"q": st.sampled_from(["k", 1, None])}) | st.just([{"q": 1}]),
}


@st.composite
def rows(draw: st.DrawFn) -> list[Document]:
    """Documents of which some lack fields."""
    return draw(st.lists(st.fixed_dictionaries({}, optional=CELLS), min_size=1, max_size=9))


def _as_hive(text: str) -> str:
    """As Spark writes a partition's value."""
    return "".join(f"%{ord(each):02X}" if each < " " or each in "\x7f\"#%'*/:=?\\{[]^" else each for each in text)


def alone(document: Document, folder: Any, fields: tuple[str, ...]) -> str | None:
    """The folder of one row; None if it is refused."""
    found: list[str] = []
    if folder is not None:
        try:
            value = evaluate(expression(folder), Environment(document))
        except ExpressionError:
            return None
        names = value.strip("/").split("/") if isinstance(value, str) else [""]
        encoded = [_as_hive(name).replace("%3D", "=") for name in names]
        if not all(names) or any(name[0] in "._" for name in names) or max(len(n.encode()) for n in encoded) > 240:
            return None
        found += encoded
    for field in fields:
        value = read_path(document, tuple(field.split(".")))
        if isinstance(value, list | dict):
            return None
        text = "" if value is None or value is MISSING else text_of(value)
        name = f"{field}={_as_hive(text) if text else NULL_FOLDER}"
        if len(name.encode()) > 240:
            return None
        found.append(name)
    return "/".join(found)


@settings(max_examples=300, deadline=None)
@given(
    documents=rows(),
    form=st.sampled_from([RAW, REST]),
    folder=st.sampled_from(FOLDERS),
    fields=st.lists(st.sampled_from(["p", "o.q", "f", "none"]), max_size=3, unique=True).map(tuple),
)
def test_rows_go_to_the_folders_that_each_names(
    documents: list[Document], form: str, folder: Any, fields: tuple[str, ...]
) -> None:
    """In order, each once, whatever types stand beside each other; what names no folder is refused."""
    texts = [render_json(each) if form == RAW else encode_value(each) for each in documents]
    batch = pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], names=[form])
    buffer = RowBuffer(Encoding("json", fields, folder=None if folder is None else expression(folder)))
    refused = [each.row for each in buffer.add(batch)]
    wanted: dict[str, list[Any]] = {}
    gone: list[int] = []
    for row, document in enumerate(documents_of(batch)):
        place = alone(document, folder, fields)
        if place is None:
            gone.append(row)
        else:
            wanted.setdefault(place, []).append(json.loads(render_json(document)))
    found: dict[str, list[Any]] = {}
    for file in buffer.files():  # null and an empty text are two partitions of one folder
        found.setdefault(file.folder, []).extend(json.loads(line) for line in file.data.splitlines())
    mixed = NULL_FOLDER in "".join(wanted)
    assert refused == gone
    assert found.keys() == wanted.keys()
    for name, documents_there in wanted.items():
        lines = [json.dumps(each, sort_keys=True) for each in documents_there]
        others = [json.dumps(each, sort_keys=True) for each in found[name]]
        assert (sorted(others) if mixed else others) == (sorted(lines) if mixed else lines)
    assert buffer.rows == len(documents) - len(gone)


@pytest.mark.parametrize("form", [RAW, REST])
def test_each_different_value_is_looked_at_once(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders cost a column, not a document a row."""
    documents: list[Document] = [{"f": f"d{n % 2}", "p": n % 3} for n in range(60)]
    texts = [render_json(each) if form == RAW else encode_value(each) for each in documents]
    batch = pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], names=[form])
    looked: list[Any] = []

    def noted(value: Any) -> str:
        looked.append(value)
        return text_of(value)

    monkeypatch.setattr("tidemark.services.sink.connectors.filerows.text_of", noted)
    monkeypatch.setattr("tidemark.shared.operators.rendered.documents_of", lambda _: pytest.fail("looked at"))
    buffer = RowBuffer(Encoding("json", ("p",), folder=expression("$f")))
    assert not buffer.add(batch)
    assert sorted(looked) == [0, 1, 2]
    assert len(buffer.files()) == 6
