"""A `$lookup`'s way out of its task: one question a batch, answers kept where the stage says so, outages waited out.

The answers may differ from one day to the next. It need not be the same at a replay: rows that were enriched leave this task in
frames behind which the epoch's barrier stands, and nothing outside sees them before that epoch is committed. A replay asks again only for
rows of which nothing was committed, so no effect ever has two answers.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
import structlog

from tidemark.services.operator.body import Way, at_once
from tidemark.shared.language.stages import CachedLookup, Lookup
from tidemark.shared.language.stages.looking_up import Asking, Looker, Question, Wanted
from tidemark.shared.language.values import encode_doc
from tidemark.shared.model.values import Document, Found
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.lookup import LookupRows, candidates, sorted_out
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.tables import Table, TableRefused, TableUnavailable
from tidemark.shared.runtime.settings import LookupSettings
from tidemark.shared.runtime.waiting import Tell, unheard, waiting

_log = structlog.get_logger()


@dataclass(slots=True)
class _Cache:
    """Answers by key, the one used longest ago first."""

    ttl_ms: int
    max_entries: int
    rows_max: int
    """Of all answers together."""
    bytes_max: int | None = None
    """Of all answers together, encoded; None: `rows_max` is the only bound."""
    _answers: OrderedDict[bytes, tuple[int, Sequence[Found], int]] = field(default_factory=OrderedDict)
    _rows: int = 0
    _bytes: int = 0

    def get(self, key: bytes, now_ms: int) -> Sequence[Found] | None:
        """An answer that is not too old; None for none."""
        known = self._answers.get(key)
        if known is None or known[0] <= now_ms:
            return None
        self._answers.move_to_end(key)
        return known[1]

    def put(self, key: bytes, found: Sequence[Found], now_ms: int) -> None:
        """Keep an answer, also that there is nothing; the one used longest ago gives way."""
        if key in self._answers:
            self._forget(self._answers.pop(key))
        size = 0 if self.bytes_max is None else len(key) + sum(len(encode_doc(one.document)) for one in found)
        self._answers[key] = (now_ms + self.ttl_ms, found, size)
        self._rows += len(found)
        self._bytes += size
        while len(self._answers) > self.max_entries or self._rows > self.rows_max or self._is_large():
            self._forget(self._answers.popitem(last=False)[1])

    def _forget(self, answer: tuple[int, Sequence[Found], int]) -> None:
        self._rows -= len(answer[1])
        self._bytes -= answer[2]

    def _is_large(self) -> bool:
        return self.bytes_max is not None and self._bytes > self.bytes_max

    def __len__(self) -> int:
        return len(self._answers)


class Lookups:
    """One stage in one task, and the lookups nested in it."""

    def __init__(
        self,
        stage: Lookup,
        tables: Callable[[Lookup], Table],
        clock: Clock,
        settings: LookupSettings,
        context: TaskContext,
        tell: Tell = unheard,
    ) -> None:
        """tell: takes what a table is waited for."""
        self._rows = LookupRows(stage, context)
        self._counts = {"lookups": 0, "questions": 0, "cached": 0}
        self._asked = {
            looker.stage.path: _CachedTable(looker, tables(looker.stage), clock, settings, self._counts, tell)
            for looker in self._rows.looker.all()
        }
        self._own = self._asked[stage.path]

    async def enrich(self, batch: pa.RecordBatch, way: Way = at_once) -> Sequence[Out]:
        """The rows with the table's rows for each. TableUnavailable when the table was away for too long; TableRefused."""
        looking = await way(self._rows.begin, batch)
        self._counts["lookups"] += looking.count
        task = self._rows.finish(looking, await self._own.answers(looking.wanted))
        outs: Sequence[Out]
        questions, outs = await way(_gone_on, task, None)
        while questions is not None:
            questions, outs = await way(_gone_on, task, await self._answers(questions))
        return outs

    async def _answers(self, questions: Sequence[Question]) -> list[Sequence[Document]]:
        """The rows that each nested question finds: those to one table are one question."""
        wanted: dict[str, dict[bytes, Wanted]] = {}
        for question in questions:
            wanted.setdefault(question.looker.stage.path, {}).update(question.wanted)
        found = {path: await self._asked[path].answers(each) for path, each in wanted.items()}
        self._counts["lookups"] += len(questions)
        return [candidates(question.wanted, found[question.looker.stage.path]) for question in questions]

    def counters(self) -> Mapping[str, int]:
        """Rows and nested documents, questions to tables, answers from caches, rows that failed."""
        return {**self._counts, "lookupsFailed": self._rows.failed}

    async def close(self) -> None:
        """Let go of the tables."""
        for asked in self._asked.values():
            await asked.close()


def _gone_on(
    task: Asking[list[Out]], found: list[Sequence[Document]] | None
) -> tuple[Sequence[Question] | None, Sequence[Out]]:
    """What a task asks next, or what comes out at its end."""
    try:
        return task.send(found), ()  # type: ignore[arg-type]
    except StopIteration as done:
        return None, done.value


class _CachedTable:
    """A lookup's table, and the answers that are kept."""

    def __init__(
        self,
        looker: Looker,
        table: Table,
        clock: Clock,
        settings: LookupSettings,
        counts: dict[str, int],
        tell: Tell,
    ) -> None:
        self._tell = tell
        self._stage = looker.stage
        self._narrowing = looker.narrowing
        self._table = table
        self._clock = clock
        self._settings = settings
        self._counts = counts
        self._cache: _Cache | None = None
        if isinstance(looker.stage, CachedLookup):
            kept = looker.stage
            self._cache = _Cache(kept.ttl_ms, kept.max_entries, settings.kept_rows_max, kept.bytes_max)

    async def answers(self, wanted: Mapping[bytes, Wanted]) -> dict[bytes, Sequence[Found]]:
        """The rows for each key, from the cache or from the table."""
        now_ms = self._clock.monotonic_ms()
        buckets: dict[bytes, Sequence[Found]] = {}
        for key in wanted if self._cache is not None else ():
            known = self._cache.get(key, now_ms) if self._cache is not None else None
            if known is not None:
                buckets[key] = known
        self._counts["cached"] += len(buckets)
        missing = {key: each for key, each in wanted.items() if key not in buckets}
        for key, found in (await self._ask(missing)).items():
            buckets[key] = found
            if self._cache is not None:
                self._cache.put(key, found, now_ms)
        return buckets

    async def _ask(self, wanted: Mapping[bytes, Wanted]) -> dict[bytes, Sequence[Found]]:
        """The table's rows, asked for a bounded number of keys at a time."""
        found: dict[bytes, Sequence[Found]] = {}
        left, rows = iter(wanted.items()), 0
        while some := dict(islice(left, self._settings.keys_max)):
            self._counts["questions"] += 1
            with waiting(self._tell, self._clock, f"asking {self._stage.path}", "asking", self._stage.path) as away:
                answer = await self._patiently(list(some.values()), away)
            rows += len(answer)
            if rows > self._settings.found_rows_max:
                raise TableRefused(
                    f"{self._stage.path}: the rows of one batch find more than {self._settings.found_rows_max} rows, which is"
                    " lookup.found_rows_max; narrow the lookup, or raise it in TIDEMARK_RUNTIME"
                )
            found.update(sorted_out(self._narrowing, answer, some))
        return found

    async def _patiently(self, wanted: list[Wanted], away: Callable[[object], None]) -> Sequence[Found]:
        """C10: an outage is waited out, for a while. away: told why a try fails."""
        began_ms, wait_ms = self._clock.monotonic_ms(), self._settings.retry_ms
        while True:
            try:
                return await self._table.find(self._narrowing.columns, wanted)
            except TableUnavailable as error:
                away_ms = self._clock.monotonic_ms() - began_ms
                if away_ms + wait_ms > self._settings.wait_ms_max:
                    message = (
                        f"{self._stage.path}: the table was away for {away_ms} ms, and lookup.wait_ms_max is "
                        f"{self._settings.wait_ms_max}; see whether it can be reached from here: {error}"
                    )
                    raise TableUnavailable(message) from error
                _log.warning("lookup.table_away", stage=self._stage.path, reason=str(error), away_ms=away_ms)
                away(f"{self._stage.path}: {error}")
                await self._clock.sleep_ms(wait_ms)
                wait_ms = min(2 * wait_ms, self._settings.retry_ms_max)

    async def close(self) -> None:
        """Let go of the table."""
        await self._table.close()
