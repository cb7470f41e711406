"""Dead letters of a document that names no queue: counted, and told in the log, so that nothing goes without a trace.

The first one is told, the second, the fourth and so on: who looks sees what it is about and how many there are, and the log stays small.
"""

import structlog

from tidemark.shared.model.ids import JobId
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.runtime.body import Given

_log = structlog.get_logger()


class Unkept:
    """Of one task."""

    def __init__(self, job: JobId) -> None:
        self._job = job
        self._count = 0
        self._tell_at = 1

    def note(self, out: Given) -> None:
        """Count the letters; tell of the first of them where it is time to."""
        rows = out.batch.num_rows if isinstance(out, Out) else out.segment.rows
        self._count += rows
        if not rows or self._count < self._tell_at:
            return
        while self._tell_at <= self._count:
            self._tell_at *= 2
        told = documents_of(out.batch.slice(0, 1))[0] if isinstance(out, Out) else {}
        source = told.get("_stream_meta", {}).get("source", {})
        _log.warning(
            "dead_letter.not_kept",
            job=self._job,
            so_far=self._count,
            stage=told.get("operatorName"),
            reason=told.get("errInfo", {}).get("reason"),
            source={
                name: value if isinstance(value, str) else int(value) for name, value in source.items() if name != "key"
            },
            remedy="options.dlq names a place where they are kept",
        )
