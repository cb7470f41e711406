"""`tidemark`: run pipelines on this machine, look at them, check them."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.cli.demo import DemoFailed, DemoSettings, demo
from services.cli.run import RunFailed, run
from services.local.broker import BrokerError
from services.local.supervisor import read_state
from shared.runtime.client import RequestRefused, RequestTimeout

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
DataDir = Annotated[Path, typer.Option("--data", help="Where broker, state and logs of this machine lie.")]
Tasks = Annotated[list[str], typer.Option("--tasks", help="Tasks of a service or vertex: operator=3; may be repeated.")]
_FAILURES = (DemoFailed, RunFailed, BrokerError, RequestRefused, RequestTimeout)


def _parallelism(tasks: list[str]) -> dict[str, int]:
    found = {}
    for item in tasks:
        name, equals, count = item.partition("=")
        if not equals or not count.isdigit():
            message = f"--tasks: expected name=number, found {item!r}"
            raise typer.BadParameter(message)
        found[name] = int(count)
    return found


def _finish(work) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    try:
        asyncio.run(work)
    except _FAILURES as error:
        Console(stderr=True).print(f"[red]{error}[/red]", highlight=False)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(help="Where the results go; emptied first.")] = Path("out/demo"),
    data: DataDir = Path(".tidemark/demo"),
    seconds: Annotated[float, typer.Option(help="How long the year takes to be fed.")] = 25.0,
    tasks: Tasks = [],  # noqa: B006 - typer reads it, nothing changes it
) -> None:
    """Stream a year of New York departures through every part; find the blizzard; check nothing was lost."""
    _finish(demo(DemoSettings(out=out, data_dir=data, seconds=seconds, parallelism=_parallelism(tasks))))
    sys.stdout.write((out / "summary.json").read_text())
    sys.stdout.write(f"report: {out / 'report.html'}\n")


@app.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(help="The processor's document, YAML or JSON.")],
    data: DataDir = Path(".tidemark/run"),
    tasks: Tasks = [],  # noqa: B006 - typer reads it, nothing changes it
) -> None:
    """Run a pipeline on this machine until it ends or Ctrl-C; run again on the same folder, it goes on where it was."""
    _finish(run(file, data, _parallelism(tasks)))


@app.command("ps")
def ps_command(
    data: DataDir = Path(".tidemark/run"),
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """List the processes that run on a folder, with service, tasks and process id."""
    try:
        state = read_state(data)
    except FileNotFoundError as error:
        Console(stderr=True).print(f"nothing runs on {data}; `tidemark run FILE --data {data}` starts something")
        raise typer.Exit(1) from error
    if as_json:
        sys.stdout.write(json.dumps(state, indent=2) + "\n")
        return
    for process in state["processes"]:
        sys.stdout.write(f"{process['place']:<16}{process['service']:<14}{process['pid']}\n")


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
