"""Calls of every operator of the language, with arguments drawn from what a document has: the table of operators is the list."""

import random
from typing import Any, Final

from tidemark.shared.language.expressions.registry import OPERATORS, Positional

_MOST: Final = 4
"""So many arguments at the most of an operator that takes any number."""
_WORDS: Final[dict[str, tuple[Any, ...]]] = {
    "timezone": ("UTC", "Europe/Berlin", "+05:30"), "unit": ("hour", "day", "month"), "to": ("string", "int", "double", "bool", "date"),
    "format": ("%Y-%m-%d %H:%M",), "regex": ("[0-9]+", "a"), "options": ("i",),
}  # fmt: skip
"""What arguments of these names are most of the time: with anything else the call fails."""


def call(chooser: random.Random, name: str, parts: list[Any]) -> dict[str, Any]:
    """A call of an operator with some of these parts as its arguments."""
    signature = OPERATORS[name].signature
    if isinstance(signature, Positional):
        most = _MOST if signature.most is None else signature.most
        count = chooser.randint(min(signature.least, most), most)
        return {name: [chooser.choice(parts) for _ in range(count)]}
    given = {
        each: chooser.choice(_WORDS[each]) if each in _WORDS and chooser.random() < 0.8 else chooser.choice(parts)
        for each in signature.names
        if each in signature.required or chooser.random() < 0.3
    }
    return {name: given}


def expression(chooser: random.Random, name: str, leaves: list[Any]) -> Any:
    """A call of an operator on leaves, or on calls of others, alone or in a form around it: a branch, a loop, a field."""
    parts = [*leaves, call(chooser, chooser.choice(sorted(OPERATORS)), leaves)]
    tree: Any = call(chooser, name, parts if chooser.random() < 0.4 else leaves)
    match chooser.randrange(8):
        case 0:
            return {"$cond": [chooser.choice(parts), tree, chooser.choice(parts)]}
        case 1:
            return {"$map": {"input": chooser.choice(leaves), "as": "x", "in": call(chooser, name, [*leaves, "$$x"])}}
        case 2:
            return {"a": tree, "b": [chooser.choice(parts)]}
        case 3:
            return {
                "$let": {"vars": {"v": tree}, "in": call(chooser, chooser.choice(sorted(OPERATORS)), [*leaves, "$$v"])}
            }
        case 4:
            return {
                "$filter": {
                    "input": [chooser.choice(leaves), tree],
                    "as": "x",
                    "cond": call(chooser, name, [*leaves, "$$x"]),
                }
            }
        case _:
            return tree


def asked_of_a_field(chooser: random.Random, constants: list[Any]) -> Any:
    """What a query asks of one field."""
    constant = chooser.choice(constants)
    several = [chooser.choice(constants) for _ in range(chooser.randint(0, 3))]
    asked: dict[str, Any] = {
        **dict.fromkeys(("$eq", "$ne", "$gt", "$gte", "$lt", "$lte"), constant),
        **dict.fromkeys(("$in", "$nin", "$all"), several),
        "$exists": chooser.random() < 0.5,
        "$size": chooser.randint(0, 3),
        "$mod": [chooser.choice((2, 3, -2)), 1],
        "$type": chooser.choice(("number", "string", "array", "object", "null", "decimal", "date")),
        "$regex": chooser.choice(("^a", "[0-9]")),
        "$bitsAllSet": 1,
        "$bitsAnyClear": [0, 2],
        "$elemMatch": chooser.choice(({"$gte": constant}, {"n": constant}, {"$type": "string"})),
    }
    name = chooser.choice(sorted(asked))
    return {"$not": {name: asked[name]}} if chooser.random() < 0.2 else {name: asked[name]}
