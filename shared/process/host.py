"""Runs a service's coroutine in a process: logs, signals, the exit status."""

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import Any, Final, Protocol, TextIO, cast

import structlog

from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.language.redaction import redacted
from tidemark.shared.ports.commits import StoreUnusable
from tidemark.shared.process.allocator import few_heaps, keep_freed
from tidemark.shared.process.logged import Lines, Repeats, for_people
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, read_settings
from tidemark.shared.runtime.settings import SettingsError

USAGE_STATUS = 2
FILES_MAX: Final = 65_536
"""What databases ask for; containers have bounds of 2^30, for which old programs that close all files of a child take minutes."""
GIVES_UP: Final = "gives up: "
"""How the last line of a process begins that would not get further if it were started again."""


class Stoppable(Protocol):
    """An object that a signal ends."""

    async def run(self) -> None:
        """Work until stopped."""
        ...

    def stop(self) -> None:
        """End `run` in good order."""
        ...


def hide_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Of every line that is logged."""
    found: dict[str, Any] = redacted(event)
    return found


def configure_logs(settings: ProcessSettings) -> None:
    """Structlog to standard error: JSON lines, or text for people; each with time, level and place, repeated warnings now and then."""
    structlog.contextvars.bind_contextvars(place=settings.place)
    lines = cast("TextIO", Lines(sys.stderr))
    renderer = structlog.processors.JSONRenderer() if settings.log_format == "json" else for_people(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            Repeats(SystemClock()),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            hide_secrets,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(lines),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=lines)


def begin(run: Callable[[ProcessSettings], int]) -> int:
    """Read the settings, send logs where they belong, and run. The exit status: that of `run`, or 2 for wrong settings."""
    try:
        settings = read_settings()
    except (ProcessSettingsError, SettingsError) as error:
        sys.stderr.write(f"{error}\n")
        return USAGE_STATUS
    configure_logs(settings)
    return run(settings)


class _WithoutPandas(MetaPathFinder):
    """Says that pandas is not there."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> None:
        if name == "pandas":
            message = "pandas is not for the processes of services; users' code has it in a process of its own"
            raise ModuleNotFoundError(message, name=name)


def serve_without_pandas(module: str) -> int:
    """As `serve`, with the `build` of a module.

    Arrow loads pandas where it is installed with the first list that becomes an array, to ask whether the list is a Series: 36 MiB and
    a third of a second of a process that has none.
    """
    sys.meta_path.insert(0, _WithoutPandas())
    return serve(import_module(module).build)


def allow_pandas() -> None:
    """For a process in which users' code runs."""
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _WithoutPandas)]


def open_many_files(most: int = FILES_MAX) -> None:
    """As many open files as the system lets this process have, up to so many.

    A shell's own bound is often 1,024, which some hundred connections and the files of a join beyond memory reach.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def serve(build: Callable[[ProcessSettings], Awaitable[Stoppable]]) -> int:
    """Build the service and run it until SIGTERM or SIGINT. The exit status: 0, 1 for a failure, 2 for settings."""

    def run(settings: ProcessSettings) -> int:
        keep_freed(settings.kept_bytes)
        few_heaps(settings.heaps)
        open_many_files()
        return asyncio.run(_run(settings, build))

    return begin(run)


@asynccontextmanager
async def _health(service: Stoppable, settings: ProcessSettings) -> AsyncIterator[None]:
    """Liveness, readiness and metrics while the service runs, if a port is set for them."""
    if settings.health_port is None:
        yield
        return
    from tidemark.shared.process.health import HealthServer  # noqa: PLC0415 - a web server is loaded where it is wanted

    server = HealthServer(service, settings)
    await server.start()
    structlog.get_logger().info("process.health", url=server.url)
    try:
        yield
    finally:
        await server.stop()


async def _run(settings: ProcessSettings, build: Callable[[ProcessSettings], Awaitable[Stoppable]]) -> int:
    log = structlog.get_logger()
    try:
        service = await build(settings)
        # Objects loaded so far stay: the collector need not look through them again and again.
        gc.collect()
        gc.freeze()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, service.stop)
        log.info("process.started")
        async with _health(service, settings):
            await service.run()
    except StoreUnusable as error:
        sys.stderr.write(f"{GIVES_UP}{error}\n")
        return 1
    except Exception as error:
        log.exception("process.failed", error=repr(error))
        return 1
    log.info("process.stopped")
    return 0
