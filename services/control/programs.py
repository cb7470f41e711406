"""Programs of the installation beside this service, one process for each call: a document that is tried out, an audit, a redrive.

What a program does to memory or time, it does to its own process. It gets no variable of this service but those that are named.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.shared.ports.clock import Executor
from tidemark.shared.process.web import NO_ANSWER, TOO_MANY, Problem

AT_ONCE: Final = 2
"""Programs; one more is answered 429."""
OUTPUT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a program: its answer is one of REST's."""


@dataclass(slots=True)
class Programs:
    """Runs commands as programs of their own, and ends them with the service."""

    executor: Executor
    under_way: int = 0
    children: "set[subprocess.Popen[bytes]]" = field(default_factory=set)

    def check_room(self) -> None:
        """Problem where as many run as may."""
        if self.under_way >= AT_ONCE:
            expected = f"at most {AT_ONCE} programs of a sort at a time"
            raise Problem(TOO_MANY, "programs", expected, f"{self.under_way} run", headers={"Retry-After": "5"})

    def stop(self) -> None:
        """End all: nobody waits for them any more."""
        for child in tuple(self.children):
            child.kill()

    async def run(
        self,
        words: Iterable[str],
        given: bytes,
        wait_s: int,
        environment: Mapping[str, str],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> tuple[int, bytes, str]:
        """Status, standard output, and the last line of standard error. Problem: too many, too long, too much.

        It is ended as soon as `is_wanted`, which is asked each second by another thread, says no.
        """
        self.check_room()
        self.under_way += 1
        try:
            return await self.executor.blocking(
                self._run, [sys.executable, "-m", *words], given, wait_s, dict(environment), is_wanted
            )
        finally:
            self.under_way -= 1

    def _run(
        self,
        words: list[str],
        given: bytes,
        wait_s: int,
        environment: dict[str, str],
        is_wanted: Callable[[], bool],
    ) -> tuple[int, bytes, str]:
        own = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
        with tempfile.TemporaryDirectory(prefix="tidemark-") as folder:
            own["HOME"] = folder
            child = subprocess.Popen(  # noqa: S603 - of this installation, its words are no shell's
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={**own, **environment},
            )
            self.children.add(child)
            try:
                out, err = _output(child, given, wait_s, is_wanted)
            finally:
                self.children.discard(child)
        if len(out) > OUTPUT_BYTES_MAX:
            raise Problem(NO_ANSWER, "program", f"at most {OUTPUT_BYTES_MAX} bytes", f"{len(out)}")
        said = err.decode(errors="replace").strip().splitlines()
        return child.returncode, out, said[-1] if said else f"it ended with status {child.returncode}"


def _output(
    child: "subprocess.Popen[bytes]", given: bytes, wait_s: int, is_wanted: Callable[[], bool]
) -> tuple[bytes, bytes]:
    """What a program prints. Problem, and no program any more, where it takes longer, or nobody wants it."""
    asked: bytes | None = given
    finding = f"it was ended after {wait_s} s"
    for _ in range(wait_s):
        try:
            return child.communicate(asked, timeout=1)
        except subprocess.TimeoutExpired:
            asked = None  # it is written once
        if not is_wanted():
            finding = "it was ended: whoever asked has gone"
            break
    child.kill()
    child.communicate()
    raise Problem(NO_ANSWER, "program", f"an end within {wait_s} s", finding)
