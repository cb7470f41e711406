"""`tidemark process`: pipelines tried out in this process (in_memory.py): one document, or many cases with one result line each."""

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

import structlog

from tidemark.services.cli.in_memory import Outcome, TryOut, try_out
from tidemark.services.cli.reading import NoDocument, read_document
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.computation.folder import look_here
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.values import render_json, to_json
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.values import Document
from tidemark.shared.planning import Engine, PlanError, plan_processor
from tidemark.shared.process.logged import Lines, Repeats, for_people, is_terminal
from tidemark.shared.runtime.context import Service

if TYPE_CHECKING:
    from tidemark.services.spark.service import KeptSession  # pyspark is loaded when it is asked for

_USAGE = 2
_NAMELESS = ProcessorName("process")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


class ProcessError(Exception):
    """The pipeline cannot be tried out, or has failed: the message is for the user."""


@dataclass(slots=True)
class Runner:
    """Runs documents one after the other; with Spark all on one session."""

    engine: Engine
    session: "KeptSession | None" = None
    _groups: int = 0

    def run(
        self, text: str, name: ProcessorName, limit: int | None = None, rows: Sequence[Document] | None = None
    ) -> tuple[Outcome, int]:
        """The outcome, and how many jobs Spark has run for it. rows: in place of the documents of the first source."""
        try:
            processor = parse(text)
            plan_processor(processor, engine=self.engine, collects=True)
        except (InvalidDocument, PlanError) as error:
            return Outcome([], [], str(error)), 0
        name = processor.name or name
        if self.session is None:
            return try_out(TryOut(processor, text, name, self.engine, limit, rows=rows)), 0
        self._groups += 1
        group = f"process-{self._groups}"
        self.session.begin_group(group)
        what = TryOut(processor, text, name, self.engine, limit, self._service(self.session), rows)
        return try_out(what), self.session.jobs_of(group)

    @staticmethod
    def _service(session: "KeptSession") -> Callable[[], Service]:
        from tidemark.services.spark.service import SparkService

        return lambda: SparkService(session, keeps=True)


@contextmanager
def runner(engine: Engine) -> Iterator[Runner]:
    """A runner; its session ends with it."""
    if engine == "local":
        yield Runner(engine)
        return
    from tidemark.services.spark.service import KeptSession

    session = KeptSession("local[2]")
    try:
        yield Runner(engine, session)
    finally:
        session.stop()


def quiet(level: int = logging.CRITICAL) -> None:
    """Services log to standard error, from this level on. This keeps results and errors apart from the log."""
    structlog.configure(
        processors=[
            Repeats(SystemClock()),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.processors.format_exc_info,
            for_people(colors=is_terminal(sys.stderr)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", Lines())),
    )


def process(
    file: Path | None,
    engine: Engine,
    *,
    limit: int | None,
    dlq: Path | None,
    cases: Path | None,
    out: Path | None,
    verbose: bool,
) -> int:
    """The command; the exit status. 2 where its options contradict each other."""
    quiet(logging.INFO if verbose else logging.CRITICAL)
    look_here()
    try:
        if cases is not None and out is not None and file is None:
            count = process_cases(cases, out, engine)
            sys.stderr.write(f"{count} results in {out}\n")
        elif file is not None and cases is None and out is None:
            process_file(file, engine, limit, dlq)
        else:
            sys.stderr.write(
                "expected either FILE, the processor's document, or --cases (many of them, a line each) together with --out; "
                "`tidemark process --help` shows them\n"
            )
            return _USAGE
    except (ProcessError, NoDocument) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except BrokenPipeError:
        raise  # The reader of the pipe has closed it: there is nobody to write an error to.
    except OSError as error:
        sys.stderr.write(f"{error.filename}: {error.strerror}\n" if error.filename else f"{error}\n")
        return 1
    return 0


def process_file(file: Path, engine: Engine, limit: int | None, dlq: Path | None) -> None:
    """Output to standard output, dead letters to standard error or a file, a line each. ProcessError."""
    text = read_document(file)
    name = ProcessorName(_NOT_IN_NAMES.sub("-", file.stem))
    if dlq is not None:
        dlq.write_text("")  # a path that cannot be written is an error before the try-out, not after it
    with runner(engine) as running:
        outcome, _ = running.run(text, name, limit)
    _write(sys.stdout, outcome.output)
    if dlq is None:
        _write(sys.stderr, outcome.letters)
    else:
        with dlq.open("w") as out:
            _write(out, outcome.letters)
    if outcome.error is not None:
        raise ProcessError(outcome.error)


def try_on(text: str, rows: Sequence[Document], others: int) -> int:
    """The document over rows in place of its source's records, its sinks left out; the exit status."""
    from tidemark.services.library.trying import TryOutFailed, with_rows

    quiet()
    look_here()
    try:
        with runner("local") as running:
            tried, given = with_rows(text, rows)
            outcome, _ = running.run(tried, _NAMELESS, rows=given)
    except TryOutFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    _write(sys.stdout, outcome.output)
    _write(sys.stderr, outcome.letters)
    unread = f", {others} were no documents" if others else ""
    sys.stderr.write(f"{len(rows)} records{unread}; {len(outcome.output)} out, {len(outcome.letters)} dead letters\n")
    if outcome.error is not None:
        sys.stderr.write(f"{outcome.error}\n")
    return int(outcome.error is not None)


def _write(out: IO[str], documents: list[Document]) -> None:
    for document in documents:
        out.write(render_json(document, canonical=False).decode() + "\n")


def process_cases(cases: Path, out: Path, engine: Engine) -> int:
    """A result line for each case, in their order; how many there were. ProcessError for a line that is no case."""
    count = 0
    with cases.open() as lines, out.open("w") as results, runner(engine) as running:
        for number, line in enumerate(lines, 1):
            if line.strip():
                result = _isolated(running, _case(line, f"{cases} line {number}"))
                results.write(json.dumps(result) + "\n")  # ASCII: some readers of lines end one at U+2028
                results.flush()
                count += 1
    return count


def _isolated(running: Runner, case: dict[str, Any]) -> dict[str, Any]:
    """The case's result. An error of the machinery itself becomes this case's error, so that the other cases go on."""
    try:
        return run_case(running, case)
    except Exception as error:  # noqa: BLE001 - handed on, in the case's line
        failed = f"{type(error).__name__}: {error}"
        return {"id": case["id"], "output": [], "dlq": [], "error": failed, "engine": running.engine, "spark_jobs": 0}


def _case(line: str, place: str) -> dict[str, Any]:
    try:
        case = json.loads(line)
    except json.JSONDecodeError as error:
        raise ProcessError(f"{place}: expected a JSON object with id and pipeline, found no JSON: {error}") from error
    if not isinstance(case, dict) or "id" not in case or "pipeline" not in case:
        raise ProcessError(f"{place}: expected a JSON object with id and pipeline")
    return case


def run_case(running: Runner, case: dict[str, Any]) -> dict[str, Any]:
    """One case's result: its documents as relaxed extended JSON, its error or null, the engine, Spark's jobs."""
    fields = ("name", "connections", "pipeline", "options")
    text = json.dumps({field: case[field] for field in fields if field in case})
    outcome, jobs = running.run(text, _NAMELESS)
    return {
        "id": case["id"],
        "output": [to_json(document, canonical=False) for document in outcome.output],
        "dlq": [to_json(document, canonical=False) for document in outcome.letters],
        "error": outcome.error,
        "engine": running.engine,
        "spark_jobs": jobs,
    }


def keep_quiet() -> None:
    """Log only warnings, on standard error. A program that has configured structlog decides itself."""
    if not structlog.is_configured():
        quiet(logging.WARNING)
