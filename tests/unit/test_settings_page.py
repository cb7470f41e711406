"""`shared/process/SETTINGS.md` names every number that may be set, with its default; what is fixed says why where it stands."""

import ast
import importlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tidemark.shared.model.settings import knobs_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = "shared/process/SETTINGS.md"
OF_COMMANDS = {"DemoSettings", "SparkSettings"}
"""Settings that are a command's arguments alone, or add no number to those they build on."""
OPEN = {"Limits", "ProcessSettings"}
"""What may be set wholly: by a document, by variables of their own."""
_BOUNDING = re.compile(
    r"(^|_)(MAX|LIMIT|ATTEMPTS|TRIES|TIMEOUT|RETRY|WAIT|ROWS|BYTES|RECORDS|CHARS|DIGITS|TASKS|KEYS|RUNS|MS|S)(_|$)"
)
_DEQUE = re.compile(r"\bdeque\((?!.*maxlen)|default_factory=deque\b")
_SETTINGS = re.compile(
    r"^class ([A-Z]\w+Settings|StepBounds|TaskLimits|WireLimits|MarkerReading|Limits)\b", re.MULTILINE
)
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def product() -> Iterator[Path]:
    """The modules of the product."""
    for top in ("shared", "services", "spark_stages"):
        yield from sorted((ROOT / top).rglob("*.py"))


def shown(name: str, value: float) -> str:
    """A default as the page writes it: `16 MiB`, `5,000`."""
    if "bytes" in name and isinstance(value, int):
        for unit, size in _UNITS:
            if value >= size and value % size == 0:
                return f"{value // size:,} {unit}"
    return f"{value:,}"


@cache
def settings_classes() -> dict[str, Any]:
    """Every class of settings, by name. Looked for in the text: to parse all modules took seconds of each run's collection."""
    found = {}
    for path in product():
        for name in _SETTINGS.findall(path.read_text("utf-8")):
            if name not in OF_COMMANDS:
                module = importlib.import_module(".".join(("tidemark", *path.relative_to(ROOT).with_suffix("").parts)))
                found[name] = getattr(module, name)
    return found


def numbers(settings: Any) -> dict[str, str]:
    """The numbers of a class of settings that may be set, with their defaults, as the page shows them."""
    rows = {}
    open_to = {each.name for each in fields(settings)} if settings.__name__ in OPEN else knobs_of(settings)
    for each in fields(settings):
        if each.name not in open_to:
            continue
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if isinstance(default, int | float) and not isinstance(default, bool):
            rows[each.name] = shown(each.name, default)
        elif each.type in (int, float, "int", "float"):
            rows[each.name] = "–"
    return rows


def sections() -> dict[str, dict[str, tuple[str, ...]]]:
    """The page's tables, by the first name in code of their heading: rows by their first cell."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    rows: dict[str, tuple[str, ...]] = {}
    for line in (ROOT / PAGE).read_text("utf-8").splitlines():
        if line.startswith("## "):
            named = re.search(r"`(\w+)`", line)
            rows = found.setdefault(named[1] if named else line[3:], {})
        elif line.startswith("| `"):
            first, *others = (cell.strip() for cell in line.strip("|").split(" | "))
            assert first.strip("`") not in rows, f"{PAGE}: {first} stands twice in one table"
            rows[first.strip("`")] = tuple(others)
    return found


@pytest.mark.parametrize(
    ("name", "settings"), settings_classes().items(), ids=lambda x: x if isinstance(x, str) else ""
)
def test_every_setting_is_on_the_page_with_its_default(name: str, settings: Any) -> None:
    """The table of a class of settings has all its numbers, with their defaults, and no other."""
    assert is_dataclass(settings)
    rows = sections().get(name, {})
    assert {row: cells[0] for row, cells in rows.items()} == numbers(settings), f"{PAGE}, section `{name}`"
    assert all(len(cells) > 1 and cells[1] for cells in rows.values()), (
        f"{PAGE}, section `{name}`: each row says what it bounds"
    )


def test_every_table_of_settings_is_of_a_class_that_exists() -> None:
    """A class that is gone leaves no table behind."""
    named = {name for name in sections() if re.fullmatch(r"[A-Z][a-z]\w*", name)}
    assert named == {name for name, settings in settings_classes().items() if numbers(settings)}


def test_relations_are_between_settings_that_exist() -> None:
    """Each name in the first column of the relations is that of a setting, and one of each row may be set."""
    known = {each.name for settings in settings_classes().values() for each in fields(settings)}
    turned = {name for settings in settings_classes().values() for name in knobs_of(settings)}
    text = (ROOT / PAGE).read_text("utf-8").partition("## Relations")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 15
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} - known == set()
    assert [row for row in rows if not turned & {*re.findall(r"`(\w+)`", row)}] == []


# --- what is fixed ------------------------------------------------------------------------------------------------------


def is_number(node: ast.expr | None) -> bool:
    """Whether an expression is a number, as far as it can be read: literals, and other constants, joined by operators."""
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float)
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.Name(id=name):
            return name.isupper()
    return False


def unexplained(path: Path) -> Iterator[str]:
    """What bounds something in a module, and neither a text below nor a comment above says why: constants, deques without a length."""
    text = path.read_text("utf-8")
    lines, tree = text.splitlines(), ast.parse(text)
    bodies = [body for body in (getattr(node, "body", None) for node in ast.walk(tree)) if isinstance(body, list)]
    for node, below in (pair for body in bodies for pair in itertools.zip_longest(body, body[1:])):
        if not isinstance(node, ast.AnnAssign | ast.Assign):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        constant = isinstance(target, ast.Name) and target.id.isupper() and _BOUNDING.search(target.id)
        unbounded = node.value is not None and _DEQUE.search(ast.unparse(node.value))
        if not unbounded and not (constant and is_number(node.value)):
            continue
        told = (
            isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
        )
        if not told and not lines[node.lineno - 2].lstrip().startswith("#") and "#" not in lines[node.lineno - 1]:
            yield f"{path.relative_to(ROOT)}: {ast.unparse(target).removeprefix('self.')}"


def test_a_bound_without_a_setting_says_why() -> None:
    """Who reads a constant that bounds something finds the reason beside it."""
    found = [name for path in product() for name in unexplained(path)]
    assert found == [], "say why it is fixed: a text below it, or a comment"


def test_a_constant_without_a_setting_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search sees constants and deques."""
    (tmp_path / "example.py").write_text(
        "ROWS_MAX: Final = 7 << 2\nNAME_MAX = 'x'\nOTHER = 3\nTOLD_MAX = 9\n'''Why.'''\n# Why.\nSAID_MAX = 3\n"
        "class A:\n    def __init__(self):\n        self.held = deque()\n        self.last = deque(maxlen=3)\n"
    )
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    found = [name.partition(": ")[2] for name in unexplained(tmp_path / "example.py")]
    assert found == ["ROWS_MAX", "held"]
