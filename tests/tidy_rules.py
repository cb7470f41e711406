"""The rules of the house that a machine can check, as a table: who is bound, what is looked for, what to do instead.

``tests/test_tidy.py`` applies each rule to the tree, and to a snippet that breaks it. A new rule is a check of a few lines
and a row in ``RULES``, with its two snippets in the test.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tests import tidy_outside as outside
from tests.tidy_outside import Found, calls, imports, nodes, on_tree

ROOT: Final = Path(__file__).resolve().parents[1]
TOP_FOLDERS: Final = ("services", "shared", "spark_stages", "deploy", "tests")
FILE_LINES_MAX: Final = 620
FUNCTION_LINES_MAX: Final = 70
README_LINES_MAX: Final = 80

# --- who may import whom: ARCHITECTURE.md's table ---------------------------------------------------------------------

_SHARED: Final = (
    "model", "compiled", "protocol", "wire", "language", "computation", "operators", "planning", "plugins", "ports", "adapters", "runtime",
    "process",
)  # fmt: skip
_ALL_SHARED: Final = frozenset(f"tidemark.shared.{name}" for name in _SHARED)
MAY_IMPORT: Final[dict[str, frozenset[str]]] = {
    "tidemark.shared.model": frozenset(),
    "tidemark.shared.compiled": frozenset({"tidemark.shared.model"}),
    "tidemark.shared.protocol": frozenset({"tidemark.shared.model"}),
    "tidemark.shared.wire": frozenset({"tidemark.shared.model"}),
    "tidemark.shared.language": frozenset({"tidemark.shared.model", "tidemark.shared.compiled"}),
    "tidemark.shared.computation": frozenset({"tidemark.shared.model", "tidemark.shared.language"}),
    "tidemark.shared.operators": frozenset(
        {"tidemark.shared.model", "tidemark.shared.compiled", "tidemark.shared.language", "tidemark.shared.computation"}
    ),
    "tidemark.shared.planning": frozenset(
        {"tidemark.shared.model", "tidemark.shared.language", "tidemark.shared.operators"}
    ),
    "tidemark.shared.plugins": frozenset(
        {"tidemark.shared.model", "tidemark.shared.language", "tidemark.shared.computation"}
    ),
    "tidemark.shared.ports": frozenset({"tidemark.shared.model"}),
    "tidemark.shared.adapters": frozenset(
        {"tidemark.shared.model", "tidemark.shared.compiled", "tidemark.shared.wire", "tidemark.shared.ports"}
    ),
    "tidemark.shared.runtime": _ALL_SHARED - {"tidemark.shared.adapters", "tidemark.shared.process"},
    "tidemark.shared.process": _ALL_SHARED,
    "tidemark.spark_stages": frozenset({"tidemark.shared.model", "tidemark.shared.operators"}),
    "tidemark.deploy": frozenset({"tidemark.shared.computation", "tidemark.shared.language"}),
    # The example is another package: it sees what is public.
    "tidemark.deploy.plugins": frozenset(
        {
            "tidemark.plugins",
            "tidemark.testing",
            *(f"tidemark.{name}" for name in ("Computation", "Document", "Record", "Timer", "Timers")),
        }
    ),
}
# The harness runs a computation as the operator would.
HARNESS: Final = "shared/computation/harness"
MAY_IMPORT_ALL: Final = (
    "services/cli/",
    "services/local/",
    "services/library/",
    "services/audit/",
    "services/backup/",
    "tidemark/",
    "tests/",
)
OURS: Final = ("tidemark", "shared", "services", "spark_stages", "deploy")

PURE: Final = ("shared/protocol/", "shared/operators/")
# What is driven by ports and so runs on virtual time. Adapters are the outside itself; cli and local start the rest.
DRIVEN: Final = ("shared/", "services/", "spark_stages/")
NOT_DRIVEN: Final = ("shared/adapters/", "services/local/", "services/cli/", "services/library/")
# Where a process begins: there is no loop yet to ask for.
ENTRIES: Final = ("shared/process/host.py", "services/audit/program.py")
EXECUTORS: Final = (
    "shared/adapters/executor.py",
    "shared/adapters/children.py",
    "shared/adapters/clock.py",
    "shared/adapters/virtual.py",
    "services/control/programs.py",
    "shared/compiled/__main__.py",
    "shared/compiled/linking.py",
    "shared/process/protobuf_compiler.py",
    "spark_stages/beginning.py",
    "services/local/",
    "services/cli/",
    "services/library/",
)

LEFT_OUT: Final = frozenset({"skip", "skipif", "xfail", "importorskip"})

# Composed, so that this file does not hold what it looks for.
_NOTES: Final = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
_ADDRESS: Final = re.compile(r"https?:" + r"//|--(?:extra-)?index-url|--find-links|--trusted-host")
_MACHINE_PATH: Final = re.compile(r"(?<![\w.~/-])/(?:work|root|home|Users|farm)/[\w.]")


@dataclass(frozen=True)
class Source:
    """A file of the tree. ``path`` is relative to the project, with slashes; ``tree`` is that of a Python file."""

    path: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(self.text, self.path)
        except SystemError:
            # All threads of CPython 3.11 share one count of depth: another one was parsing, too.
            return ast.parse(self.text, self.path)

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    def within(self, *places: str) -> bool:
        """Whether the file is one of the places or lies in one (a folder ends with a slash)."""
        return any(self.path.startswith(place) if place.endswith("/") else self.path == place for place in places)


Check = Callable[[Source], Iterator[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name, which files it binds, how it is checked, and what to do at a finding."""

    name: str
    binds: Callable[[Source], bool]
    check: Check
    remedy: str

    def findings(self, source: Source) -> list[str]:
        """Each as ``file:line: rule: what was found; what to do``."""
        if not self.binds(source):
            return []
        return [f"{source.path}:{found.line}: {self.name}: {found.what}; {self.remedy}" for found in self.check(source)]


# --- what the checks look at ------------------------------------------------------------------------------------------


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods, nested ones too."""
    return (node for node in nodes(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def package_of(path: str) -> str:
    """The row of the import table that binds a file."""
    parts = PurePosixPath(path).parts
    deep = (parts[0] in {"shared", "services"} or parts[:2] == ("deploy", "plugins")) and len(parts) > 2
    return ".".join(("tidemark", *parts[: 1 + deep]))


# --- the checks -------------------------------------------------------------------------------------------------------


def import_directions(source: Source) -> Iterator[Found]:
    """Imports of ours that the table does not allow."""
    package = package_of(source.path)
    allowed = {package}
    if package.startswith("tidemark.services."):
        allowed |= _ALL_SHARED | ({"tidemark.spark_stages"} if package == "tidemark.services.spark" else set())
    elif package in MAY_IMPORT:
        allowed |= MAY_IMPORT[package]
    if source.path.startswith(HARNESS):
        allowed.add("tidemark.shared.operators")
    for line, module in imports(source.tree):
        if module.split(".")[0] in OURS and not any(f"{module}.".startswith(f"{name}.") for name in allowed):
            yield Found(line, f"{package} imports {module}")


def pyspark_is_imported(source: Source) -> Iterator[Found]:
    for line, module in imports(source.tree):
        if module.split(".")[0] in {"pyspark", "py4j"}:
            yield Found(line, f"imports {module}")


def sleeps(source: Source) -> Iterator[Found]:
    for call, owner, name in calls(source.tree):
        if name == "sleep" and owner in {"time", "asyncio", ""} and call.args:
            length = call.args[0]
            if owner == "time" or (isinstance(length, ast.Constant) and length.value):
                yield Found(call.lineno, f"calls {ast.unparse(call)}")


def file_is_long(source: Source) -> Iterator[Found]:
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield Found(lines, f"{lines} lines, expected at most {FILE_LINES_MAX}")


def function_is_long(source: Source) -> Iterator[Found]:
    for function in functions(source.tree):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield Found(function.lineno, f"{function.name} has {lines} lines, expected at most {FUNCTION_LINES_MAX}")


def module_is_unexplained(source: Source) -> Iterator[Found]:
    if not ast.get_docstring(source.tree):
        yield Found(1, "the module has no docstring")


def a_test_is_unexplained(source: Source) -> Iterator[Found]:
    for function in functions(source.tree):
        if function.name.startswith("test") and not ast.get_docstring(function):
            yield Found(function.lineno, f"{function.name} has no docstring")


def prints(source: Source) -> Iterator[Found]:
    for call, owner, name in calls(source.tree):
        if not owner and name == "print":
            yield Found(call.lineno, "calls print()")


def exception_is_swallowed(source: Source) -> Iterator[Found]:
    for node in nodes(source.tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield Found(node.lineno, "a bare except")
            elif all(isinstance(line, ast.Pass) or _is_ellipsis(line) for line in node.body):
                yield Found(node.lineno, f"except {ast.unparse(node.type)} that does nothing")
    for call, _, name in calls(source.tree):
        if name == "suppress" and any(ast.unparse(kind) in {"Exception", "BaseException"} for kind in call.args):
            yield Found(call.lineno, f"calls {ast.unparse(call)}")


def _is_ellipsis(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and line.value.value is ...


def is_a_stub(source: Source) -> Iterator[Found]:
    for node in nodes(source.tree):
        if isinstance(node, ast.Raise) and node.exc and ast.unparse(node.exc).startswith("NotImplemented" + "Error"):
            yield Found(node.lineno, "raises NotImplemented" + "Error")


def a_test_is_left_out(source: Source) -> Iterator[Found]:
    for node in nodes(source.tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in LEFT_OUT
            and ast.unparse(node).startswith(("pytest.", "unittest."))
        ):
            yield Found(node.lineno, ast.unparse(node))


def _lines_with(pattern: re.Pattern[str], what: str) -> Check:
    def check(source: Source) -> Iterator[Found]:
        for number, line in enumerate(source.text.splitlines(), start=1):
            if found := pattern.search(line):
                yield Found(number, f"{what} {found.group(0)!r}")

    return check


def _python(*places: str, but: tuple[str, ...] = ()) -> Callable[[Source], bool]:
    return lambda source: (
        source.is_python and (not places or source.within(*places)) and not (bool(but) and source.within(*but))
    )


def _is_lock(source: Source) -> bool:
    return source.path.endswith(".lock") or PurePosixPath(source.path).name.startswith("requirements")


def queue_is_unbounded(source: Source) -> Iterator[Found]:
    """Queues without a size, and caches that keep everything."""
    for node in nodes(source.tree):
        if isinstance(node, ast.Call):
            name, unsized = ast.unparse(node.func), not node.args and not node.keywords
            everything = any(k.arg == "maxsize" and ast.unparse(k.value) == "None" for k in node.keywords)
            if (name.endswith("Queue") and unsized) or (name.endswith("lru_cache") and (unsized or everything)):
                yield Found(node.lineno, f"{name} without a bound")
        elif isinstance(node, ast.FunctionDef) and any(
            ast.unparse(d) in ("cache", "functools.cache") for d in node.decorator_list
        ):
            yield Found(node.lineno, f"{node.name} keeps every answer")


RULES: Final = (
    Rule("import direction", _python(but=MAY_IMPORT_ALL), import_directions,
         "ask for it through a port or a parameter, or move the code; the table is in ARCHITECTURE.md"),
    Rule("pyspark", _python("shared/", "services/", "deploy/", but=("services/spark/",)), pyspark_is_imported,
         "only spark_stages and services/spark know Spark"),
    Rule("pure", _python(*PURE), on_tree(outside.impure),
         "let time, choices and bytes come in with the event, and return a command for what shall be done"),
    Rule("clock", _python(*DRIVEN, but=NOT_DRIVEN), on_tree(outside.clock_is_read), "ask the Clock port, which may be virtual"),
    Rule("task", _python(*DRIVEN, but=(*NOT_DRIVEN, *ENTRIES)), on_tree(outside.task_is_started), "start it through the Executor port"),
    Rule("thread", _python("shared/", "services/", "spark_stages/", but=EXECUTORS), on_tree(outside.thread_is_started),
         "hand blocking work to the Executor port, and waiting to the Clock port"),
    Rule("sleep in a test", _python("tests/"), sleeps, "wait on an event, or use virtual time"),
    Rule("file length", _python(), file_is_long, "find the second thing that it does and give it a file"),
    Rule("function length", _python(), function_is_long, "name its steps and make each a function"),
    Rule("module docstring", _python(), module_is_unexplained, "say what it is for and which rules it keeps"),
    Rule("test docstring", _python("tests/"), a_test_is_unexplained, "say in a line what must hold"),
    Rule("queue without a bound", _python(*DRIVEN), queue_is_unbounded, "give it the bound that a setting names"),
    Rule("print", _python("shared/", "spark_stages/"), prints, "log an event, or return the text"),
    Rule("swallowed exception", _python(), exception_is_swallowed,
         "handle it, let it pass, or name the kind in contextlib.suppress with the reason beside it"),
    Rule("stub", _python(), is_a_stub, "write it, or leave it out"),
    Rule("test left out", _python("tests/"), a_test_is_left_out, "make it pass, or remove it with what it tested"),
    Rule("note to self", lambda _: True, _lines_with(_NOTES, "found"), "do it now, or leave it out"),
    Rule("path of a machine", lambda _: True, _lines_with(_MACHINE_PATH, "found"), "take a relative path or a setting"),
    Rule("address in a lock", _is_lock, _lines_with(_ADDRESS, "found"),
         "leave addresses to the installer's settings (make lock writes none)"),
)  # fmt: skip


# --- the tree ---------------------------------------------------------------------------------------------------------

_TEXT: Final = frozenset(
    [
        ".py",
        ".md",
        ".toml",
        ".lock",
        ".txt",
        ".yaml",
        ".yml",
        ".json",
        ".jsonl",
        ".properties",
        ".sh",
        ".html",
        ".css",
        ".js",
        ".ini",
        ".cfg",
    ]
) | {""}
_NOT_OURS: Final = frozenset({"__pycache__", "node_modules", ".git"})


@functools.cache
def sources() -> tuple[Source, ...]:
    """All text files that belong to the project: its top folders, and the files beside them."""
    beside = [path for path in ROOT.iterdir() if path.is_file()] + list((ROOT / ".ci").iterdir())
    inside = [path for folder in (*TOP_FOLDERS, "tidemark") for path in (ROOT / folder).rglob("*") if path.is_file()]
    kept = (path for path in beside + inside if path.suffix in _TEXT and _NOT_OURS.isdisjoint(path.parts))
    return tuple(Source(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in sorted(kept))


def packages_without_readme() -> list[str]:
    """Top folders with code, and the packages right below them, whose README.md is missing or longer than a page."""
    top = [ROOT / folder for folder in TOP_FOLDERS if (ROOT / folder).is_dir()]
    below = [path for folder in top if folder.name != "tests" for path in sorted(folder.iterdir())]
    findings = []
    for folder in top + [path for path in below if path.is_dir() and any(path.glob("*.py"))]:
        readme = folder / "README.md"
        name = readme.relative_to(ROOT)
        if not readme.exists():
            findings.append(f"{name}:1: readme: missing; say in a page what is where and what may import it")
        elif (lines := len(readme.read_text(encoding="utf-8").splitlines())) > README_LINES_MAX:
            findings.append(f"{name}:{lines}: readme: {lines} lines; a page is at most {README_LINES_MAX}")
    return findings
