"""A collection of MongoDB as a lookup's table: asked by the lookup's keys, one query a batch.

The server's equality is the language's: numbers of all types by value, null as nothing, an array by its items, too.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import bson
from pymongo import errors

from tidemark.shared.adapters.mongodb import (
    Client,
    NoBson,
    client_at,
    ends_at,
    from_bson,
    is_denied,
    is_passing,
    to_bson,
    words_of,
)
from tidemark.shared.model.values import Found
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.tables import Names, TableDenied, TableRefused, TableUnavailable
from tidemark.shared.runtime.settings import LookupSettings

_ANSWER_MS_MAX: Final = 10_000
"""How long a server is looked for, before the lookup's own patience begins."""
_ENDS: Final = (
    "the server ends the connection at a key of this batch, and answers otherwise: it does not take its type (only MongoDB takes all); let"
    " the pipeline turn it into another"
)
_CELLS: Final = 32
"""Bytes by which a place orders whole numbers, object ids and short texts."""


class CollectionTable:
    """`Table` over one collection or view. `client` is pymongo's; its work runs on the executor's threads."""

    def __init__(self, client: Client, name: str, executor: Executor, settings: LookupSettings) -> None:
        database, dot, collection = name.partition(".")
        if not dot or not database or not collection:
            raise TableRefused(
                f"collection {name}: expected a database and a collection: db and coll, or table: db.coll"
            )
        self._client = client
        self.name = name
        self._collection = client[database][collection]
        self._executor = executor
        self._settings = settings

    @classmethod
    def at(cls, url: str, name: str, executor: Executor, settings: LookupSettings) -> "CollectionTable":
        """A collection of the server at a url. TableRefused for a url of another kind."""
        try:
            client = client_at(url, min(_ANSWER_MS_MAX, settings.wait_ms_max))
        except ValueError as error:
            raise TableRefused(str(error)) from error
        return cls(client, name, executor, settings)

    async def find(self, columns: Sequence[Names], wanted: Sequence[tuple[object, ...]]) -> Sequence[Found]:
        """See `Table.find`."""
        return await self._executor.blocking(self._find, tuple(columns), wanted)

    def _find(self, columns: tuple[Names, ...], wanted: Sequence[tuple[object, ...]]) -> list[Found]:
        query = _query(columns, wanted)
        if query is None:
            return []
        rows_max = self._settings.rows_max
        try:
            found = list(self._collection.find(query).limit(rows_max + 1))
        except errors.PyMongoError as error:
            sentence = f"collection {self.name}: {words_of(error)}"
            if is_denied(error):
                raise TableDenied(f"{sentence}; correct the connection's url, or the user's rights") from error
            if isinstance(error, errors.AutoReconnect) and ends_at(self._client, self.name, [query]):
                raise TableRefused(f"{sentence}; {_ENDS}") from error
            raise (TableUnavailable if is_passing(error) else TableRefused)(sentence) from error
        if len(found) > rows_max:
            raise TableRefused(
                f"collection {self.name}: a batch finds more than {rows_max} documents, which is lookup.rows_max; narrow the lookup by"
                " localField and foreignField, or by $expr with $eq in a $match that comes first; or raise the bound"
            )
        return sorted((Found(_place(one.get("_id")), from_bson(one)) for one in found), key=lambda one: one.place)

    async def close(self) -> None:
        """Give the connections back."""
        await self._executor.blocking(self._client.close)


def _query(columns: tuple[Names, ...], wanted: Sequence[tuple[object, ...]]) -> dict[str, Any] | None:
    """The documents that equal one of the keys; None if none can. A path that the server would read otherwise narrows nothing."""
    paths = [(at, ".".join(names)) for at, names in enumerate(columns) if all(map(_is_plain, names))]
    if not paths:
        return {}
    keys = []
    for one in wanted:
        try:
            keys.append({path: to_bson(one[at]) for at, path in paths})
        except NoBson:  # No stored document has it.
            continue
    if not keys:
        return None
    if len(paths) == 1:
        ((_, path),) = paths
        return {path: {"$in": [key[path] for key in keys]}}
    return {"$or": [{path: {"$eq": value} for path, value in key.items()} for key in keys]}


def _is_plain(name: str) -> bool:
    """Whether a name in a path means a field to the server, too: not its place in an array."""
    return bool(name) and "." not in name and not name.startswith("$") and not name.isdigit()


def _place(identity: object) -> int:
    """A number for each _id, which is the same whenever it is found; in the order of whole numbers, object ids and short texts."""
    match identity:
        case bool():
            pass
        case int():
            return (1 << 8 * _CELLS) + 2**63 + int(identity)
        case str() if len(data := identity.encode()) <= _CELLS and b"\x00" not in data:
            return (2 << 8 * _CELLS) + int.from_bytes(data.ljust(_CELLS, b"\x00"))
        case bson.ObjectId():
            return (3 << 8 * _CELLS) + int.from_bytes(identity.binary)
        case _:
            pass
    return (4 << 8 * _CELLS) + int.from_bytes(hashlib.sha256(bson.encode({"_id": identity})).digest())
