"""How a stage is declared: its documentation, its options (or a reader of its own), and what it is built into."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemark.shared.language.documents.kinds import Option, Read, closed_schema, read_options
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import join

Tree: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A stage by name. `read(tree, path, scope)` gives the stage, or None after noting errors; `schema` is its JSON Schema."""

    doc: str
    read: Callable[[Tree, str, Scope], Any]
    schema: Mapping[str, Any]


def with_options(doc: str, options: tuple[Option, ...], build: Callable[[Read, str, Scope], Any]) -> StageSpec:
    """A stage that takes a closed object; `build` is called only if all options were read without an error."""

    def read(tree: Tree, path: str, scope: Scope) -> Any:
        before = len(scope.problems.errors)
        found = read_options(tree, path, scope, options)
        return None if len(scope.problems.errors) > before else build(found, path, scope)

    return StageSpec(doc, read, closed_schema(options))


def read_stage(
    tree: Tree, path: str, scope: Scope, specs: Mapping[str, StageSpec], elsewhere: Mapping[str, str]
) -> Any:
    """One stage of a pipeline: an object with one key, of those in `specs`; `elsewhere` says of others where they belong."""
    if type(tree) is not dict or len(tree) != 1:
        found = f"{len(tree)} keys: {', '.join(map(str, list(tree)[:4]))}" if type(tree) is dict else repr(tree)[:80]
        scope.problems.add(path, f"a stage is an object with one key, such as {{$match: …}}; found {found}")
        return None
    name = next(iter(tree))
    place = join(path, name)
    if name in elsewhere and name not in specs:
        scope.problems.add(place, f"{name} {elsewhere[name]}")
        return None
    spec = specs.get(name)
    if spec is None:
        scope.problems.add(place, f"unknown stage {name}", accepted=sorted(specs), found=name)
        return None
    before = len(scope.problems.errors)
    stage = spec.read(tree[name], place, scope)
    return None if len(scope.problems.errors) > before else stage
