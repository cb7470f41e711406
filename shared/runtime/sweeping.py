"""Deletes topics and blobs without an owner (C12): a process that stood still while a processor was dropped or began anew may make some.

Jobs and incarnations of edges have ids that begin with the installation's own mark. A processor's row has the id before anything is named
after it. So an object with such an id, found before the rows are read, belongs to a row, or never will again. An object that a listing
lacks is kept. The rows are whole, and their store is asked after the listing whether it is still the one that counts.
"""

import re
from collections.abc import Callable, Iterable
from hashlib import blake2b

import msgspec
import structlog

from tidemark.shared.model.ids import LeaderToken
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.ports.commits import Ambiguous, CommitStore, StoreUnavailable
from tidemark.shared.ports.log import LogError
from tidemark.shared.protocol.coordinator.record import decode_kept, decode_plan
from tidemark.shared.protocol.coordinator.state import UNIQUE_DIGITS
from tidemark.shared.runtime.context import Outside

_log = structlog.get_logger()
_MARK_BYTES = 8
"""Of the digest: few installations share a blob store, and a name stays short."""


async def mark_of(outside: Outside) -> str:
    """The prefix of the installation's ids: the id of its registry tells it. "" where brokers give none. LogUnavailable."""
    registry = outside.topics.registry
    found = (await outside.log.describe_topics([registry])).get(registry)
    return blake2b(found.id.encode(), digest_size=_MARK_BYTES).hexdigest() if found is not None and found.id else ""


class Sweeper:
    """Deletes topics and blobs without an owner, while its coordinator leads."""

    def __init__(self, outside: Outside, store: CommitStore, lease_ms: int) -> None:
        self._outside = outside
        self._store = store
        self._lease_ms = lease_ms

    async def run(self, leads: Callable[[], LeaderToken | None]) -> None:
        """Look from time to time, while this one leads. An outage is waited out."""
        while True:
            await self._outside.clock.sleep_ms(self._outside.settings.garbage_interval_ms)
            if (token := leads()) is None:
                continue
            try:
                await self._sweep(token)
            except (LogError, BlobError, StoreUnavailable, Ambiguous) as error:
                _log.warning("cleanup.failed", what="nobody's", reason=str(error))

    async def _sweep(self, token: LeaderToken) -> None:
        outside, store = self._outside, self._store
        if not (mark := await mark_of(outside)):
            return
        folders, topics = await outside.blobs.folders(), await outside.log.list_topics()
        living = _ids(mark, (_words(row) for row in await store.processors()))
        dead = _ids(mark, (*folders, *topics)) - living
        # Behind the rows: a store that has lost some since says so.
        if not dead or not await store.renew(token, self._lease_ms, outside.clock.now_ms()):
            return
        _log.info("cleanup.nobodys", ids=sorted(dead))
        for folder in dead.intersection(folders):
            await outside.blobs.delete(await outside.blobs.list(f"{folder}/"))
        await outside.log.delete_topics([t for t in topics if _ids(mark, (t,)) & dead])


def _ids(mark: str, texts: Iterable[str]) -> set[str]:
    pattern = re.compile(f"{mark}[0-9a-f]{{{UNIQUE_DIGITS}}}")
    return {found for text in texts for found in pattern.findall(text)}


def _words(row: ProcessorRow) -> str:
    """All that a row says."""
    return msgspec.json.encode((row.job, decode_kept(row.extra), decode_plan(row.plan))).decode()
