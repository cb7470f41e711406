"""The reference pages of the manual, made from the declarations that documents are read with: `python -m tidemark.deploy.manual docs`.

`docs/reference/` has nothing that is written by hand; a test compares it with the output of this module.
`docs/files/tidemark.schema.json` is for editors.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tidemark.shared.language.accumulators.parse import ACCUMULATOR_NAMES
from tidemark.shared.language.expressions.registry import LEFT_OUT
from tidemark.shared.language.leftout import OPTIONS_LEFT_OUT, STAGES_LEFT_OUT
from tidemark.shared.language.query.parse import QUERY_OPERATORS
from tidemark.shared.language.schema_json import document_schema

_MADE: Final = "<!-- Made by `make manual` from the code; changes belong there. -->\n"
_WORDS: Final = {
    "expression": "expression",
    "query": "query",
    "pipeline": "pipeline",
    "stage": "stage",
    "innerStage": "stage of a window",
}
Schema = Mapping[str, Any]


def pages() -> dict[str, str]:
    """The text of each page, by its path below `docs`."""
    schema = document_schema()
    stages = schema["$defs"]["stage"]["properties"]
    ends = {"$source": "sources", "$emit": "sinks", "$merge": "sinks"}
    made = {
        "reference/stages.md": _page("Stages", _stages({n: s for n, s in stages.items() if n not in ends}, schema)),
        "reference/sources.md": _page(
            "Sources", _stages({n: s for n, s in stages.items() if ends.get(n) == "sources"}, schema)
        ),
        "reference/sinks.md": _page(
            "Sinks", _stages({n: s for n, s in stages.items() if ends.get(n) == "sinks"}, schema)
        ),
        "reference/connections.md": _page("Connections", _variants(schema["$defs"]["connection"])),
        "reference/options.md": _page("A document and its options", _table(schema)),
        "reference/expressions.md": _page("Expressions", _expressions(schema)),
        "reference/left-out.md": _page("What is left out", _left_out()),
    }
    return {**made, "files/tidemark.schema.json": json.dumps(schema, indent=1) + "\n"}


def _page(title: str, lines: Iterator[str]) -> str:
    return "\n".join((_MADE, f"# {title}", "", *lines)).rstrip() + "\n"


def _stages(stages: Mapping[str, Schema], schema: Schema) -> Iterator[str]:
    inner = schema["$defs"]["innerStage"]["properties"]
    for name, stage in stages.items():
        yield f"## `{name}`"
        yield ""
        yield stage.get("description", "")
        yield ""
        yield from _variants(stage)
    if "$match" in stages:
        yield from ("## Inside windows", "", "Besides the stateless stages above:", "")
        for name in (name for name in inner if name not in stages):
            yield f"### `{name}`"
            yield from ("", inner[name].get("description", ""), "")
            yield from _variants(inner[name])
        yield from (
            "### Accumulators",
            "",
            "In `$group`: " + ", ".join(f"`{name}`" for name in ACCUMULATOR_NAMES) + ".",
            "",
        )


def _left_out() -> Iterator[str]:
    yield from (
        "Stages and options that Atlas has, and that a document is refused for, with the reason.",
        "",
        "## Stages",
        "",
    )
    yield from ("| stage | |", "| --- | --- |")
    yield from (f"| `{name}` | {_cell(why)} |" for name, why in sorted(STAGES_LEFT_OUT.items()))
    yield from ("", "## Options", "", "| option | |", "| --- | --- |")
    yield from (f"| `{place}` | {_cell(why)} |" for place, why in sorted(OPTIONS_LEFT_OUT.items()))


def _variants(schema: Schema) -> Iterator[str]:
    """The options of an object, or of each form that it may have."""
    forms = schema.get("oneOf") or schema.get("anyOf") or [schema]
    for form in forms:
        if "properties" not in form:
            yield from (f"Takes {_type(form)}.", "")
            continue
        if len(forms) > 1:
            kind = form["properties"].get("type", {}).get("const")
            named = kind or next(iter(form.get("required", ())), next(iter(form["properties"])))
            yield from (f"### With `{'type: ' if kind else ''}{named}`", "")
        yield from _table(form)


def _table(form: Schema) -> Iterator[str]:
    yield from ("| option | takes | |", "| --- | --- | --- |")
    yield from _rows(form, "")
    yield ""


def _rows(form: Schema, above: str) -> Iterator[str]:
    for name, option in form["properties"].items():
        needed = " **required**" if name in form.get("required", ()) else ""
        yield f"| `{above}{name}` | {_type(option)} | {_cell(option.get('description', ''))}{needed} |"
        if "properties" in option and not _is_duration(option):
            yield from _rows(option, f"{above}{name}.")


def _is_duration(option: Schema) -> bool:
    return "unit" in option.get("properties", {}) and len(option["properties"]) == 2  # noqa: PLR2004 - size and unit


def _type(schema: Schema) -> str:
    """The values that an option takes, in a few words."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _WORDS.get(name, name)
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(part) for part in parts))
    if _is_duration(schema):
        return "`{" + ", ".join(schema["properties"]) + "}`"
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object":
        return "`{" + ", ".join(schema["properties"]) + "}`" if "properties" in schema else "object"
    bounds = [f"{word} {schema[key]:,}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([kind if isinstance(kind, str) else " or ".join(kind), *bounds])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _expressions(schema: Schema) -> Iterator[str]:
    operators = next(part for part in schema["$defs"]["expression"]["anyOf"] if "properties" in part)["properties"]
    yield from (schema["$defs"]["expression"]["description"], "", f"{len(operators)} operators:", "")
    yield from ("| operator | |", "| --- | --- |")
    yield from (f"| `{name}` | {_cell(each['description'])} |" for name, each in operators.items())
    yield from (
        "",
        "## Queries",
        "",
        "In `$match` and `$validate`: " + ", ".join(f"`{name}`" for name in QUERY_OPERATORS) + ".",
        "",
    )
    yield from ("## Left out", "", "| operator | because |", "| --- | --- |")
    yield from (f"| `{name}` | {_cell(reason)} |" for name, reason in sorted(LEFT_OUT.items()))


def main() -> int:
    """Write the pages below a folder."""
    folder = Path(sys.argv[1])
    for name, text in pages().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
