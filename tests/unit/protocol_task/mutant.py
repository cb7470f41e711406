"""How to take a rule out of the task machine.

A mutation is a piece of a module's source and what stands in its place. It is applied in memory: the module is compiled anew with the
replacement, and functions that differ get the new code, wherever they have been imported to.
"""

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType, ModuleType

MACHINE = "tidemark.shared.protocol.task.machine"
RECEIVER = "tidemark.shared.protocol.task.receiver"
SENDER = "tidemark.shared.protocol.task.sender"
START = "tidemark.shared.protocol.task.start"
LINEAGE = "tidemark.shared.protocol.lineage"
WATERMARKS = "tidemark.shared.protocol.watermarks"
RELEASE = "tidemark.shared.protocol.release"


@dataclass(frozen=True, slots=True)
class Mutation:
    """`rule` is what is taken out; the tests named after it are to notice."""

    rule: str
    what: str
    module: str
    old: str
    new: str


@cache
def _functions(module: ModuleType) -> dict[str, FunctionType]:
    """All functions and methods of a module, by qualified name."""
    found: dict[str, FunctionType] = {}
    owners = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    for owner in (module, *owners):
        for member in vars(owner).values():
            function = member.__func__ if isinstance(member, staticmethod) else member
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                found[function.__qualname__] = function
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of functions, of methods, and of nothing further in."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


@cache
def _source(module: ModuleType) -> str:
    return inspect.getsource(module)


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """The product without the rule, as long as the context is open. AssertionError if it would be the same product."""
    module = importlib.import_module(mutation.module)
    source = _source(module)
    assert source.count(mutation.old) >= 1, f"{mutation.module} has no {mutation.old!r}: the mutation is out of date"
    mutant = compile(source.replace(mutation.old, mutation.new), str(module.__file__), "exec")
    functions = _functions(module)
    changed: dict[FunctionType, CodeType] = {}
    for code in _codes(mutant):
        function = functions.get(code.co_qualname)
        if (
            function is not None
            and function.__code__ != code
            and function.__code__.co_firstlineno == code.co_firstlineno
        ):
            changed[function] = function.__code__
            function.__code__ = code
    try:
        assert changed, f"{mutation.rule}, {mutation.what}: changes no function"
        yield
    finally:
        for function, code in changed.items():
            function.__code__ = code
