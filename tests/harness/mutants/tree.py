"""Changes to the syntax tree: they say what they look for, in the code's own words, and not how it is laid out.

`find` is an expression, or statements that follow each other; in it `...` as a statement stands for any statements, and a name that begins
with `any_` for any expression. `becomes` takes its place and may use those names; empty: it is taken out. Both are looked at within one
function or class, `where`.
"""

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_Bound = dict[str, ast.AST]


class NotOnce(ValueError):
    """What is looked for is not there, or not once: says how often."""


def changed(text: str, where: str, find: str, becomes: str) -> str:
    """The file with the change. `where`: `Class.method`, or a function. NotOnce."""
    tree = ast.parse(text)
    wanted, new = ast.parse(find).body, ast.parse(becomes).body
    found = list(_places(_scope(tree, where), wanted, expressions=_is_expression(wanted) and _is_expression(new)))
    if len(found) != 1:
        raise NotOnce(f"{where}: expected once, found {len(found)} times: {find!r}")
    found[0].put(new)
    return ast.unparse(ast.fix_missing_locations(tree))


def _scope(tree: ast.Module, where: str) -> ast.AST:
    node: ast.AST = tree
    for name in where.split("."):
        inside = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name
        ]
        if len(inside) != 1:
            raise NotOnce(f"{where}: expected one, found {len(inside)} of {name}")
        node = inside[0]
    return node


@dataclass(slots=True)
class _Place:
    """Where a pattern is: a slice of a list of statements, or one expression."""

    parent: ast.AST
    field: str
    index: int | None
    length: int
    bound: _Bound
    statements: bool

    def put(self, new: Sequence[ast.stmt]) -> None:
        made: list[ast.AST] = [_Filled(self.bound).visit(copy.deepcopy(statement)) for statement in new]
        if not self.statements:
            made = [node.value for node in made if isinstance(node, ast.Expr)]
        elif not made:
            made = [ast.Pass()]
        if self.index is None:
            setattr(self.parent, self.field, made[0])
        else:
            getattr(self.parent, self.field)[self.index : self.index + self.length] = made


class _Filled(ast.NodeTransformer):
    """Puts what was found in the place of `any_…`."""

    def __init__(self, bound: _Bound) -> None:
        self._bound = bound

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A name."""
        return copy.deepcopy(self._bound[node.id]) if node.id in self._bound else node


def _is_expression(statements: Sequence[ast.stmt]) -> bool:
    return len(statements) == 1 and isinstance(statements[0], ast.Expr)


def _places(scope: ast.AST, wanted: Sequence[ast.stmt], *, expressions: bool) -> Iterator[_Place]:
    expression = wanted[0].value if expressions and isinstance(wanted[0], ast.Expr) else None
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, list):
                yield from _in_list(parent, field, value, wanted, expression)
            elif expression is not None and isinstance(value, ast.expr):
                bound: _Bound = {}
                if _same(expression, value, bound):
                    yield _Place(parent, field, None, 1, bound, statements=False)


def _in_list(
    parent: ast.AST, field: str, values: list[ast.AST], wanted: Sequence[ast.stmt], expression: ast.expr | None
) -> Iterator[_Place]:
    for index, value in enumerate(values):
        bound: _Bound = {}
        if expression is not None and isinstance(value, ast.expr) and _same(expression, value, bound):
            yield _Place(parent, field, index, 1, bound, statements=False)
        elif expression is None and isinstance(value, ast.stmt):
            length = len(wanted)
            if index + length <= len(values) and _all_same(wanted, values[index : index + length], bound):
                yield _Place(parent, field, index, length, bound, statements=True)


def _is_any(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def _all_same(wanted: Sequence[ast.AST], found: Sequence[ast.AST], bound: _Bound) -> bool:
    if wanted and _is_any(wanted[-1]):
        wanted, found = wanted[:-1], found[: len(wanted) - 1]
    return len(wanted) == len(found) and all(_same(w, f, bound) for w, f in zip(wanted, found, strict=True))


def _same(wanted: object, found: object, bound: _Bound) -> bool:
    if isinstance(wanted, ast.Name) and wanted.id.startswith("any_") and isinstance(found, ast.expr):
        bound[wanted.id] = found
        return True
    if isinstance(wanted, ast.AST):
        return type(wanted) is type(found) and all(
            _same(value, getattr(found, field), bound) for field, value in ast.iter_fields(wanted) if field != "ctx"
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and _all_same(wanted, found, bound)
    return wanted == found
