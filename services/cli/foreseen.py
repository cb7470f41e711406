"""Errors that a run would raise, found before anything starts. Nothing is connected.

A computation's class is loaded in a child process, which may die of it: importing its module runs any code.
This file, run as a program, is that child. It reads JSON of classes and configs from standard input, and writes the errors of each to
standard output.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tidemark.shared.language.documents import Processor, all_stages
from tidemark.shared.language.problems import DocumentError, join
from tidemark.shared.language.stages import Compute
from tidemark.shared.process.foreseen import never_runs

LOADING_S_MAX: Final = 60
"""For a child to import the modules of a document's classes, all together: longer, and a worker would be taken for stuck, too."""
_SAID_CHARACTERS_MAX: Final = 300
"""The last characters of a dead child's output that are shown."""


def refused_by_a_run(processor: Processor, variables: Mapping[str, str]) -> Iterator[DocumentError]:
    """Reasons why `tidemark run` would refuse a valid document. variables: those of the environment, and those that a run sets itself."""
    yield from never_runs(processor, variables)
    computations = [stage for stage in all_stages(processor.pipeline) if isinstance(stage, Compute)]
    if computations:
        yield from _unloadable(computations)


def _unloadable(computations: list[Compute]) -> Iterator[DocumentError]:
    asked = [{"class": stage.class_, "config": stage.config} for stage in computations]
    places = [join(stage.path, "class") for stage in computations]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tidemark.services.cli.foreseen"],
            input=json.dumps(asked, default=str),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_search())},
            capture_output=True,
            text=True,
            timeout=LOADING_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield DocumentError(places[0], f"loading the classes takes longer than {LOADING_S_MAX} s")
        return
    told = [line for line in done.stdout.split("\n") if line.startswith(_MARK)]
    for place, line in zip(places, told, strict=False):
        if reason := json.loads(line.removeprefix(_MARK)):
            yield DocumentError(place, reason)
    if len(told) < len(places):
        stage, place = computations[len(told)], places[len(told)]
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1][:_SAID_CHARACTERS_MAX]
        yield DocumentError(
            place, f"loading {stage.class_} ended the process with status {done.returncode}; it said last: {last}"
        )


def _search() -> list[str]:
    return [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]


_MARK: Final = "\1tidemark:"
"""Begins the lines that are the child's answer: a module may print other lines."""


def main() -> int:
    """The child: an answer a class, in their order, each as soon as it is known."""
    from tidemark.shared.computation.loading import load_computation
    from tidemark.shared.computation.problems import ComputationError

    for each in json.loads(sys.stdin.read()):
        reason = ""
        try:
            load_computation(each["class"], each["config"])
        except ComputationError as error:
            reason = str(error)
        sys.stdout.write(f"\n{_MARK}{json.dumps(reason)}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
