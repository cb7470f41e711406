"""`$https`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import (
    BOOLEAN,
    EXPRESSION,
    PATH,
    STRING,
    Kind,
    Option,
    Read,
    choice,
    closed,
    integer,
    read_stages,
    with_options,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import ConnectionNeed, Stage, Stateless
from tidemark.shared.language.stages.inner import IN_PLACE
from tidemark.shared.language.stages.sinks.base import SinkBase


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStage(Stage):
    """A request for each document."""

    connection_name: str
    subpath: Expr | None = None
    """Below the connection's URL."""
    parameters: tuple[tuple[str, Expr], ...] = ()
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: tuple[tuple[str, Expr], ...] = ()
    on_error: Literal["dlq", "ignore", "fail"] = "fail"
    payload: tuple[Stateless, ...] | None = None
    """Stages that make the body of the document; None: the document itself, where the method has a body."""
    connection_timeout_s: int = 30
    request_timeout_s: int = 60
    parallelism: int = 16
    """Requests of one task at a time."""

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection to the server."""
        yield ConnectionNeed(self.connection_name, ("https",), self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Https(RequestStage):
    """Inside a pipeline: the answer becomes the field `as_`."""

    as_: tuple[str, ...]
    on_error: Literal["dlq", "ignore", "fail"] = "dlq"
    parse_json_strings: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpsEmit(RequestStage, SinkBase):
    """At the end of a pipeline: requests are sent once their checkpoint is committed, and answers are not kept.

    on_error: `fail` or `ignore`.
    """

    def target(self) -> tuple[Any, ...]:
        """The place at the server."""
        return ("https", self.connection_name, self.subpath)


def _expressions(tree: object, path: str, scope: Scope) -> tuple[tuple[str, Any], ...] | None:
    if type(tree) is not dict or not all(type(name) is str and name for name in tree):
        scope.problems.add(path, "expected an object of name: expression")
        return None
    return tuple((name, EXPRESSION.read(item, join(path, name), scope)) for name, item in tree.items())


_EXPRESSIONS: Final = Kind(_expressions, {"type": "object", "additionalProperties": EXPRESSION.schema})


def _payload(tree: object, path: str, scope: Scope) -> tuple[Any, ...] | None:
    return read_stages(tree, path, scope, IN_PLACE, "")


_ERRORS: Final = choice("dlq", "ignore", "fail")


def _on_error(tree: object, path: str, scope: Scope) -> Any:
    """Atlas' text writes the words in several cases."""
    return _ERRORS.read(tree.lower() if type(tree) is str else tree, path, scope)


_HTTPS_CONFIG: Final = closed(
    Option("connectionTimeoutSec", integer(1, 3_600), "to connect (default 30)", into="connection_timeout_s"),
    Option("requestTimeoutSec", integer(1, 3_600), "to answer (default 60)", into="request_timeout_s"),
    Option("parseJsonStrings", BOOLEAN, "texts in the answer that are JSON become what they say (default false)"),
    Option("parallelism", integer(1, 1_000), "requests of one task at a time (default 16)"),
)
_HTTPS: Final = (
    Option("connectionName", STRING, "the connection of type https", required=True),
    Option("path", EXPRESSION, "below the connection's URL", into="subpath"),
    Option("parameters", _EXPRESSIONS, "of the query: numbers, strings or booleans"),
    Option("method", choice("GET", "POST", "PUT", "PATCH", "DELETE"), "of the request (default GET)"),
    Option("headers", _EXPRESSIONS, "strings; they go before those of the connection"),
    Option(
        "as", PATH, "the field that takes the answer; needed unless the stage is the last, where answers are not kept"
    ),
    Option(
        "onError",
        Kind(_on_error, _ERRORS.schema),
        "what becomes of a document whose request is refused (default dlq; of the last stage fail, and dlq is not possible)",
    ),
    Option(
        "payload",
        Kind(_payload, {"type": "array"}),
        "stages that make the body (default: the document, where there is a body)",
    ),
    Option("config", _HTTPS_CONFIG, "how requests are sent"),
)


def _https(o: Read, path: str, scope: Scope) -> Https | None:
    if "as" not in o:
        scope.problems.add(
            path, "needs as, the field that takes the answer: only the last stage of the document goes without"
        )
        return None
    return Https(path=path, **o.fields)


_TOO_LATE: Final = (
    "a refusal comes once the checkpoint is committed, too late for a dead letter: fail (default) or ignore; or put an"
    " $emit behind $https"
)


def _https_emit(o: Read, path: str, scope: Scope) -> HttpsEmit | None:
    if o.get("onError") == "dlq":
        scope.problems.add(join(path, "onError"), f"dlq as the last stage: {_TOO_LATE}", accepted=("fail", "ignore"))
        return None
    return HttpsEmit(path=path, **{k: v for k, v in o.fields.items() if k not in ("as_", "parse_json_strings")})


LAST: Final = with_options("Tells a server about each document, once its checkpoint is committed.", _HTTPS, _https_emit)
"""`$https` as the last stage of a document."""


SPEC: Final = with_options("Asks a server about each document; as the last stage it tells the server.", _HTTPS, _https)
