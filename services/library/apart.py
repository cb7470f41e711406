"""A try-out with Spark, in a process of its own: the program may have a session already, of another Python and with settings of its own.

A process has one JVM and one application of Spark, and variables that name its addresses: the program keeps its own.
"""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass

from tidemark.services.cli.in_memory import Outcome
from tidemark.services.cli.process import keep_quiet, runner
from tidemark.shared.computation.folder import import_path, look_here
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried out."""

    text: str
    name: ProcessorName
    limit: int | None
    rows: list[Document] | None


def tried_apart(trial: Trial) -> Outcome:
    """The outcome; its error says so where the process ends without one."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tidemark.services.library.apart"],
        env={**os.environ, "PYTHONPATH": import_path()},
        input=pickle.dumps(trial),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        return Outcome(
            [], [], f"the process of the try-out has ended with {done.returncode}: its standard error says why"
        )
    found: Outcome = pickle.loads(done.stdout)  # noqa: S301 - our own process
    return found


def main() -> None:
    """What a computation prints, and what Spark's JVM says, goes where errors go."""
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    trial: Trial = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - as above
    look_here()
    keep_quiet()
    with runner("spark") as running:
        outcome, _ = running.run(trial.text, trial.name, trial.limit, trial.rows)
    with os.fdopen(answer, "wb") as out:
        out.write(pickle.dumps(outcome))


if __name__ == "__main__":
    main()
