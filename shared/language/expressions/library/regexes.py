"""Regular expressions, in the linear-time engine."""

from typing import Any

from tidemark.shared.language.expressions.errors import TYPE, VALUE, fail
from tidemark.shared.language.expressions.library.arithmetic import is_null
from tidemark.shared.language.expressions.library.strings import need_string
from tidemark.shared.language.expressions.registry import ABSENT, named
from tidemark.shared.language.patterns import BadPattern, compile_pattern
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import Regex, Value


def program_of(name: str, regex: Value, options: Value) -> Any:
    """The engine's program; None for a null pattern."""
    if options is not ABSENT and not is_null(options):
        need_string(name, options, "options as a string")
    given = "" if options is ABSENT or is_null(options) else options
    if is_null(regex):
        return None
    if type(regex) is Regex:
        if regex.options and options is not ABSENT and not is_null(options):
            raise fail(f"{name}: options stand in the regular expression or in options, not in both", VALUE)
        pattern, letters = regex.pattern, regex.options or given
    elif type(regex) is str:
        pattern, letters = regex, given
    else:
        raise fail(f"the regex of {name} is a string or a regular expression, found {type_name(regex)}", TYPE)
    try:
        return compile_pattern(pattern, "".join(sorted(letters)))
    except BadPattern as e:
        raise fail(str(e), VALUE) from e


def _prepared(name: str, value: Value, regex: Value, options: Value) -> Any:
    """The program to run on a text; None if the text or the pattern is null."""
    program = program_of(name, regex, options)
    if is_null(value):
        return None
    need_string(name, value)
    return program


def _found(match: Any) -> dict[str, Any]:
    return {"match": match.group(0), "idx": match.start(), "captures": list(match.groups())}


@named("$regexMatch", "input regex", "options")
def _regex_match(value: Value, regex: Value, options: Value) -> bool:
    """Whether a pattern is found in a string."""
    program = _prepared("$regexMatch", value, regex, options)
    return program is not None and program.search(value) is not None


@named("$regexFind", "input regex", "options")
def _regex_find(value: Value, regex: Value, options: Value) -> Value:
    """The first match: {match, idx (code point), captures}, or null."""
    program = _prepared("$regexFind", value, regex, options)
    match = None if program is None else program.search(value)
    return None if match is None else _found(match)


@named("$regexFindAll", "input regex", "options")
def _regex_find_all(value: Value, regex: Value, options: Value) -> list[Any]:
    """All matches: an array of {match, idx, captures}; none is looked for at the end of a string that is not empty."""
    program = _prepared("$regexFindAll", value, regex, options)
    if program is None:
        return []
    found: list[Any] = []
    start = 0
    for match in program.finditer(value):
        if start >= len(value) > 0:
            break
        found.append(_found(match))
        start = match.end() + (match.end() == match.start())
    return found
