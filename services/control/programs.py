"""Programs of the installation beside this service, one process for each call: a document that is tried out, a redrive.

What a program does to memory or time, it does to its own process. It gets no variable of this service but those that are named.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidemark.shared.ports.clock import Executor
from tidemark.shared.process.web import NO_ANSWER, TOO_MANY, Problem

AT_ONCE: Final = 2
"""Programs; one more is answered 429."""
OUTPUT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a program: its answer is one of REST's."""


@dataclass(slots=True)
class Programs:
    """Runs them."""

    executor: Executor
    under_way: int = 0

    async def run(
        self, words: Iterable[str], given: bytes, wait_s: int, environment: Mapping[str, str]
    ) -> tuple[int, bytes, str]:
        """Status, standard output, and the last line of standard error. Problem: too many, too long, too much."""
        if self.under_way >= AT_ONCE:
            found = f"{self.under_way} run"
            raise Problem(
                TOO_MANY,
                "programs",
                f"at most {AT_ONCE} try-outs and redrives at a time",
                found,
                headers={"Retry-After": "5"},
            )
        self.under_way += 1
        try:
            return await self.executor.blocking(_run, [sys.executable, "-m", *words], given, wait_s, dict(environment))
        finally:
            self.under_way -= 1


def _run(words: list[str], given: bytes, wait_s: int, environment: dict[str, str]) -> tuple[int, bytes, str]:
    own = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="tidemark-") as folder:
        own["HOME"] = folder
        try:
            done = subprocess.run(  # noqa: S603 - of this installation, its words are no shell's
                words,
                input=given,
                capture_output=True,
                timeout=wait_s,
                cwd=folder,
                env={**own, **environment},
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Problem(NO_ANSWER, "program", f"an end within {wait_s} s", "it was ended") from error
    if len(done.stdout) > OUTPUT_BYTES_MAX:
        raise Problem(NO_ANSWER, "program", f"at most {OUTPUT_BYTES_MAX} bytes", f"{len(done.stdout)}")
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return done.returncode, done.stdout, said[-1] if said else f"it ended with status {done.returncode}"
