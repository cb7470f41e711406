"""How code could reach the outside past the ports: time, tasks, threads, choices, files. Names are followed to their imports.

What cannot be seen in the text (an object that is handed in and happens to be a thread) is the ports' business.
"""

import ast
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

IMPURE_MODULES: Final = frozenset(
    {
        "aiohttp",
        "aiokafka",
        "asyncio",
        "builtins",
        "concurrent",
        "ctypes",
        "fsspec",
        "glob",
        "http",
        "importlib",
        "io",
        "logging",
        "multiprocessing",
        "numpy.random",
        "os",
        "pathlib",
        "platform",
        "pyarrow.csv",
        "pyarrow.dataset",
        "pyarrow.fs",
        "pyarrow.json",
        "pyarrow.parquet",
        "queue",
        "random",
        "requests",
        "secrets",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "sqlalchemy",
        "sqlite3",
        "ssl",
        "structlog",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "warnings",
    }
)
IMPURE_CALLS: Final = frozenset({"open", "print", "input", "exec", "eval", "breakpoint", "__import__"})
CLOCK_READS: Final = frozenset({"now", "utcnow", "today"})
CLOCK_TYPES: Final = frozenset({"datetime", "date", "Timestamp"})
CLOCKS_OF_ASYNCIO: Final = frozenset(
    {"asyncio.sleep", "asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for", "asyncio.wait"}
)
TASK_STARTS: Final = frozenset(
    {
        "create_task",
        "ensure_future",
        "run_in_executor",
        "to_thread",
        "call_later",
        "call_at",
        "TaskGroup",
        "start_new_thread",
    }
)
TASKS_OF_ASYNCIO: Final = frozenset(
    {
        "asyncio.gather",
        "asyncio.as_completed",
        "asyncio.shield",
        "asyncio.run",
        "asyncio.Runner",
        "asyncio.run_coroutine_threadsafe",
    }
)
THREADS: Final = frozenset(
    {"run_in_executor", "to_thread", "start_new_thread", "ThreadPoolExecutor", "ProcessPoolExecutor"}
)
THREAD_MODULES: Final = ("threading.", "multiprocessing.", "subprocess.", "_thread.")
LOCKS: Final = frozenset(
    {"threading.Lock", "threading.RLock", "threading.Event", "threading.Condition", "threading.local"}
)
PROCESSES_OF_OS: Final = frozenset({"os.fork", "os.system", "os.popen", "os.posix_spawn", "os.spawnv", "os.execv"})


@dataclass(frozen=True, slots=True)
class Found:
    """What breaks a rule: the line, and what stands there."""

    line: int
    what: str


@functools.lru_cache(maxsize=1)
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a tree; those of the latest are kept, because all rules look at one file in turn."""
    return tuple(ast.walk(tree))


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each imported module with its line, wherever the import stands; ``from a import b`` gives ``a.b``."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module or ''}.{alias.name}") for alias in node.names)


@functools.lru_cache(maxsize=1)
def calls(tree: ast.Module) -> tuple[tuple[ast.Call, str, str], ...]:
    """Each call with what it is called on (``asyncio``; empty for a plain name) and its name (``sleep``)."""
    return tuple(_calls(tree))


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str, str]]:
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node, ast.unparse(node.func.value), node.func.attr
            elif isinstance(node.func, ast.Name):
                yield node, "", node.func.id


def _origins(tree: ast.Module) -> dict[str, str]:
    """What names stand for: `aio` for `asyncio`, `nap` for `asyncio.sleep`."""
    found: dict[str, str] = {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: f"{node.module or ''}.{a.name}" for a in node.names}
    return found


def followed_calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Each call with the full name of what is called, as far as imports tell: `asyncio.sleep`, whatever it is called here."""
    origins = _origins(tree)
    for call, owner, name in calls(tree):
        first, dot, rest = (f"{owner}.{name}" if owner else name).partition(".")
        yield call, origins.get(first, first) + dot + rest


def _within(module: str, names: frozenset[str]) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in names)


def impure(tree: ast.Module) -> Iterator[Found]:
    """Clocks, choices, environment, files, logs."""
    for line, module in imports(tree):
        if _within(module, IMPURE_MODULES):
            yield Found(line, f"imports {module.removesuffix('.*')}")
    for call, name in followed_calls(tree):
        if name in IMPURE_CALLS or _within(name, frozenset({"numpy.random"})):
            yield Found(call.lineno, f"calls {name}()")


def clock_is_read(tree: ast.Module) -> Iterator[Found]:
    """Time from anywhere but the Clock port."""
    for line, module in imports(tree):
        if module.split(".")[0] == "time":
            yield Found(line, "imports time")
    for call, name in followed_calls(tree):
        owner, _, last = name.rpartition(".")
        if last in CLOCK_READS and owner.split(".")[-1] in CLOCK_TYPES:
            yield Found(call.lineno, f"calls {name}()")
        elif last == "time" and "loop" in owner.lower():
            yield Found(call.lineno, f"reads the loop's clock by {name}()")
        elif name in CLOCKS_OF_ASYNCIO and not _is_without_time(call, name):
            yield Found(call.lineno, f"calls {name}()")


def _is_without_time(call: ast.Call, name: str) -> bool:
    """A turn of the loop, or waiting for others without an end."""
    if name == "asyncio.wait":
        return all(keyword.arg != "timeout" for keyword in call.keywords)
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def task_is_started(tree: ast.Module) -> Iterator[Found]:
    """Concurrency from anywhere but the Executor port."""
    for call, name in followed_calls(tree):
        if name.rpartition(".")[2] in TASK_STARTS or name in TASKS_OF_ASYNCIO:
            yield Found(call.lineno, f"calls {name}()")


def thread_is_started(tree: ast.Module) -> Iterator[Found]:
    """Threads, processes, and sleeping ones."""
    for call, name in followed_calls(tree):
        started = name.startswith(THREAD_MODULES) and name not in LOCKS
        if started or name.rpartition(".")[2] in THREADS or name in PROCESSES_OF_OS or name == "time.sleep":
            yield Found(call.lineno, f"calls {name}()")


def on_tree(check: Callable[[ast.Module], Iterator[Found]]) -> Callable[..., Iterator[Found]]:
    """A check of a file by its tree."""
    return lambda source: check(source.tree)
