"""MongoDB: clients, values as BSON and back, and what the errors of the driver say. For sources, sinks and lookups."""

import decimal
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import bson
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex as BsonRegex
from bson.timestamp import Timestamp as BsonTimestamp
from pymongo import AsyncMongoClient, MongoClient, errors
from pymongo.monitoring import CommandListener

from tidemark.shared.model.values import (
    MAX_KEY,
    MIN_KEY,
    Binary,
    Date,
    Decimal,
    Document,
    EndKey,
    Long,
    ObjectId,
    Regex,
    Timestamp,
    Value,
    long,
)

Client: TypeAlias = MongoClient[Mapping[str, Any]]
AsyncClient: TypeAlias = AsyncMongoClient[RawBSONDocument]
Bson: TypeAlias = Mapping[str, Any]
C = TypeVar("C")
DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a document, encoded: a server takes no more."""
_DEPTH_MAX: Final = 100
"""Documents and arrays inside each other: a server takes no more."""
_DENIED: Final = (13, 18, 8000)
"""Codes of errors: not authorized, authentication failed, Atlas' own for both."""
_PASSING: Final = (
    6, 7, 24, 43, 46, 50, 63, 64, 89, 91, 100, 112, 133, 134, 150, 189, 202, 225, 234, 244, 246, 251, 262, 290, 314, 320, 353, 358, 384,
    9001, 10107, 11600, 11601, 11602, 13388, 13435, 13436, 14031, 15988, 17280,
)  # fmt: skip
"""Codes of errors that time may mend: connections, elections, shutdowns, locks, conflicts, time limits, a full disk."""


_TLS_DENIED: Final = (
    "CERTIFICATE_VERIFY_FAILED",
    "certificate verify failed",
    "Hostname mismatch",
    "WRONG_VERSION_NUMBER",
)
_STATE: Final = re.compile(
    r"( \(configured timeouts: [^)]*\))?(, Timeout: [\d.]+s)?(, Topology Description: .*)?$", re.DOTALL
)


class NoBson(ValueError):
    """Why a value cannot be stored."""


def client_at(url: str, answer_ms: int, connections_max: int = 100) -> Client:
    """A client, which connects when it is first asked. `answer_ms`: how long a server is looked for and an answer awaited. ValueError."""
    return _made(MongoClient[Mapping[str, Any]], url, answer_ms, maxPoolSize=connections_max)


def async_client_at(url: str, answer_ms: int, listener: CommandListener, **options: Any) -> AsyncClient:
    """The same for a loop, whose documents are not decoded, with more of the driver's options. ValueError."""
    own = {"document_class": RawBSONDocument, "event_listeners": [listener]}
    return _made(AsyncMongoClient[RawBSONDocument], url, answer_ms, **own, **options)


def _made(kind: Callable[..., C], url: str, answer_ms: int, **options: Any) -> C:
    try:
        return kind(
            url,
            connect=False,
            appname="tidemark",
            serverSelectionTimeoutMS=answer_ms,
            connectTimeoutMS=answer_ms,
            socketTimeoutMS=6 * answer_ms,
            datetime_conversion=DatetimeConversion.DATETIME_MS,
            **options,
        )
    except (errors.PyMongoError, ValueError, TypeError) as error:
        said = "" if url.startswith(("mongodb://", "mongodb+srv://")) and "@" in str(error) else f": {error}"
        expected = "expected mongodb://user:password@host/ or mongodb+srv://…"
        raise ValueError(f"the connection's url: {expected}, found none that can be used{said}") from None


def has_transactions(client: Client) -> bool:
    """Whether a server is part of a replica set or of shards. Asks it; PyMongoError.

    What the driver knows of it does not count: that is gone whenever a connection breaks.
    """
    told = client.admin.command("isMaster")
    return "setName" in told or told.get("msg") == "isdbgrid"


def is_denied(error: Exception) -> bool:
    """A wrong user or password, rights that are missing, or a certificate that does not fit: the driver tells the last as an outage."""
    if isinstance(error, errors.ConnectionFailure):
        return any(word in str(error) for word in _TLS_DENIED)
    return isinstance(error, errors.OperationFailure) and error.code in _DENIED


def words_of(error: Exception) -> str:
    """What an error says to people: without the driver's own state, its topology and times, behind it."""
    return " ".join(_STATE.sub("", str(error)).split())


def is_passing(error: Exception) -> bool:
    """An outage, or a conflict: asking again may help."""
    if isinstance(error, (errors.ConnectionFailure, errors.WTimeoutError, errors.ExecutionTimeout)):
        return True
    if isinstance(error, errors.ConfigurationError):
        return "DNS" in str(error)
    if not isinstance(error, errors.PyMongoError):
        return False
    labels = (
        "TransientTransactionError", "RetryableWriteError", "UnknownTransactionCommitResult", "ResumableChangeStreamError",
    )  # fmt: skip
    if any(map(error.has_error_label, labels)):
        return True
    if isinstance(error, errors.BulkWriteError):
        refused = error.details.get("writeErrors", [])
        return all(each.get("code") in _PASSING for each in refused)
    return isinstance(error, errors.OperationFailure) and error.code in _PASSING


def ends_at(client: Client, name: str, values: Sequence[Any]) -> bool:
    """Whether the server of a collection ends the connection as it is shown these values, and answers otherwise. It changes nothing.

    A server that speaks MongoDB's protocol in part says by nothing else that it does not take a value (FerretDB of a decimal).
    """
    database, _, collection = name.partition(".")
    try:
        client[database][collection].find_one({"_id": bson.ObjectId(), "value": {"$in": [*values]}})
    except errors.PyMongoError as error:
        return isinstance(error, errors.AutoReconnect) and _answers(client)
    return False


def _answers(client: Client) -> bool:
    try:
        client.admin.command("ping")
    except errors.PyMongoError:
        return False
    return True


# --- values -----------------------------------------------------------------------------------------------------------------


def _whole(value: Any) -> Any:
    if not -(2**63) <= value < 2**63:
        raise NoBson(f"expected a whole number of 64 bits, found {value}")
    return int(value)


def _decimal(value: Any) -> Any:
    try:
        return Decimal128(value)
    except (decimal.DecimalException, ValueError) as error:
        raise NoBson(f"expected a decimal of 34 digits, found {value}") from error


def _text(value: Any) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise NoBson("expected text without halves of characters") from error
    return value


def _plain(value: Any) -> Any:
    return value


_TO_BSON: Final[Mapping[type, Callable[[Any], Any]]] = {
    type(None): _plain,
    bool: _plain,
    float: _plain,
    int: _whole,
    Long: Int64,
    Date: lambda value: DatetimeMS(int(value)),
    Decimal: _decimal,
    str: _text,
    Binary: lambda value: bson.Binary(bytes(value), value.subtype),
    ObjectId: lambda value: bson.ObjectId(value.data),
    Regex: lambda value: BsonRegex(_text(value.pattern), value.options),
    Timestamp: lambda value: BsonTimestamp(value.seconds, value.increment),
    EndKey: lambda value: MinKey() if value is MIN_KEY else MaxKey(),
}


def to_bson(value: Value, depth: int = 1, *, commands: bool = False) -> Any:
    """A value as the driver takes it. `commands`: names may begin with $, as in stages and queries. NoBson."""
    kind = type(value)
    if kind is dict or kind is list:
        if depth > _DEPTH_MAX:
            raise NoBson(f"expected at most {_DEPTH_MAX} documents inside each other")
        if kind is list:
            return [to_bson(item, depth + 1, commands=commands) for item in value]
        return {
            name if commands else _name(name): to_bson(item, depth + 1, commands=commands)
            for name, item in value.items()
        }
    made = _TO_BSON.get(kind)
    if made is None:
        raise NoBson(f"a value of type {kind.__name__} cannot be stored")
    return made(value)


def _name(name: str) -> str:
    if name.startswith("$"):
        raise NoBson(f"a field's name begins with $: {name[:80]!r}")
    if "\x00" in name:
        raise NoBson("a field's name has the character 0")
    return str(_text(name))


def stored(document: Document) -> dict[str, Any]:
    """A whole document as the driver takes it. NoBson for one that no server takes: names of fields at the top have neither dots."""
    for name in document:
        if not name or "." in name:
            raise NoBson(f"expected a field's name without dots, found {name[:80]!r}")
    found: dict[str, Any] = to_bson(document)
    if isinstance(found.get("_id"), (list, BsonRegex)):
        raise NoBson("_id: an array or a regular expression finds no document")
    size = len(bson.encode(found))
    if size > DOCUMENT_BYTES_MAX:
        raise NoBson(f"expected at most {DOCUMENT_BYTES_MAX} bytes, found {size}")
    return found


def from_bson(value: Any) -> Value:
    """A value that the driver has read; one of a type that the language lacks becomes text."""
    return _FROM_BSON.get(type(value), str)(value)


def _regex(value: "BsonRegex[Any]") -> Regex:
    letters = {"i": 2, "l": 4, "m": 8, "s": 16, "u": 32, "x": 64}
    options = "".join(letter for letter, bit in letters.items() if value.flags & bit)
    return Regex(value.pattern if isinstance(value.pattern, str) else value.pattern.decode(errors="replace"), options)


_FROM_BSON: Final[Mapping[type, Callable[[Any], Value]]] = {
    dict: lambda value: {name: from_bson(item) for name, item in value.items()},
    list: lambda value: [from_bson(item) for item in value],
    type(None): _plain,
    bool: _plain,
    float: _plain,
    int: _plain,
    str: _plain,
    Int64: lambda value: long(int(value)),
    DatetimeMS: lambda value: Date(int(value)),
    Decimal128: lambda value: value.to_decimal(),
    bson.Binary: lambda value: Binary(bytes(value), value.subtype),
    bytes: Binary,
    bson.ObjectId: lambda value: ObjectId(value.binary),
    BsonRegex: _regex,
    BsonTimestamp: lambda value: Timestamp(value.time, value.inc),
    MinKey: lambda _: MIN_KEY,
    MaxKey: lambda _: MAX_KEY,
    DBRef: lambda value: from_bson(dict(value.as_doc())),
}
