"""The stateless stages: `$match`, `$addFields`, `$project`, `$unset`, `$replaceRoot`, `$unwind`, `$redact`, `$validate`."""

from typing import Any, Final

from tidemark.shared.language.documents.kinds import (
    BOOLEAN,
    EXPRESSION,
    PREDICATE,
    Kind,
    Option,
    StageSpec,
    choice,
    made_of,
    read_names,
    with_options,
)
from tidemark.shared.language.documents.trees import computed_tree, drop_tree, projection
from tidemark.shared.language.expressions.ast import Expr, Literal
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.stages import (
    AddFields,
    Match,
    Project,
    Redact,
    ReplaceRoot,
    Unset,
    Unwind,
    Validate,
)
from tidemark.shared.language.values.types import type_name

REDACT_VARIABLES: Final = ("DESCEND", "PRUNE", "KEEP")


def _match(tree: Any, path: str, scope: Scope) -> Match | None:
    predicate = PREDICATE.read(tree, path, scope)
    return None if predicate is None else Match(path=path, predicate=predicate)


def _add_fields(tree: Any, path: str, scope: Scope) -> AddFields | None:
    fields = computed_tree(tree, path, scope)
    return None if fields is None else AddFields(path=path, fields=fields)


def _project(tree: Any, path: str, scope: Scope) -> Project | None:
    found = projection(tree, path, scope)
    return None if found is None else Project(path=path, mode=found[0], fields=found[1])


def _unset(tree: Any, path: str, scope: Scope) -> Unset | None:
    fields = drop_tree(tree if type(tree) is list else [tree], path, scope)
    return None if fields is None else Unset(path=path, fields=fields)


def _replace(expr: Expr, path: str, scope: Scope) -> ReplaceRoot | None:
    if isinstance(expr, Literal) and type(expr.value) is not dict:
        scope.problems.add(path, f"the new root must be a document, found {type_name(expr.value)}")
        return None
    return ReplaceRoot(path=path, new_root=expr)


def _array_path(tree: Any, path: str, scope: Scope) -> tuple[str, ...] | None:
    if type(tree) is not str or not tree.startswith("$") or tree.startswith("$$"):
        scope.problems.add(path, f"expected a field path that starts with $, found {tree!r}")
        return None
    return read_names(tree[1:], path, scope)


_UNWIND: Final = made_of(
    "One document for each item of an array.",
    (
        Option(
            "path",
            Kind(_array_path, {"type": "string", "pattern": r"^\$[^$]"}),
            "the array's path, with a leading $",
            required=True,
            into="names",
        ),
        Option("includeArrayIndex", Kind(read_names, {"type": "string"}), "a field for the item's index"),
        Option("preserveNullAndEmptyArrays", BOOLEAN, "keep documents without items (default false)"),
    ),
    Unwind,
)


def _unwind(tree: Any, path: str, scope: Scope) -> Any:
    return _UNWIND.read({"path": tree} if type(tree) is str else tree, path, scope)


def _redact(tree: Any, path: str, scope: Scope) -> Redact:
    return Redact(path=path, expr=parse_expression(tree, path, scope.bind(*REDACT_VARIABLES)))


_FIELDS: Final = {"type": "object", "minProperties": 1, "additionalProperties": EXPRESSION.schema}
_ADD: Final = StageSpec("Adds fields, or replaces them.", _add_fields, _FIELDS)
STATELESS: Final[dict[str, StageSpec]] = {
    "$match": StageSpec("Lets through what the query is true of.", _match, PREDICATE.schema),
    "$addFields": _ADD,
    "$set": _ADD,
    "$project": StageSpec("Keeps, leaves out or computes fields.", _project, _FIELDS),
    "$unset": StageSpec(
        "Leaves fields out.",
        _unset,
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
    ),
    "$replaceRoot": with_options(
        "The document becomes another one.",
        (Option("newRoot", EXPRESSION, "the new document", required=True),),
        lambda o, path, scope: _replace(o["newRoot"], path, scope),
    ),
    "$replaceWith": StageSpec(
        "The document becomes another one.",
        lambda tree, path, scope: _replace(parse_expression(tree, path, scope), path, scope),
        EXPRESSION.schema,
    ),
    "$unwind": StageSpec(_UNWIND.doc, _unwind, {"anyOf": [{"type": "string"}, dict(_UNWIND.schema)]}),
    "$redact": StageSpec("Keeps, prunes or descends into documents by their content.", _redact, EXPRESSION.schema),
    "$validate": made_of(
        "Checks documents, and says what becomes of those that are wrong.",
        (
            Option("validator", PREDICATE, "a query or $jsonSchema", required=True),
            Option("validationAction", choice("discard", "dlq", "error"), "what becomes of them (default discard)"),
        ),
        Validate,
    ),
}
