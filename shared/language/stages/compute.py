"""`$compute`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tidemark.shared.language.expressions.ast import Expr, constant
from tidemark.shared.language.expressions.ast import Literal as Constant
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.forms import PluginUse
from tidemark.shared.language.kinds import DOCUMENT, EXPRESSION, Kind, Option, Read, choice, with_options
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages.base import Stage
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Stage):
    """`$compute`: a user's computation; `key` a field path's or expression's value."""

    class_: str
    """`module:Class`, or, without a colon, the name that a package has for it."""
    key: Expr
    config: Document = field(default_factory=dict)
    order: Literal["eventTime", "arrival"] = "eventTime"
    limits: Limits = DEFAULTS
    """Of the document."""

    def identity(self) -> tuple[Any, ...]:
        """By which it is the same one in another plan."""
        return (self.class_, self.key)

    def plugins(self) -> Iterator[PluginUse]:
        """The computation, if it is named."""
        if ":" not in self.class_:
            yield PluginUse("computation", self.class_, self.config, self.path)


def _class(tree: object, path: str, scope: Scope) -> str | None:
    if type(tree) is str and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", tree):
        return tree
    scope.problems.add(path, f'expected "module:Class", found {tree!r}')
    return None


def _name(tree: object, path: str, scope: Scope) -> str | None:
    if type(tree) is str and tree and ":" not in tree:
        return tree
    scope.problems.add(path, f"expected the name of a computation, found {tree!r}; a module:Class is for `class`")
    return None


_COMPUTE: Final = (
    Option(
        "class",
        Kind(_class, {"type": "string", "pattern": "^[A-Za-z_][\\w.]*:[A-Za-z_]\\w*$"}),
        "module:Class; this or plugin is required",
    ),
    Option(
        "plugin",
        Kind(_name, {"type": "string", "pattern": "^[^:]+$"}),
        "the computation's name in the package that has it, in place of class",
        into="class_",
    ),
    Option("key", EXPRESSION, "the key that state and timers belong to", required=True),
    Option("config", DOCUMENT, "handed to the class"),
    Option("order", choice("eventTime", "arrival"), "in which order records are applied (default eventTime)"),
)


def _made(o: Read, path: str, scope: Scope) -> Compute | None:
    if ("class" in o) == ("plugin" in o):
        scope.problems.add(path, "$compute needs one of class (module:Class) and plugin (a name)")
        return None
    if isinstance(o["key"], Constant) and o["key"].value is not None:
        what = f"the key is {constant(o['key'].value)}: all records have one state"
        scope.problems.warn(join(path, "key"), what)
    return Compute(path=path, limits=scope.limits, **o.fields)


SPEC: Final = with_options("A computation of the user's, with state and timers by key.", _COMPUTE, _made)
