"""The JSON Schema of processor documents, generated from the same declarations that documents are read with; for editors.

It is as strict as a schema can be without knowing names: closed objects, accepted words, operators by name. Rules that
concern more than one place (a source first, defined variables, projections that do not mix) are checked by `documents.parse`.
"""

from collections.abc import Mapping
from typing import Any, Final

from tidemark.shared.language.documents.connections import SETTINGS
from tidemark.shared.language.documents.parse import DOCUMENT_OPTIONS
from tidemark.shared.language.expressions.forms import FORMS
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.registry import first_line
from tidemark.shared.language.kinds import StageSpec, closed_schema
from tidemark.shared.language.query.parse import QUERY_OPERATORS
from tidemark.shared.language.stages.table import STAGES
from tidemark.shared.language.stages.windows import INSIDE
from tidemark.shared.language.values.extended_json import SPECIAL

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def _stages(specs: Mapping[str, StageSpec]) -> dict[str, Any]:
    """One of the stages: an object with one key."""
    properties = {name: {"description": spec.doc, **spec.schema} for name, spec in specs.items()}
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": properties,
    }


def documentation() -> dict[str, str]:
    """One line on each expression operator."""
    forms = {name: first_line(form.__doc__).partition(": ")[2] for name, form in FORMS.items()}
    return {**{name: operator.doc for name, operator in OPERATORS.items()}, **forms}


def _expression() -> dict[str, Any]:
    operators = {name: {"description": doc} for name, doc in sorted(documentation().items())}
    return {
        "description": "An aggregation expression: a value, a field path such as $a.b, an operator, or an object or array of them.",
        "anyOf": [
            {"type": ["string", "number", "boolean", "null"]},
            {"type": "array", "items": {"$ref": "#/$defs/expression"}},
            {
                "type": "object",
                "properties": operators,
                "patternProperties": {"^[^$]": {"$ref": "#/$defs/expression"}},
                "propertyNames": {"anyOf": [{"pattern": "^[^$]"}, {"enum": [*operators, *SPECIAL]}]},
            },
        ],
    }


def _query() -> dict[str, Any]:
    names = [name for name in QUERY_OPERATORS if name in ("$and", "$or", "$nor", "$expr", "$jsonSchema", "$comment")]
    return {
        "description": "A query: field: value, field: {operator: value}, or a logical operator.",
        "type": "object",
        "propertyNames": {"anyOf": [{"pattern": "^[^$]"}, {"enum": names}]},
    }


def _connection() -> dict[str, Any]:
    kinds = []
    for name, options in SETTINGS.items():
        schema = closed_schema(options)
        schema["properties"] = {"type": {"const": name}, **schema["properties"]}
        schema["required"] = ["type", *schema.get("required", [])]
        kinds.append(schema)
    return {"description": "What is at the other end, and how it is reached.", "oneOf": kinds}


def document_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a processor's document."""
    return {
        "$schema": DRAFT,
        "title": "Tidemark processor",
        **closed_schema(DOCUMENT_OPTIONS),
        "$defs": {
            "pipeline": {
                "description": "Stages, of which the first is $source.",
                "type": "array",
                "minItems": 1,
                "prefixItems": [{"type": "object", "required": ["$source"]}],
                "items": {"$ref": "#/$defs/stage"},
            },
            "stage": _stages(STAGES),
            "innerStage": _stages(INSIDE),
            "expression": _expression(),
            "query": _query(),
            "connection": _connection(),
        },
    }
