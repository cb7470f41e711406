"""YAML or JSON text to a plain tree and the lines of its places.

YAML's types are those of JSON (YAML 1.2's core schema): `on` and `yes` are strings, dates stay strings. Anchors are allowed within a
bound, tags and further documents are not.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from tidemark.shared.language.documents.slips import doubt_of, doubt_of_nothing, unreadable
from tidemark.shared.language.problems import ERRORS_MAX, DocumentError, InvalidDocument, join

NODES_MAX: Final = 1_000_000
"""Default bound of the values in one document, aliases written out."""
DEPTH_MAX: Final = 300
"""Levels of a document: bounds the use of Python's stack."""
SIZE_MAX_BYTES: Final = 16 * 1024 * 1024
"""A document's text: bounds the input before any option is known."""
DIGITS_MAX: Final = 1_000
"""Of one whole number: reading more takes time that grows with their square."""

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_OCTAL: Final = re.compile(r"[-+]?0[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: Final = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CORE: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset(
    {"str", "int", "float", "bool", "null", "timestamp", "merge", "value", "yaml", "map", "seq"}
)  # the types that YAML 1.1 takes plain scalars for, and collections
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str) -> tuple[Any, dict[str, int]]:
    """The tree of a text, and the line of each place in it (empty for JSON). InvalidDocument if it is neither YAML nor JSON."""
    loaded = load_all(text)
    if loaded.errors:
        raise InvalidDocument(loaded.errors)
    return loaded.tree, loaded.lines


class Loaded(NamedTuple):
    """A text as it was read."""

    tree: Any
    lines: dict[str, int]
    """Of each place; empty for JSON."""
    errors: tuple[DocumentError, ...] = ()
    """Parts that may be read in two ways: names that stand twice, of which the first counts; numbers with leading zeros."""
    warnings: tuple[DocumentError, ...] = ()
    """Texts that are something else for other readers of YAML, or for people."""


def load_all(text: str) -> Loaded:
    """As `load`, but parts that may be read in two ways are reported beside the tree."""
    if len(text) > SIZE_MAX_BYTES:
        raise _invalid(f"the document has {len(text)} characters, at most {SIZE_MAX_BYTES} are allowed")
    if text.lstrip().startswith("{"):
        # Flow style YAML begins with a brace, too: if it is no JSON, YAML's parser reports the error, with the line.
        with contextlib.suppress(msgspec.DecodeError):
            twice: list[DocumentError] = []
            try:
                tree = msgspec.json.decode(text)
                json.loads(text, object_pairs_hook=lambda fields: _each_once(fields, twice), parse_int=_digits)
            except RecursionError:
                raise _too_deep() from None
            _bounded(tree)
            return Loaded(tree, {}, tuple(twice))
    try:
        # Composing calls itself for each level, in C: so depth is checked before.
        _shallow(text)
        node = yaml.compose(text, Loader=_LOADER)
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError) as e:
        raise _invalid(*unreadable(text, e)) from e
    except (yaml.YAMLError, RecursionError) as e:
        raise _invalid(f"not YAML: {e}") from e
    if node is None:
        raise _invalid("the document is empty; it needs pipeline: a list of stages that begins with $source")
    _counted(node, {})
    reader = _NodeReader()
    tree = reader.read(node, "", 0)
    return Loaded(tree, reader.lines, tuple(reader.errors), tuple(reader.warnings))


def _invalid(message: str, line: int | None = None) -> InvalidDocument:
    return InvalidDocument([DocumentError("", message, line)])


def _too_deep(line: int | None = None) -> InvalidDocument:
    return _invalid(f"the document nests too deeply: more than {DEPTH_MAX} levels", line)


def _too_many(line: int | None = None) -> InvalidDocument:
    return _invalid(f"the document has more than {NODES_MAX} values, aliases written out", line)


def _shallow(text: str) -> None:
    """InvalidDocument for YAML of too many levels; YAMLError if it is no YAML."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                raise _too_deep(event.start_mark.line + 1 if event.start_mark else None)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _counted(node: Any, known: dict[int, int]) -> int:
    """The values of a YAML node, aliases written out. InvalidDocument beyond NODES_MAX, or where an alias stands within what it names.

    known: by a node's id, 0 within it. What an alias names is counted before it: a short text that stands for very much is found at once.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1
    line = node.start_mark.line + 1
    if id(node) not in known:
        known[id(node)] = 0
        items = node.value if isinstance(node, yaml.SequenceNode) else (value for _, value in node.value)
        known[id(node)] = 1 + sum(_counted(item, known) for item in items)
        if known[id(node)] > NODES_MAX:
            raise _too_many(line)
    if not known[id(node)]:
        raise _too_deep(line)
    return known[id(node)]


def _bounded(tree: Any) -> None:
    """InvalidDocument for a JSON tree of too many levels or values."""
    level, values = [tree], 0
    for _ in range(DEPTH_MAX + 1):
        values += len(level)
        if values > NODES_MAX:
            raise _too_many()
        level = [item for value in level for item in _items(value)]
        if not level:
            return
    raise _too_deep()


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _digits(text: str, line: int | None = None) -> str:
    """The text of a whole number. InvalidDocument if it is too long to be read."""
    if len(text) > DIGITS_MAX:
        raise _invalid(f"a number of {len(text)} digits: at most {DIGITS_MAX} are read", line)
    return text


def _each_once(fields: list[tuple[str, Any]], twice: list[DocumentError]) -> None:
    """Notes the names that stand twice in an object."""
    seen: set[str] = set()
    for name, _ in fields:
        if name in seen:
            twice.append(DocumentError("", f"{name} is written twice in one object"))
        seen.add(name)


def _two_meanings(text: str) -> str:
    eighth = f", or 0o{text.lstrip('+-0')}" if set(text) <= set("+-01234567") else ""
    return f"{text} is 8-based for some readers of YAML and 10-based for others: write it without the zeros{eighth}, or in quotes"


class _NodeReader:
    """Walks YAML nodes."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.errors: list[DocumentError] = []
        self.warnings: list[DocumentError] = []

    def read(self, node: Any, path: str, depth: int) -> Any:
        """The tree of a node; notes lines by path."""
        line = node.start_mark.line + 1
        if depth > DEPTH_MAX:
            raise _too_deep(line)
        self.lines.setdefault(path, line)
        if node.tag.removeprefix(_CORE) not in _TAGS:
            raise _invalid(f"the tag {node.tag} is not allowed", line)
        if isinstance(node, yaml.ScalarNode):
            if not node.style and _OCTAL.fullmatch(node.value):
                self.errors.append(DocumentError(path, _two_meanings(node.value), line))
            value = _scalar(node)
            if isinstance(value, float) and math.isinf(value) and not _SPECIAL.fullmatch(node.value):
                self.errors.append(DocumentError(path, f"{node.value[:40]} is more than a double holds, 1.8e308", line))
            if isinstance(value, str) and not node.style:
                self._doubt(path, doubt_of(value, name=False, secret=path.startswith("connections")), line)
            return value
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(node.value)]
        fields: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            place = join(path, key)
            if key in fields:
                self.errors.append(DocumentError(place, f"{key} is written twice", key_node.start_mark.line + 1))
                continue
            self.lines[place] = line = key_node.start_mark.line + 1
            if not key_node.style:
                self._doubt(place, doubt_of(key, name=True, secret=False), line)
            if isinstance(value_node, yaml.ScalarNode) and not (value_node.style or value_node.value):
                self._doubt(place, doubt_of_nothing(key), line)
            fields[key] = self.read(value_node, place, depth + 1)
        return fields

    def _doubt(self, path: str, what: str, line: int) -> None:
        if what and len(self.warnings) < ERRORS_MAX:
            self.warnings.append(DocumentError(path, what, line))

    @staticmethod
    def _key(node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _invalid("a field name must be a scalar", node.start_mark.line + 1)
        return str(node.value)


def _scalar(node: Any) -> Any:
    text: str = node.value
    if node.style:  # quoted or a block: a string, in any form (the C parser says '' for plain)
        return text
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        _digits(text, node.start_mark.line + 1)
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    special = _SPECIAL.fullmatch(text)
    if special:
        return math.nan if special[3] else math.copysign(math.inf, -1 if special[1] == "-" else 1)
    return text
