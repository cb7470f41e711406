"""A pipeline tried out on rows of the caller's, in this process."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidemark.services.cli.process import keep_quiet, runner
from tidemark.services.library.apart import Trial, tried_apart
from tidemark.services.library.documents import AnyDocument, text_of, to_python
from tidemark.services.library.rows import NoRow, documents_of
from tidemark.services.library.terms import own_terms
from tidemark.shared.computation.folder import look_here
from tidemark.shared.language.documents.load import load
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.values import Document
from tidemark.shared.planning import Engine

if TYPE_CHECKING:
    import pandas as pd

    from tidemark.services.library.rows import Rows

_NAME: Final = ProcessorName("try-out")
_SINKS: Final = ("$emit", "$merge")
_WINDOWS: Final = ("$tumblingWindow", "$hoppingWindow", "$sessionWindow", "$join")
"""Stages that judge what is late."""
_OF_TIME: Final = (
    "timeField",
    "schema",
    "recordId",
    "recordIdHorizon",
    "recordIdScope",
    "watermark",
    "partitionIdleTimeout",
    "maxEventTimeJump",
)
"""Options of `$source` that count for the caller's rows, too. The others say where and how it reads."""


class TryOutFailed(Exception):
    """The pipeline is no document, cannot be tried out, or has failed: the reason."""


@dataclass(frozen=True, slots=True)
class TryOutResult:
    """The output, in the order of its release."""

    documents: list[dict[str, Any]]
    """Dates are `datetime` in UTC."""
    dead_letters: list[dict[str, Any]] = field(default_factory=list)

    def to_arrow(self) -> pa.Table:
        """A row a document, a column a field; null where a document has none. pyarrow.ArrowInvalid names a field that fits no one type."""
        columns = {}
        for name in dict.fromkeys(name for document in self.documents for name in document):
            try:
                columns[name] = pa.array([document.get(name) for document in self.documents])
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise pa.ArrowInvalid(f"field {name!r} fits no one type of Arrow's: {error}") from error
        return pa.table(columns)

    def to_pandas(self) -> "pd.DataFrame":
        """As `to_arrow`, for pandas; also with fields of several types."""
        import pandas as pd  # noqa: PLC0415 - takes a while to load

        return pd.DataFrame(self.documents)


def try_out(
    document: AnyDocument,
    rows: "Rows | None" = None,
    *,
    engine: Engine = "local",
    limit: int | None = None,
) -> TryOutResult:
    """Run it until its input ends, in memory and on virtual time, by the operators that real tasks run.

    rows: mappings, a data frame or an Arrow table, read in place of the input of the document's `$source`, whose event time, schema and
    watermark stay; its sink is left out. An empty cell of a table is a missing field. None: the document reads for itself. engine: `spark`
    takes windows through a Spark session of its own, in a process of its own. limit: stop once so many have come out.

    Raises:
        TryOutFailed: says where and why.
        TypeError: no rows, or a value that has no type of the language, with its place.
    """
    with own_terms():
        text, given = (text_of(document), None) if rows is None else with_rows(text_of(document), rows)
    if engine == "spark":
        outcome = tried_apart(Trial(text, _NAME, limit, given))
    else:
        look_here()
        keep_quiet()
        with runner(engine) as running, ThreadPoolExecutor(1) as beside:
            # In a thread: a caller may have a loop of its own, as notebooks do.
            outcome, _ = beside.submit(own_terms()(running.run), text, _NAME, limit, given).result()
    if outcome.error is not None:
        raise TryOutFailed(outcome.error)
    return TryOutResult(to_python(outcome.output), to_python(outcome.letters))


def with_rows(text: str, rows: "Rows") -> tuple[str, list[Document]]:
    """The document without its sink and without its source's place; the rows, which go beside it: a document is bounded. TryOutFailed."""
    try:
        document, _ = load(text)
    except Exception as error:
        raise TryOutFailed(str(error)) from error
    found = document.get("pipeline") if isinstance(document, dict) else None
    stages = list(found) if isinstance(found, list) else []
    if not isinstance(found, list) or not all(isinstance(stage, dict) and stage for stage in stages):
        raise TryOutFailed("pipeline: expected a list of stages, such as [{$match: {…}}]")
    if stages and next(iter(stages[-1])) in _SINKS:
        stages.pop()
    source: dict[str, Any] = {}
    if stages and "$source" in stages[0]:
        stated = dict(stages.pop(0)["$source"])
        # Of a history and a stream, rows are the stream's: both have the same event time, and no switch divides what was given by hand.
        part = stated["then"] if isinstance(stated.get("then"), dict) else stated
        source = {name: value for name, value in part.items() if name in _OF_TIME}
    source["documents"] = []
    kept = {name: value for name, value in document.items() if name in ("name", "connections", "options")}
    options = {name: value for name, value in dict(kept.get("options") or {}).items() if name != "dlq"}
    first = next((name for stage in stages for name in stage if name in _WINDOWS), None)
    if first != "$sessionWindow":
        # All rows are one split. Judged by its watermark, they may come many at a time, and are late as they are one by one. Of sessions
        # that judges otherwise, where they take rows of the source.
        options = {"lateness": "split", **options}
    try:
        given = documents_of(rows)
    except NoRow as error:
        raise TryOutFailed(str(error)) from None
    return json.dumps({**kept, "options": options, "pipeline": [{"$source": source}, *stages]}), given
