"""What a run would refuse: found before anything starts. Nothing is connected.

A computation's class is loaded in a child process, which may die of it: its module runs whatever it likes as it is imported.
Run as a program it is that child: JSON of classes and configs on standard input, of what is wrong with each on standard output.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tidemark.shared.language.documents import InvalidDocument, Processor, all_stages, resolve
from tidemark.shared.language.problems import DocumentError, join
from tidemark.shared.language.stages import SAMPLE_CONNECTION, Compute
from tidemark.shared.planning import PlanError, plan_processor

LOADING_S_MAX: Final = 60
"""For a child to import the modules of a document's classes, all together: longer, and a worker would be taken for stuck, too."""
_SAID_CHARACTERS_MAX: Final = 300
"""Of what a child that died said last: for readers."""


def refused_by_a_run(
    processor: Processor, variables: Mapping[str, str], *, classes: bool = True
) -> Iterator[DocumentError]:
    """What `tidemark run` would refuse of a document that is right in itself. variables: the environment's, and what a run sets itself.

    classes: load those of computations, which runs what their modules do as they are imported.
    """
    try:
        plan_processor(processor)
    except PlanError as error:
        place, _, message = str(error).partition(": ")
        yield DocumentError(place, message)
    for connection in named_connections(processor).values():
        try:
            resolve(connection, variables)
        except InvalidDocument as error:
            yield from error.errors
    computations = [stage for stage in all_stages(processor.pipeline) if isinstance(stage, Compute)]
    if computations and classes:
        yield from _unloadable(computations)


def connection_names(processor: Processor) -> set[str]:
    """The connections that stages and the queue of dead letters name."""
    places = [processor.options.dlq, *all_stages(processor.pipeline)]
    names = {getattr(getattr(place, "from_", place), "connection_name", None) for place in places}
    return {name for name in names if name not in (None, SAMPLE_CONNECTION)}


def named_connections(processor: Processor) -> Mapping[str, Any]:
    """Those of them that the document brings itself."""
    names = connection_names(processor)
    return {name: connection for name, connection in processor.connections.items() if name in names}


def _unloadable(computations: list[Compute]) -> Iterator[DocumentError]:
    asked = [{"class": stage.class_, "config": stage.config} for stage in computations]
    places = [join(stage.path, "class") for stage in computations]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tidemark.shared.process.foreseen"],
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
"""Begins the lines that are the child's answer: a module may print what it likes."""


def main() -> int:
    """The child: an answer a class, in their order, each as soon as it is known."""
    from tidemark.shared.computation.loading import load_computation  # noqa: PLC0415 - of the child alone
    from tidemark.shared.computation.problems import ComputationError  # noqa: PLC0415

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
