"""Errors that a run would raise, found before anything starts. Nothing is connected.

A computation's class and a plug-in are loaded in a child process, which may die of it: importing a module runs any code.
This file, run as a program, is that child. It reads JSON of classes, plug-ins and configs from standard input, and writes the errors of
each to standard output.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tidemark.shared.language.documents import InvalidDocument, Processor, all_stages, resolve
from tidemark.shared.language.documents.model import plugin_uses
from tidemark.shared.language.forms import PluginUse
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
    computations = [
        each for each in all_stages(processor.pipeline) if isinstance(each, Compute) and not [*each.plugins()]
    ]
    asked = [
        _ForeignCode(join(each.path, "class"), each.class_, {"class": each.class_, "config": each.config})
        for each in computations
    ]
    asked += [_of_plugin(use, processor, variables) for use in plugin_uses(processor.pipeline)]
    if asked:
        yield from _unloadable(asked)


@dataclass(frozen=True, slots=True)
class _ForeignCode:
    """Code of others that the child is to load: where the document names it, what it is called, and what the child is told."""

    place: str
    name: str
    told: Mapping[str, Any]


def _of_plugin(use: PluginUse, processor: Processor, variables: Mapping[str, str]) -> _ForeignCode:
    settings: Mapping[str, Any] | None = {}
    if use.connection_name is not None:
        # One of the registry, or one whose variables are not set here, is not looked at.
        settings = None
        with suppress(InvalidDocument, KeyError):
            settings = resolve(processor.connections[use.connection_name], variables).settings.get("config", {})
    told = {"kind": use.kind, "plugin": use.plugin, "config": use.config, "settings": settings}
    if use.kind == "computation":
        told = {"class": use.plugin, "config": use.config}
    return _ForeignCode(join(use.path, "plugin"), use.plugin, told)


def _unloadable(others: list[_ForeignCode]) -> Iterator[DocumentError]:
    places = [each.place for each in others]
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-P", "-m", "tidemark.services.cli.foreseen"],
            input=json.dumps([each.told for each in others], default=str),
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
        dead = others[len(told)]
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1][:_SAID_CHARACTERS_MAX]
        yield DocumentError(
            dead.place, f"loading {dead.name} ended the process with status {done.returncode}; it said last: {last}"
        )


_MARK: Final = "\1tidemark:"
"""Begins the lines that are the child's answer: a module may print other lines."""


def main() -> int:
    """The child: an answer a class, in their order, each as soon as it is known."""
    from tidemark.shared.computation.folder import look_here
    from tidemark.shared.computation.loading import load_computation
    from tidemark.shared.computation.problems import ComputationError
    from tidemark.shared.plugins.installed import check_plugin
    from tidemark.shared.plugins.interface import PluginError

    look_here()
    for each in json.loads(sys.stdin.read()):
        reason = ""
        try:
            if "class" in each:
                load_computation(each["class"], each["config"])
            else:
                check_plugin(each["kind"], each["plugin"], each["config"], each["settings"])
        except (ComputationError, PluginError) as error:
            reason = str(error)
        sys.stdout.write(f"\n{_MARK}{json.dumps(reason)}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
