"""The lines that services have logged about a processor, read from the ends of their files: bounded, newest last, without secrets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tidemark.shared.language.redaction import redacted
from tidemark.shared.model.messages import ProcessorStatus


def lines_of(folder: Path, status: ProcessorStatus, limit: int, bytes_max: int) -> list[dict[str, Any]]:
    """At most `limit` lines that name the processor or its job; at most `bytes_max` of each file are looked at."""
    found = [
        line
        for path in sorted(folder.glob("*.log*"))
        for line in _parsed(_tail(path, bytes_max))
        if line.get("processor") == status.name
        or line.get("job") == status.job
        or status.job in str(line.get("identity", ""))
    ]
    found.sort(key=lambda line: str(line.get("timestamp", "")))
    return [redacted(line) for line in found[-limit:]]


def _tail(path: Path, bytes_max: int) -> list[bytes]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        begin = max(0, size - bytes_max)
        file.seek(begin)
        lines = file.read(bytes_max).splitlines()
    return lines[1:] if begin else lines


def _parsed(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """Those that are JSON objects: others are other programs'."""
    for line in lines:
        if line.startswith(b"{"):
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
