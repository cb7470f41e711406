"""A backup's list, and its sentence for people."""

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from tidemark.services.backup.files import BackedFile, BackedProcessor, Backup, Kind
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.processors import ProcessorRow


def listing(kind: Kind, rows: Sequence[ProcessorRow], files: tuple[BackedFile, ...], prefix: str = "") -> Backup:
    """Of these processors and files, now."""
    made = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).isoformat(timespec="seconds")
    processors = tuple(BackedProcessor(row.name, row.job, row.state, row.last) for row in rows)
    return Backup(kind, made, version("tidemark"), processors, files, prefix)


def told(backup: Backup) -> list[str]:
    """A backup's content, a line for each processor."""
    size = sum(file.size for file in backup.files)
    lines = [f"{len(backup.files):,} files, {size:,} bytes, of {backup.made}; {len(backup.processors)} processors"]
    for each in backup.processors:
        at = f"goes on behind checkpoint {each.last}" if each.last else "has no checkpoint yet"
        lines.append(f"  {each.name}: {each.state}, {at}")
    return lines
