"""The base of all sinks, and the options that several have."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.kinds import EXPRESSION, STRING, Kind, Option, choice
from tidemark.shared.language.stages.base import PassesOn

OutputFormat = Literal["relaxedJson", "canonicalJson", "basicJson"]
DateFormat = Literal["default", "ISO8601"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBase(PassesOn, ABC):
    """A stage that writes what comes in, and changes nothing of it."""

    @abstractmethod
    def target(self) -> tuple[Any, ...]:
        """Where it writes: a sink with the same target is the same one in another plan."""

    def order_key(self, *, last: bool) -> Expr | None:
        """The expression by which its rows have an order: the row of a table, the key of a record; None where they have none.

        last: it takes all rows; else they go on in the pipeline, too, and an order by a key that can fail would stop them.
        """
        return None


WRITTEN: Final = (
    Option(
        "outputFormat",
        choice("relaxedJson", "canonicalJson", "basicJson"),
        "how documents are written (default relaxedJson)",
    ),
    Option("dateFormat", choice("default", "ISO8601"), "ISO8601: dates as text (default: as outputFormat has them)"),
)


def is_expression(tree: object) -> bool:
    """Whether a tree is an expression, and no word."""
    return type(tree) is dict or (type(tree) is str and tree.startswith("$"))


NAME: Final = Kind(
    lambda tree, path, scope: (
        parse_expression(tree, path, scope) if is_expression(tree) else STRING.read(tree, path, scope)
    ),
    {"anyOf": [STRING.schema, EXPRESSION.schema]},
)
