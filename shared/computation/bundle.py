"""The code of a processor's computations as one value: the modules of their classes and what these import, with a digest.

A processor's plan carries it, so that all its workers run the same code, even if files are edited meanwhile.

- A bundle has the user's own modules: Python sources that are found on the path, and are neither the standard library's, nor of an
  installed package, nor the product's. They are found by the names in import statements, from file to file, and nothing is run for it.
- It does not have modules imported by a name that is made at run time, compiled modules, or data files beside the modules: these are
  each worker's own, as installed packages are.
- A class whose module is nowhere on the path is refused; what it imports may be missing: the worker that runs it says so.
- The digest is that of names and sources: the same code at another place is the same.
"""

import ast
import hashlib
import importlib
import os
import site
import sys
import sysconfig
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

import msgspec

from tidemark.shared.computation.problems import ClassError, ComputationError
from tidemark.shared.model.formats import MODULES, Codec, FormatError

PRODUCT: Final = "tidemark"
"""The package that every worker has; of it, the examples' computations alone are as a user's own."""
EXAMPLES: Final = f"{PRODUCT}.deploy"
UNPACKED_BYTES_MAX: Final = 8 << 20
"""Of all sources of a bundle."""
_loading: Final = threading.Lock()


class Module(msgspec.Struct, frozen=True, array_like=True):
    """One module of a bundle."""

    name: str
    package: bool
    source: str
    path: str
    """Where it was found: the module's `__file__`."""


_CODEC: Final[Codec[list[Module]]] = Codec(MODULES, list[Module])


class Bundle(msgspec.Struct, frozen=True):
    """Modules, in the order of their names; none where a class's module is each worker's own."""

    packed: bytes = b""
    digest: str = ""
    """SHA-256 of names and sources, hexadecimal."""


def bundle_of(classes: Iterable[str], search: Sequence[str] | None = None) -> Bundle:
    """The code of classes (`module:Class`), found on the path `search`, or on this process'.

    ComputationError for invalid Python, and for a class whose module is nowhere.
    """
    paths = list(classes)
    names = {path.partition(":")[0] for path in paths}
    with _loading:
        found = _found(names, search) if names else {}
        if search is None:
            for path in paths:
                name, colon, _ = path.partition(":")
                if colon and name not in found:
                    _check_is_somewhere(path, name)
    if not found:
        return Bundle()
    modules = [found[name] for name in sorted(found)]
    size = sum(len(module.source) for module in modules)
    if size > UNPACKED_BYTES_MAX:
        message = (
            f"the code of the computations has {size} characters in {len(modules)} modules; at most {UNPACKED_BYTES_MAX} are kept with"
            " a processor: install what does not change as a package"
        )
        raise ComputationError(message)
    digest = hashlib.sha256(msgspec.msgpack.encode([(m.name, m.package, m.source) for m in modules])).hexdigest()
    return Bundle(zlib.compress(_CODEC.encode(modules), 9), digest)


def _check_is_somewhere(path: str, name: str) -> None:
    """By the first name, for which nothing is imported. ClassError."""
    top, given = name.partition(".")[0], os.environ.get("PYTHONPATH") or "none"
    with suppress(ValueError):  # a module of this process without a spec
        if find_spec(top) is None:
            message = (
                f"class {path!r}: module {top} is not found by the installation: expected it in the folder where the installation was"
                f" started (here {Path.cwd()}), on the PYTHONPATH it was started with ({given}), or installed"
            )
            raise ClassError(message)


def _found(names: Iterable[str], search: Sequence[str] | None) -> dict[str, Module]:
    """The users' modules of these names, and what they import. One thread at a time: neither Python's finders nor its paths are for two."""
    waiting, found = sorted(names), dict[str, Module]()
    importlib.invalidate_caches()
    outside = _outside()
    while waiting:
        name = waiting.pop()
        if name in found or _products(name):
            continue
        if (module := _find(name, search, outside)) is not None:
            found[name] = module
            waiting += _imported(module)
    return found


def modules_of(packed: bytes) -> list[Module]:
    """The modules of a bundle. ComputationError for bytes that are none."""
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(packed, 4 * UNPACKED_BYTES_MAX)
        return _CODEC.decode(data)
    except (zlib.error, FormatError) as error:
        raise ClassError(f"the code of the plan cannot be read: {error}") from error


def import_from(packed: bytes, name: str) -> ModuleType:
    """Import a module. Modules of the bundle are loaded from it, anew, and stand for their names in this process from here on.

    With two versions in one process, an import inside a function gets the version loaded last. A process of its own has one.
    """
    if not packed:
        return importlib.import_module(name)
    with _loading:
        modules = {module.name: module for module in modules_of(packed)}
        for finder in [f for f in sys.meta_path if isinstance(f, _Finder)]:
            if finder.modules.keys() & modules.keys():
                sys.meta_path.remove(finder)
        for known in modules:
            sys.modules.pop(known, None)
        sys.meta_path.insert(0, _Finder(modules))
        return importlib.import_module(name)


class _Finder(MetaPathFinder, InspectLoader):
    """Gives the modules of a bundle."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        module = self.modules.get(fullname)
        if module is None:
            return None
        spec = spec_from_loader(fullname, self, origin=module.path, is_package=module.package)
        if spec is not None and module.package:
            spec.submodule_search_locations = [str(Path(module.path).parent)]
        if spec is not None:
            spec.has_location = True
        return spec

    def is_package(self, fullname: str) -> bool:
        return self.modules[fullname].package

    def get_source(self, fullname: str) -> str:
        return self.modules[fullname].source

    def get_code(self, fullname: str) -> CodeType:
        module = self.modules[fullname]
        return self.source_to_code(module.source, module.path)


def _products(name: str) -> bool:
    return name.partition(".")[0] == PRODUCT and not f"{name}.".startswith(f"{EXAMPLES}.")


def _outside() -> tuple[Path, ...]:
    """Folders of installed packages and of Python itself."""
    paths = sysconfig.get_paths()
    named = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(Path(path).resolve() for path in (*named, *site.getsitepackages(), site.getusersitepackages()))


def _find(name: str, search: Sequence[str] | None, outside: tuple[Path, ...]) -> Module | None:
    """A user's module; None for any other, and for a name that is not found. Packages above it are looked at, not imported."""
    locations: Sequence[str] | None = search
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for depth, part in enumerate(parts):
        # By the last name alone: of a folder without __init__.py the finder would ask for the module above, which is not imported.
        spec = PathFinder.find_spec(part, locations)
        if spec is None:
            return None
        locations = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if locations is None and depth + 1 < len(parts):
            return None
    assert spec is not None
    if spec.origin is None:  # a folder without __init__.py
        places = locations or []
        return (
            Module(name, True, "", f"{places[0]}/__init__.py") if places and _users(Path(places[0]), outside) else None
        )
    path = Path(spec.origin)
    if path.suffix != ".py" or not _users(path, outside):
        return None
    if path.stat().st_size > UNPACKED_BYTES_MAX:
        raise ComputationError(f"module {name} ({path}): expected at most {UNPACKED_BYTES_MAX} bytes of source")
    return Module(name, spec.submodule_search_locations is not None, path.read_text(encoding="utf-8"), str(path))


def _users(path: Path, outside: tuple[Path, ...]) -> bool:
    resolved = path.resolve()
    return not any(resolved.is_relative_to(folder) for folder in outside)


def _imported(module: Module) -> Iterator[str]:
    """Names that its import statements may mean, wherever they stand: packages, modules, and names that may be modules."""
    yield from _and_above(module.name)
    try:
        tree = ast.parse(module.source, module.path)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ClassError(f"module {module.name} ({module.path}) is no Python: {error}") from error
    inside = module.name if module.package else module.name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _and_above(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = inside.split(".")[: len(inside.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            if base:
                yield from _and_above(base)
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _and_above(name: str) -> Iterator[str]:
    """A module and the packages that it is in."""
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
