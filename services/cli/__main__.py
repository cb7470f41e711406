"""`tidemark`: run pipelines on this machine, look at them, check them."""

import json
import signal
import sys
from collections.abc import Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from tidemark.services.cli import backup, control, departures_commands
from tidemark.services.cli.saying import finish, log_to_file, said
from tidemark.services.local.folders import DEMO, RUN, chosen
from tidemark.shared.language.problems import nearest_of
from tidemark.shared.model.ids import ProcessorName


class CommandGroup(TyperGroup):
    """Says which command is meant by one that is not there, and what stands in a command's way, whatever part of it found that."""

    def invoke(self, ctx: Any) -> Any:
        """See click."""
        with said():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click. UsageError with the nearest name."""
        if args and self.get_command(ctx, args[0]) is None and (near := nearest_of(args[0], self.list_commands(ctx))):
            ctx.fail(f"No such command {args[0]!r}; did you mean {near}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False, cls=CommandGroup)
DataDir = Annotated[Path, typer.Option("--data", help="Where broker, state and logs of this machine lie.")]
KnownDir = Annotated[
    Path | None, typer.Option("--data", help="The same; by default the one of run and demo that was used last.")
]
Tasks = Annotated[list[str], typer.Option("--tasks", help="Tasks of a service or vertex: operator=3; may be repeated.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="The broker's, on loopback; 0: any that is free.")]
_NO_STATEMENT = 3
_NEWEST_MAX = 1_000_000
"""Of dead letters and records: a command has them in memory."""


def _say_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"tidemark {version('tidemark')}\n")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version, and end.")
    ] = False,
) -> None:
    """Hold the options of all commands; the module's text is their help."""


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(help="Where the results go; emptied first.")] = Path("out/demo"),
    data: DataDir = DEMO,
    seconds: Annotated[float, typer.Option(min=0, help="How long the year takes to be fed.")] = 25.0,
    tasks: Tasks = [],
    port: Port = 0,
    workers: Annotated[
        list[str], typer.Option("--workers", help="Processes of a service: operator=3; may be repeated.")
    ] = [],
) -> None:
    """Stream a year of New York departures through every part; find the blizzard; check nothing was lost."""
    from tidemark.services.cli.demo import DemoSettings, demo

    log_to_file(data)
    settings = DemoSettings(
        out=out,
        data_dir=data,
        port=port,
        seconds=seconds,
        parallelism=control.numbers("--tasks", tasks),
        workers=control.numbers("--workers", workers),
    )
    finish(demo(settings))
    sys.stdout.write((out / "summary.json").read_text())
    sys.stdout.write(f"report: {out / 'report.html'}\n")


@app.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(help="The processor's document, YAML or JSON.")],
    data: DataDir = RUN,
    tasks: Tasks = [],
    port: Port = 0,
    topics: Annotated[
        list[str],
        typer.Option("--topic", help="Made on ${LOCAL_KAFKA} first: a topic's name=partitions; may be repeated."),
    ] = [],
) -> None:
    """Run a pipeline on this machine until it ends or Ctrl-C; run again on the same folder, it goes on where it was."""
    from tidemark.services.cli.run import run

    log_to_file(data)
    finish(run(file, data, control.numbers("--tasks", tasks), port, control.numbers("--topic", topics)))


@app.command("up")
def up_command(
    data: DataDir = RUN,
    port: Port = 0,
    variables: Annotated[
        list[str], typer.Option("--variable", help="Of the environment, that documents may name; may be repeated.")
    ] = [],
    plugins: Annotated[
        list[str], typer.Option("--plugin", help="A plug-in that documents may use; may be repeated.")
    ] = [],
) -> None:
    """Start an installation that stays, and show its console's address; run uses it, and ends nothing of others when it ends."""
    from tidemark.services.cli.installation import up

    log_to_file(data)
    finish(up(data, port, variables, plugins))


@app.command("process")
def process_command(
    file: Annotated[Path | None, typer.Argument(help="The processor's document, YAML or JSON.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many documents.")] = None,
    engine: Annotated[Literal["local", "spark"], typer.Option(help="What runs the windows.")] = "local",
    dlq: Annotated[Path | None, typer.Option(help="Where dead letters go, instead of standard error.")] = None,
    cases: Annotated[
        Path | None, typer.Option(help="Many pipelines, a JSON object with id and pipeline a line.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --cases: where the results go, a line each.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what the services do.")] = False,
) -> None:
    """Try a pipeline out, in this process, without a broker: output as JSON lines, dead letters on standard error."""
    from tidemark.services.cli.process import process

    _exit_with(process(file, engine, limit=limit, dlq=dlq, cases=cases, out=out, verbose=verbose))


@app.command("validate")
def validate_command(
    file: Annotated[Path, typer.Argument(help="The processor's document, YAML or JSON.")],
    here: Annotated[bool, typer.Option(help="Also what a run on this machine refuses: variables, classes.")] = True,
    *,
    as_json: control.AsJson = False,
) -> None:
    """Check a document: all errors at once, with their places; status 1 if there are any. It connects to nothing."""
    from tidemark.services.cli.explain import validate

    _exit_with(validate(file, here=here, as_json=as_json))


@app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="The processor's document, YAML or JSON.")],
    connect: Annotated[bool, typer.Option(help="Look at topics, tables, columns, keys, files and folders.")] = True,
    *,
    as_json: control.AsJson = False,
) -> None:
    """Check a document as validate does, then look at the topics, tables and files that it names: all errors at once; status 1 if any."""
    from tidemark.services.cli.explain import validate

    _exit_with(validate(file, connect=connect, as_json=as_json))


@app.command("explain")
def explain_command(
    file: Annotated[Path, typer.Argument(help="The processor's document, YAML or JSON.")],
    engine: Annotated[Literal["local", "spark"], typer.Option(help="What runs the windows.")] = "spark",
    mermaid: Annotated[bool, typer.Option("--mermaid", help="The physical plan as a mermaid diagram.")] = False,
    *,
    as_json: control.AsJson = False,
) -> None:
    """Show how a pipeline runs: its stages, the vertices and edges, each task's operators."""
    from tidemark.services.cli.explain import explain

    _exit_with(explain(file, engine, mermaid=mermaid, as_json=as_json))


@app.command("schema")
def schema_command() -> None:
    """Show the JSON Schema of a processor's document, for editors; it knows every stage, operator and option."""
    from tidemark.shared.language.schema_json import document_schema

    sys.stdout.write(json.dumps(document_schema(), indent=2) + "\n")


def _exit_with(status: int) -> None:
    if status:
        raise typer.Exit(status)


@app.command("audit")
def audit_command(
    name: Annotated[str, typer.Argument(help="The processor.")],
    data: KnownDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with every epoch.")] = False,
    every_epoch: Annotated[bool, typer.Option("--epochs", help="Show every epoch.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the last audit ended.")] = False,
) -> None:
    """Check that every record was counted once, epoch by epoch, from the source topic and the bytes of the outputs.

    From the begin of the job; where time has taken that, or with --resume, from where the last audit ended.
    Exit 1 at the first discrepancy, 3 where something needed is gone, or an output cannot be checked: there is no statement about that.
    """
    from tidemark.services.audit.check import Audited, NotAuditable, audit
    from tidemark.services.audit.installed import read

    found: list[Audited] = []

    async def work() -> None:
        try:
            async with read(data) as installed:
                found.append(await audit(ProcessorName(name), installed, resumes=resume))
        except NotAuditable as error:
            sys.stderr.write(f"cannot be audited: {error}\n")
            raise typer.Exit(_NO_STATEMENT) from error

    finish(work())
    audited = found[0]
    text = [json.dumps(audited.as_json(), indent=2)] if as_json else audited.text(every_epoch=every_epoch)
    for line in text:
        sys.stdout.write(line + "\n")
    if audited.gone or audited.unchecked:
        raise typer.Exit(_NO_STATEMENT)


@app.command("redrive")
def redrive_command(
    name: Annotated[str, typer.Argument(help="The processor.")],
    data: KnownDir = None,
    topic: Annotated[
        str | None, typer.Option(help="Where corrections go; the queue's with .corrections if not named.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Take late records through the windows that they missed: corrections with old and new values, each once."""
    import msgspec

    from tidemark.services.audit.installed import read
    from tidemark.services.audit.redrive import redrive

    async def work() -> Any:
        async with read(data) as installed:
            return await redrive(ProcessorName(name), installed, topic)

    done = _found(work())
    if as_json:
        sys.stdout.write(msgspec.json.encode(done).decode() + "\n")
    else:
        sys.stdout.write(f"{done.letters:,} late records redriven, {done.corrections:,} corrections in {done.topic}\n")


@app.command("ps")
def ps_command(
    data: KnownDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the processes that run on a folder, with service, tasks and process id."""
    from tidemark.services.cli.ps import processes

    found = _found(processes(chosen(data)))
    rows = [(p["place"], p["service"], str(p["pid"]), ", ".join(p["tasks"])) for p in found["processes"]]
    control.write_table(found, ("place", "service", "pid", "tasks"), rows, as_json=as_json)


def _found(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of the work. An error ends the command with a sentence, as in `finish`."""
    found: list[Any] = []

    async def keep() -> None:
        found.append(await work)

    finish(keep())
    return found[0]


@app.command("wishes")
def wishes_command(data: KnownDir = None) -> None:
    """Print which workers the coordinator wishes for, or has no use for, a JSON line each, until it is ended (`deploy/scale.py`)."""
    from tidemark.services.cli.wishes import print_wishes

    finish(print_wishes(data))


@app.command("topics")
def topics_command(
    file: Annotated[
        Path | None,
        typer.Argument(help="A document: the clusters that its connections name. Without it the local broker."),
    ] = None,
    data: KnownDir = None,
    *,
    as_json: control.AsJson = False,
) -> None:
    """List topics with partitions and the records that they keep, markers of transactions among them."""
    from tidemark.services.cli.records import topics

    found = _found(topics(file, data))
    rows = [(each["topic"], each["connection"], f"{each['partitions']:,}", f"{each['records']:,}") for each in found]
    control.write_table(found, ("topic", "connection", "partitions", "records"), rows, as_json=as_json)


@app.command("dlq")
def dlq_command(
    name: control.Name,
    limit: Annotated[int, typer.Option(min=1, max=_NEWEST_MAX, help="At most so many, the newest.")] = 20,
    data: KnownDir = None,
) -> None:
    """Print the newest dead letters of a processor, a JSON line each, the newest last."""
    from tidemark.services.cli.records import dead_letters

    for letter in _found(dead_letters(name, chosen(data), limit)):
        sys.stdout.write(json.dumps(letter, ensure_ascii=False) + "\n")


@app.command("checkpoints")
def checkpoints_command(name: control.Name, data: KnownDir = None, *, as_json: control.AsJson = False) -> None:
    """List the checkpoints of a processor that are kept, oldest first."""
    from tidemark.services.cli.records import checkpoints

    found = _found(checkpoints(name, chosen(data)))
    rows = [
        (
            str(each["epoch"]),
            str(each["generation"]),
            str(each["tasks"]),
            f"{each['stateBytes']:,}",
            "yes" if each["final"] else "",
            each["name"] or "",
        )
        for each in found
    ]
    control.write_table(found, ("epoch", "generation", "tasks", "state bytes", "final", "name"), rows, as_json=as_json)


@app.command("try")
def try_command(
    file: control.File,
    sample: Annotated[
        int, typer.Option("--sample", min=1, max=_NEWEST_MAX, help="So many of the newest records of its topic.")
    ] = 100,
    data: KnownDir = None,
) -> None:
    """Try a pipeline out on its topic's newest records, in this process: nothing is written anywhere, dead letters on standard error."""
    from tidemark.services.cli.process import try_on
    from tidemark.services.cli.records import sampled

    text, documents, others = _found(sampled(file, data, sample))
    _exit_with(try_on(text, documents, others))


app.command("backup")(backup.backup_command)
app.command("restore")(backup.restore_command)
control.register(app)
app.add_typer(departures_commands.app, name="departures")


def main() -> None:
    """The entry point. Signals that whoever starts it has blocked would be blocked in all of its processes, which then hear of no end."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    app()


if __name__ == "__main__":
    main()
