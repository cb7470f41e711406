"""How a command ends: an expected error is one sentence for the user, and everything else goes to a log file.

While a broker is away, the libraries and the runtime log many lines a second. These belong in `logs/cli.log` of the
installation's folder, beside the services' logs, and not over the view.
"""

import asyncio
import errno
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import typer

# Their messages are written for people: place, expectation, finding, remedy. Listed by name, so that no command must import all modules.
SAID: Final = frozenset(
    {
        "tidemark.services.audit.history.AuditFailed",
        "tidemark.services.audit.reading.TooMuchHeld",
        "tidemark.services.audit.corrections.CannotRedrive",
        "tidemark.services.backup.files.BackupFailed",
        "tidemark.services.cli.demo.DemoFailed",
        "tidemark.services.local.folders.NoInstallation",
        "tidemark.services.cli.ps.NothingRuns",
        "tidemark.services.cli.reading.NoDocument",
        "tidemark.services.cli.remote.RemoteFailed",
        "tidemark.services.cli.run.RunFailed",
        "tidemark.services.local.broker.BrokerError",
        "tidemark.shared.language.problems.InvalidDocument",
        "tidemark.shared.model.failures.LogError",
        "tidemark.shared.planning.physical.PlanError",
        "tidemark.shared.ports.blobs.BlobError",
        "tidemark.shared.ports.commits.StoreUnavailable",
        "tidemark.shared.ports.commits.StoreUnusable",
        "tidemark.shared.process.settings.ProcessSettingsError",
        "tidemark.shared.runtime.client.RequestRefused",
        "tidemark.shared.runtime.client.RequestTimeout",
    }
)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_INTERRUPTED_STATUS: Final = 130


def sentence(error: BaseException) -> str | None:
    """The sentence about an error for the user; None for a defect of Tidemark, whose trace is wanted."""
    if any(f"{kind.__module__}.{kind.__qualname__}" in SAID for kind in type(error).__mro__):
        return str(error)
    if isinstance(error, OSError) and error.errno in _FULL:
        where = f" at {error.filename}" if error.filename else ""
        return (
            f"the disk is full{where}: free some space, then run it again; what was committed stays and is gone on with"
        )
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None


class _LogFile(logging.FileHandler):
    """Opened at the first line, for a command may empty the folder first; where it cannot be written lines are lost, and nothing else."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
            super().emit(record)
        except OSError:
            self.handleError(record)


def log_to_file(data_dir: Path) -> None:
    """Send the log of this process to `logs/cli.log` of an installation's folder."""
    import structlog

    from tidemark.shared.adapters.clock import SystemClock
    from tidemark.shared.process.logged import Repeats

    handler = _LogFile(data_dir / "logs" / "cli.log", encoding="utf-8", delay=True)
    # A full disk takes no more lines; the command goes on, and says so itself.
    logging.raiseExceptions = False
    logging.basicConfig(handlers=[handler], level=logging.WARNING, format="%(message)s", force=True)
    logging.getLogger("tidemark").setLevel(logging.INFO)
    structlog.configure(
        processors=[
            Repeats(SystemClock()),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


@contextmanager
def said() -> Iterator[None]:
    """A block whose failure, if it has a sentence, ends the command with it and status 1; Ctrl-C with 130."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise typer.Exit(_INTERRUPTED_STATUS) from error
    except Exception as error:
        words = sentence(error)
        if words is None:
            raise
        from rich.console import Console

        Console(stderr=True, soft_wrap=True).print(words, style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error


def finish(work: Coroutine[Any, Any, object]) -> None:
    """Run a command's coroutine; a failure ends the command as in `said`."""
    with said():
        asyncio.run(work)
