"""Records, expressions and stages that make documents deep: by themselves, by each other, and around the bounds of what may be."""

import random
from typing import Any, Final

from tests.harness.drawn_stages import Groups
from tidemark.shared.language.expressions.environment import DEPTH_MAX as RESULT_MAX
from tidemark.shared.language.values.depth import DEPTH_MAX

_DEPTHS: Final = (1, 3, 20, 88, RESULT_MAX - 2, RESULT_MAX, RESULT_MAX + 1, DEPTH_MAX - 3, DEPTH_MAX - 2, DEPTH_MAX - 1)
_NAMES: Final = ("a", "b", "n")


def deep_json(chooser: random.Random, depth: int) -> str:
    """A value of so many levels, of arrays, objects, or both."""
    kinds = chooser.choice(("[", "{", "[{", "[[[{", "[;"))
    opened = [kinds[level % len(kinds)] for level in range(depth)]
    text = chooser.choice(("1", '"a"', "[]", '{"$numberLong":"5"}') if depth else ("1",))
    if text == "[]":
        opened = opened[1:]
    for kind in reversed(opened):
        text = f'{{"{chooser.choice("aab")}":{text}}}' if kind == "{" else f"[{text},1]" if kind == ";" else f"[{text}]"
    return text


class Depths(Groups):
    """Stages that mostly deepen."""

    def text(self) -> bytes:
        """A record."""
        chooser = self._chooser
        fields = [
            f'"{name}":{deep_json(chooser, chooser.choice(_DEPTHS))}'
            for name in chooser.sample(_NAMES, chooser.randint(1, 3))
        ]
        return ("{" + ",".join((*fields, f'"k":{chooser.randint(0, 3)}')) + "}").encode()

    def path(self) -> str:
        """Of the deep fields, mostly short, and as long as paths may be."""
        chooser = self._chooser
        if chooser.random() < 0.05:
            return ".".join(["n", *chooser.choice("ab") * chooser.choice((50, 199))])
        return ".".join(
            [chooser.choice(_NAMES), *(chooser.choice("ab") for _ in range(chooser.choice((0, 0, 1, 1, 2, 5))))]
        )

    def deep(self, depth: int = 3) -> Any:
        """An expression."""
        chooser = self._chooser
        if depth <= 0 or chooser.random() < 0.2:
            return chooser.choice((f"${self.path()}", f"${self.path()}", "$$ROOT", "$$CURRENT", {"$literal": [[1]]}))
        inner, other = self.deep(depth - 1), self.deep(depth - 2)
        around: Any = inner
        for _ in range(chooser.choice((1, 5, 30))):
            around = [around] if chooser.random() < 0.5 else {"a": around}
        times = {"$range": [0, chooser.choice((2, 60, 160, 400))]}
        return chooser.choice((
            around, [inner, other], {"a": inner, "b": other}, {"$ifNull": [inner, other]},
            {"$cond": [{"$eq": [inner, other]}, inner, other]},
            {"$reduce": {"input": times, "initialValue": inner, "in": chooser.choice((["$$value"], [["$$value"], 1], {"a": "$$value"}))}},
            {"$reduce": {"input": times, "initialValue": inner, "in": {"$concatArrays": [["$$value"]]}}},
            {"$map": {"input": [inner, other], "in": chooser.choice((["$$this"], {"a": "$$this.a"}, {"$type": "$$this"}))}},
            {"$filter": {"input": [inner, other], "cond": {"$ne": ["$$this", inner]}}},
            {"$mergeObjects": [{"a": inner}, {"b": other}]}, {"$concatArrays": [[inner], [other]]}, {"$setUnion": [[inner], [other]]},
            {"$setField": {"field": "a", "input": {"b": other}, "value": inner}}, {"$arrayToObject": [[["a", inner]]]},
            {"$objectToArray": {"a": inner}}, {"$zip": {"inputs": [[inner], [other]]}}, {"$in": [inner, [other]]},
            {"$let": {"vars": {"v": inner}, "in": chooser.choice(([["$$v"]], "$$v.a", {"$eq": ["$$v", other]}))}},
            {"$cmp": [inner, other]}, {"$type": inner}, {"$size": [[inner]]}, {"$reverseArray": [[inner, other]]},
        ))  # fmt: skip

    def _simple(self) -> Any:
        return self.deep()

    def query(self, depth: int = 1, *, within: bool = False) -> dict[str, Any]:
        """One that looks into what is deep."""
        chooser = self._chooser
        if chooser.random() < 0.5 and not within:
            return {"$expr": self.deep()}
        return {
            self.path(): chooser.choice((
                {"$elemMatch": {"$ne": 5}}, {"$ne": [[1]]}, {"$in": [[], 1]}, {"$exists": True}, {"$size": 1}, {"$gt": {}},
            ))
        }  # fmt: skip

    def stage(self) -> dict[str, Any]:
        """One stage."""
        chooser = self._chooser
        if chooser.random() < 0.1:
            return {"$setStreamMeta": {"stream.m": self._value_of(self.deep())}}
        if chooser.random() < 0.1:
            name = chooser.choice(_NAMES)
            return {
                chooser.choice(("$set", "$project")): {f"{name}.{chooser.choice('ab')}": f"${chooser.choice(_NAMES)}"}
            }
        return super().stage()

    def lookup(self) -> dict[str, Any]:
        """In documents that are deep."""
        chooser = self._chooser
        table = [
            {"k": 1, "n": _nested(chooser.choice((1, 140, 150, 177, 178, 179)))} for _ in range(chooser.choice((1, 2)))
        ]
        inner = [self.stage() for _ in range(chooser.choice((0, 1)))]
        if chooser.random() < 0.4:
            inner.append(self.group())
        more = {"let": {"v": self._value_of(self.deep())}, "pipeline": inner} if chooser.random() < 0.6 else {}
        if more and chooser.random() < 0.5:
            inner.insert(0, {"$match": {"$expr": {"$eq": ["$n", "$$v"]}}})
        found = {"from": {"documents": table}, "as": self.path(), **more}
        return {
            "$lookup": found | ({"localField": "k", "foreignField": "k"} if not more or chooser.random() < 0.5 else {})
        }

    def order(self) -> list[dict[str, Any]]:
        """Nothing, or by all that is there."""
        return [] if self._chooser.random() < 0.6 else [{"$sort": {self.path(): 1, "ts": 1, "i": 1}}]


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value
