"""What a job has written, beside what the same operators give in one process."""

import asyncio
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, Final

import tidemark
from tests.harness.drawn_jobs.job import HEADER_BYTES, ROW, Job, message_reader, say
from tidemark.services.audit.check import Audited, audit_local
from tidemark.services.audit.history import AuditFailed, NotAuditable
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation
from tidemark.services.library.documents import to_python
from tidemark.shared.language.avro import parse_schema, reader_of
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import ProcessorName

_DIGITS: Final = 9
"""Sums of doubles depend on the order of their parts in the last digits."""


async def compared(there: Installation, folder: Path, job: Job) -> list[str]:
    letters = await topic_of(there, f"{job.name}-dlq")
    alone = await asyncio.to_thread(_alone, job)
    if job.target == "topic":
        rows, wanted = await topic_of(there, f"{job.name}-out"), alone.documents
    elif job.target == "https":
        rows = [to_python(parse_json(body)) for body in job.places.told.told(job.name)]
        wanted = alone.documents
    elif job.target in ("avro", "jsonSchema", "protobuf"):
        rows, wanted = await _registered(there, job), alone.documents
    else:
        rows, wanted = await asyncio.to_thread(job.found), job.wanted(alone.documents)
    by_name = job.origin != "topic" or job.target not in ("topic", "https")
    found = _differ("rows", _counted(rows, by_name), _counted(wanted, by_name))
    got, reasons = _reasons(letters), _reasons(alone.dead_letters)
    again = 0
    if job.repeats or job.origin == "history":
        # A record that cannot be decoded has no id and no event time: it is a dead letter as often as it is read.
        told = got.total()
        got = Counter(
            {reason: min(count, reasons[reason]) if reasons[reason] else count for reason, count in got.items()}
        )
        again = told - got.total()
    found += _differ("dead letters", got, reasons)
    others = len(job.others) * (json.dumps(job.pipeline).count('"$source"') - 1)
    if job.origin != "history":
        again = len(job.repeats)
    found += await audited(folder, job, len(job.values) + again + others)
    came = f"{len(job.values)} records of {job.origin}, {len(rows)} rows into {job.target}, {len(letters)} dead letters"
    found += [wrong for wrong in job.places.told.wrong if wrong.startswith(f"{job.name}:")]
    more = [job.asks and f"asks {job.asks}", job.bounds and f"bounds {json.dumps(job.bounds)}", " ".join(job.forms)]
    say(
        f"{job.name}: {came} {' '.join(map(str, filter(None, [*job.between, job.last and 'kill behind the drain', *more])))}"
    )
    return found


async def audited(folder: Path, job: Job, records: int | None) -> list[str]:
    """What an audit finds. records: how many it has to have read, copies and other streams' among them; None: any number."""
    try:
        found: Audited = await audit_local(ProcessorName(job.name), folder)
    except NotAuditable as error:
        say(f"{job.name}: not audited: {error}")
        return []
    except AuditFailed as error:
        return [f"audit: {error}"]
    return [] if records in (None, found.records) else [f"audit: {found.records} records for {records}"]


def _alone(job: Job) -> tidemark.TryOutResult:
    values = [to_python(parse_json(value)) for value in job.values]
    if job.origin == "changes":
        values = [{"fullDocument": {"doc": value}} for value in values]
    return tidemark.try_out(job.alone(), values)


def _reasons(letters: list[Any]) -> Counter[str]:
    return Counter(str(letter["errInfo"]["reason"]) for letter in letters)


def _differ(what: str, got: Counter[str], wanted: Counter[str]) -> list[str]:
    if got == wanted:
        return []
    more, less = _few(got - wanted), _few(wanted - got)
    return [f"{what}: {got.total()} for {wanted.total()}; more: {more}; missing: {less}"]


def _few(counter: Counter[str]) -> str:
    return "; ".join(f"{n} x {text[:300]}" for text, n in counter.most_common(3)) or "none"


def _plain(value: Any) -> Any:
    """Rounded, lists without their order."""
    if isinstance(value, float):
        return value if not math.isfinite(value) or value == 0 else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted((_plain(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True, default=str))
    return value


def _counted(rows: list[Any], by_name: bool) -> Counter[str]:
    """by_name: the source's format, or the target, has an order of fields of its own."""
    return Counter(json.dumps(_plain(row), sort_keys=by_name, default=str) for row in rows)


async def topic_of(there: Installation, topic: str) -> list[Any]:
    """Its documents."""
    return [to_python(parse_json(r.value or b"null")) async for r in committed_records(there.log, topic)]


async def _registered(there: Installation, job: Job) -> list[Any]:
    read = {"avro": reader_of(parse_schema(ROW)), "protobuf": message_reader()}.get(job.target, bytes)
    values = [(r.value or b"")[HEADER_BYTES:] async for r in committed_records(there.log, f"{job.name}-out")]
    return [to_python(parse_json(read(value))) for value in values]
