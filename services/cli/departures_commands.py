"""`tidemark departures`: the year of departures on an installation that runs elsewhere, in containers or on a cluster.

The environment names the installation, as it does for services: TIDEMARK_KAFKA (with TIDEMARK_KAFKA_CONFIG and TIDEMARK_PREFIX) for
topics, TIDEMARK_CONTROL (with TIDEMARK_TOKEN or TIDEMARK_TOKEN_FILE) for the processor. Each command may be given again: it does not
repeat work that is done.
"""

from pathlib import Path
from typing import Annotated

import typer

from tidemark.services.cli.control import numbers

app = typer.Typer(help="The year of departures on an installation elsewhere.", no_args_is_help=True)


@app.command("start")
def start_command(
    tasks: Annotated[
        list[str], typer.Option("--tasks", help="Tasks of a service or vertex: operator=3; may be repeated.")
    ] = [],
) -> None:
    """Make the topics, register the processor, start it."""
    from tidemark.services.cli.departures import start

    start(numbers("--tasks", tasks))


@app.command("feed")
def feed_command(
    seconds: Annotated[float, typer.Option(min=0, help="How long the whole year takes.")] = 60.0,
    until: Annotated[float, typer.Option(min=0, max=1, help="The part of the year to stop at.")] = 1.0,
) -> None:
    """Send the events of the year that the topic does not hold yet, in order."""
    from tidemark.services.cli.departures import feed_year

    feed_year(seconds, until)


@app.command("drain")
def drain_command() -> None:
    """End the input where the topic ends now, close all windows, wait until everything is released."""
    from tidemark.services.cli.departures import drain

    drain()


@app.command("collect")
def collect_command(
    out: Annotated[Path, typer.Option(envvar="OUT", help="The folder that the sink writes to; the rest goes beside.")],
) -> None:
    """Write alerts, late flights, the figures and the report beside the counts, as `tidemark demo` leaves them."""
    from tidemark.services.cli.departures import collect_year

    collect_year(out)
