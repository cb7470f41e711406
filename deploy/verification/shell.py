"""Commands of other programs, each written to the record with its duration and its last output."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_SAID_CHARACTERS_MAX: Final = 2_000


class CommandFailed(Exception):
    """A command ended with another status than 0: says which, and its last words."""


@dataclass(slots=True)
class RunLog:
    """The verification's log: steps and findings, on standard output and in a file."""

    path: Path
    began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """A line, with the seconds since the start."""
        line = f"{time.monotonic() - self.began:7.1f} s  {text}\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        with self.path.open("a", encoding="utf-8") as out:
            out.write(line)


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs commands in a folder, with variables added to the environment."""

    record: RunLog
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *command: str | Path, timeout_s: float = 600, told: bool = True) -> str:
        """Standard output. CommandFailed. told: into the record."""
        words = [str(word) for word in command]
        began = time.monotonic()
        done = subprocess.run(
            words,
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        took_s = time.monotonic() - began
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-_SAID_CHARACTERS_MAX:]
            raise CommandFailed(f"{_line(words)} ended with status {done.returncode} after {took_s:.1f} s:\n{said}")
        if told:
            self.record.say(f"$ {_line(words)}   ({took_s:.1f} s)")
        return done.stdout


def _line(words: Sequence[str]) -> str:
    return " ".join(word if word and " " not in word else repr(word) for word in words)
