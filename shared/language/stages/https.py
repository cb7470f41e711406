"""`$https`."""

from dataclasses import dataclass
from typing import Literal

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.stages.base import Stage, Stateless
from tidemark.shared.language.stages.sinks import SinkBase


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
