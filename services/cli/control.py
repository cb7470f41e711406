"""The commands that ask the control service: which processors run, why one failed, its counts; and create, start, stop, modify, drop."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from tidemark.services.cli.login import LoginFailed, login, logout
from tidemark.services.cli.reading import read_document
from tidemark.services.cli.remote import RemoteFailed, Unanswered, Unheard, address_of, find, is_here, path_of
from tidemark.shared.language.problems import InvalidDocument

Name = Annotated[str, typer.Argument(help="The processor.")]
File = Annotated[Path, typer.Argument(help="The processor's document, YAML or JSON.")]
Data = Annotated[
    Path, typer.Option("--data", help="The folder of `tidemark run`; TIDEMARK_CONTROL names a service elsewhere.")
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
RUN = Path(".tidemark/run")
WIDTH: Final = 80
"""Of a terminal, in characters."""
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
"""Of tasks or processes: `int` takes fewer texts than `isdigit`, and no message holds longer numbers."""
_FOLLOW_S: Final = 1
"""Between two looks at the log."""


def numbers(option: str, items: list[str]) -> dict[str, int]:
    """Of `name=number`, several times. BadParameter."""
    found = {}
    for item in items:
        name, equals, count = item.partition("=")
        if not name or not equals or not _NUMBER.fullmatch(count):
            message = f"{option}: expected name=number, found {item!r}"
            raise typer.BadParameter(message)
        found[name] = int(count)
    return found


def _print(value: Any, lines: Callable[[Any], Iterator[str]], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(value, indent=2) + "\n")
        return
    for line in lines(value):
        sys.stdout.write(line.rstrip() + "\n")


def write_table(found: Any, heads: Sequence[str], rows: Iterable[Sequence[str]], *, as_json: bool) -> None:
    """JSON, or a table. Where a line would be wider than the terminal, the last column goes below the others."""

    def lines(_: Any) -> Iterator[str]:
        cells = [tuple(heads), *(tuple(row) for row in rows)]
        widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
        before = sum(widths[:-1]) + 2 * (len(heads) - 1)
        for row in cells:
            first = "  ".join(f"{cell:<{size}}" for cell, size in zip(row[:-1], widths[:-1], strict=True))
            if before + len(row[-1]) <= WIDTH:
                yield f"{first}  {row[-1]}"
            else:
                yield first
                yield from wrap(row[-1], WIDTH, initial_indent="    ", subsequent_indent="    ")

    _print(found, lines, as_json=as_json)


def processors_command(data: Data = RUN, *, as_json: AsJson = False) -> None:
    """List the processors with state, watermark and epoch."""
    found = find(data).get("/v1/processors")
    rows = [
        (
            p["name"],
            p["state"],
            p["watermark"] or "–",
            f"{p['lagMillis'] / 1000:.1f} s",
            f"{p['epoch']}/{p['releasedEpoch']}",
            p["reason"],
        )
        for p in found["processors"]
    ]
    write_table(found, ("processor", "state", "watermark", "lag", "epoch/out", "why"), rows, as_json=as_json)


def connections_command(data: Data = RUN, *, as_json: AsJson = False) -> None:
    """List the registry's connections, without secrets."""
    found = find(data).get("/v1/connections")
    rows = [
        (name, each.get("type", ""), ", ".join(f"{key}: {value}" for key, value in each.items() if key != "type"))
        for name, each in sorted(found["connections"].items())
    ]
    write_table(found, ("connection", "type", "settings"), rows, as_json=as_json)


def status_command(name: Name, data: Data = RUN, *, as_json: AsJson = False) -> None:
    """Show one processor: its state, why it is so, its tasks; status 1 if it has failed."""

    def lines(p: Any) -> Iterator[str]:
        for label, value in (
            ("state", p["state"]),
            ("why", p["reason"] or "–"),
            ("watermark", p["watermark"] or "–"),
            ("epoch", f"{p['epoch']} committed, {p['releasedEpoch']} released, {p['commits']} in all"),
            ("generation", f"{p['generation']}, plan {p['planVersion']}, job {p['job']}"),
        ):
            yield f"{label:<12}{value}"
        for kept in p.get("kept", ()):
            yield f"{'kept':<12}{kept['name']}: checkpoint {kept['epoch']}"
        for task in p["tasks"]:
            yield f"{'task':<12}{task['vertex']}/{task['index']} on {task['worker']}"

    found = find(data).get(path_of(name))
    _print(found, lines, as_json=as_json)
    if found["state"] == "FAILED":
        raise typer.Exit(1)


def stats_command(name: Name, data: Data = RUN, *, as_json: AsJson = False) -> None:
    """Show what a processor has done, operator by operator; and whether data are late or the system is slow."""

    def lines(found: Any) -> Iterator[str]:
        stats = found["stats"]
        for key, value in stats.items():
            if not isinstance(value, list):
                yield f"{key:<26}{'–' if value is None else value}"
        for o in stats["operatorStats"]:
            micros = o["executionMicrosPerMessage"]
            yield (
                f"{o['name']:<14}{o['service']:<10}in {o['inputMessageCount']:>14,}  out {o['outputMessageCount']:>14,}"
            )
            yield (
                f"{'':<16}dead {o['dlqMessageCount']:,}, state {o['stateSize']:,} B, busy {o['executionTimeSecs']:,.1f} s"
            )
            yield f"{'':<16}{'–' if micros is None else f'{micros:,.2f}'} us a row"
            if o["quotaBytesPerSecond"] or o["heldByQuotaSecs"]:
                share = o["quotaBytesPerSecond"]
                allowed = "none now" if share is None else f"{share:,.0f} bytes/s"
                yield f"{'':<16}quota {allowed}, waited for it {o['heldByQuotaSecs']:,.1f} s"

    _print(find(data).get(path_of(name, "stats?verbose=true")), lines, as_json=as_json)


def explain_watermark_command(name: Name, data: Data = RUN, *, as_json: AsJson = False) -> None:
    """Say what holds a processor's watermark back now: which task, which split, its last event, since when and why."""

    def lines(found: Any) -> Iterator[str]:
        told = found["watermark"]
        yield from wrap(
            f"watermark {told['watermark'] or 'none yet'}: {told['summary']}", WIDTH, subsequent_indent="  "
        )
        for number, step in enumerate(told["steps"]):
            where = f"{step['vertex']}/{step['task']}" + ("" if step["split"] is None else f" {step['split']}")
            keeps = "" if step["keepsMillis"] is None else f"{step['keepsMillis'] / 1000:,.3f} s"
            mark = "→" if number == told["culprit"] else " "
            yield f"{mark} {where:<28} {step['watermark'] or 'none yet':<26}{keeps:>14}"
            yield from wrap(step["why"], WIDTH, initial_indent="    ", subsequent_indent="    ")
            if step["lastEvent"] is not None:
                yield f"    last event {step['lastEvent']},"
                yield f"    stands there since {step['since'] or 'before anyone asked'}"

    _print(find(data).get(path_of(name, "watermark")), lines, as_json=as_json)


def logs_command(
    name: Name,
    limit: Annotated[int, typer.Option(min=1)] = 100,
    data: Data = RUN,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until it is interrupted.")
    ] = False,
) -> None:
    """Print what services have logged about a processor, a JSON line each."""
    told, begun, silent = list[str](), False, False
    while True:
        try:
            # Found anew: a login's token is renewed, and a service that has begun again may be elsewhere.
            found = find(data).get(path_of(name, f"logs?limit={limit}"))
        except (Unanswered, Unheard) as error:  # an installation that starts again has no address meanwhile
            if not begun:
                raise
            if not silent:
                sys.stderr.write(f"{error}; it is asked again\n")
            silent = True
        else:
            lines = [json.dumps(line) for line in found["lines"]]
            sys.stdout.writelines(f"{line}\n" for line in unseen(told, lines))
            sys.stdout.flush()
            told, begun, silent = lines, True, False
        if not follow:
            return
        time.sleep(_FOLLOW_S)


def unseen(told: Sequence[str], lines: Sequence[str]) -> Sequence[str]:
    """The new ones of the newest lines. The others are the longest end of `told` with which `lines` begins."""
    for size in range(min(len(told), len(lines)), 0, -1):
        if list(told[-size:]) == list(lines[:size]):
            return lines[size:]
    return lines


def sample_command(
    name: Name,
    edge: Annotated[
        str,
        typer.Argument(
            help="Rows of this edge instead of output, such as 'source-1>emit-1'; an unknown one tells all."
        ),
    ] = "",
    limit: Annotated[int, typer.Option(min=1)] = 10,
    data: Data = RUN,
) -> None:
    """Print some output documents of a running processor, or rows of an edge, a JSON line each; not all of them are committed yet."""
    found = find(data).get(path_of(name, f"sample?{urlencode({'limit': limit, 'edge': edge})}"))
    sys.stderr.writelines(f"{trouble}\n" for trouble in found.get("troubles", ()))
    _print(found, lambda f: map(json.dumps, f["rows"] if edge else f["documents"]), as_json=False)


def create_command(
    file: File,
    name: Annotated[str, typer.Option(help="Its name, if not the document's or the file's.")] = "",
    *,
    start: Annotated[bool, typer.Option("--start", help="Start it, too.")] = False,
    connect: Annotated[
        bool | None,
        typer.Option(
            help="First look at what it names, as `check` does; by default where the service is on this machine."
        ),
    ] = None,
    data: Data = RUN,
) -> None:
    """Register a processor."""
    text = read_document(file)
    from tidemark.shared.language.documents.load import load

    tree, _ = load(text)
    if connect or (connect is None and is_here()):
        _look(text)
    called = name or (tree.get("name") if isinstance(tree, dict) else "") or file.stem
    find(data).send("POST", "/v1/processors", {"name": called, "document": text, "start": start})
    sys.stdout.write(f"{called}: created{' and started' if start else ''}\n")


def _look(text: str) -> None:
    """InvalidDocument if a topic, table or file that the document names is missing. The service itself checks the document's text."""
    import asyncio

    from tidemark.services.cli.connected import refused_by_what_is_there
    from tidemark.shared.language.documents import parse

    if errors := asyncio.run(refused_by_what_is_there(parse(text))):
        raise InvalidDocument(errors)


def start_command(
    name: Name,
    *,
    without_state: Annotated[bool, typer.Option("--without-state", help="From nothing, as a new job.")] = False,
    checkpoint: Annotated[
        str, typer.Option("--from", metavar="CHECKPOINT", help="From a kept one, with the document of then.")
    ] = "",
    data: Data = RUN,
) -> None:
    """Start a processor from its last checkpoint."""
    find(data).send("POST", path_of(name, "start"), {"resume": not without_state, "checkpoint": checkpoint})


def stop_command(
    name: Name,
    *,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain", help="End the input with what is there now, and close all windows; it cannot be resumed."
        ),
    ] = False,
    data: Data = RUN,
) -> None:
    """Stop a processor at a checkpoint; its windows stay open."""
    find(data).send("POST", path_of(name, "stop"), {"drain": drain})


def modify_command(
    name: Name,
    file: File,
    *,
    without_state: Annotated[
        bool, typer.Option("--without-state", help="Its state goes; the input is read anew.")
    ] = False,
    replaces: Annotated[
        str,
        typer.Option(
            metavar="DIGEST",
            help="Only the document that FILE was made from: the documentDigest of `status NAME --json`; refused where another is there.",
        ),
    ] = "",
    data: Data = RUN,
) -> None:
    """Give a processor another document; one that runs goes on with it at its next checkpoint."""
    body = {"document": read_document(file), "resumeFromCheckpoint": not without_state, "replaces": replaces}
    find(data).send("PATCH", path_of(name), body)


def rescale_command(
    name: Name,
    tasks: Annotated[
        list[str], typer.Argument(help="Tasks of a service or vertex: operator=3; others stay as they are.")
    ],
    data: Data = RUN,
) -> None:
    """Give a processor other numbers of tasks; one that runs goes on from its next checkpoint, spread over the workers there are."""
    given, remote = numbers("TASKS", tasks), find(data)
    counts = {**remote.get(path_of(name))["parallelism"], **given}
    remote.send("PATCH", path_of(name), {"parallelism": counts})
    sys.stdout.write(f"{name}: {', '.join(f'{key}={count}' for key, count in sorted(counts.items()))}\n")


def drop_command(name: Name, data: Data = RUN) -> None:
    """Forget a stopped processor and delete what it stored; what it wrote stays."""
    find(data).send("DELETE", path_of(name))


def keep_command(
    name: Name, checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Its name.")], data: Data = RUN
) -> None:
    """Keep the last checkpoint of a processor under a name: `start --from` begins there, as often as one likes."""
    find(data).send("POST", path_of(name, "checkpoints"), {"name": checkpoint})


def forget_command(
    name: Name, checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Its name.")], data: Data = RUN
) -> None:
    """Forget a kept checkpoint, and delete what only it needs."""
    find(data).send("DELETE", path_of(name, "checkpoints", quote(checkpoint, safe="")))


def skip_command(
    name: Name,
    epoch: Annotated[int, typer.Argument(help="The commit of which a target refuses a part.")],
    data: Data = RUN,
) -> None:
    """Pass over the rows of a commit that a target refuses, when the processor starts next; the rest of the commit is released."""
    find(data).send("POST", path_of(name, "skip"), {"epoch": epoch})


def login_command(data: Data = RUN) -> None:
    """Log in by the installation's OpenID provider, in any browser; commands have the token then, until logout."""
    url = address_of(data)
    try:
        login(url)
    except LoginFailed as error:
        raise RemoteFailed(str(error)) from error
    user = find(data).get("/v1/user")
    sys.stdout.write(f"{user['name']}, {user['role']}\n")


def logout_command(data: Data = RUN) -> None:
    """Forget the token of login, and end it at the provider."""
    url = address_of(data)
    try:
        ended = logout(url)
    except LoginFailed as error:
        raise RemoteFailed(f"the token is forgotten here, and the provider was not told: {error}") from error
    sys.stdout.write("logged out\n" if ended else f"nobody has logged in at {url}\n")


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (
        processors_command,
        connections_command,
        status_command,
        stats_command,
        explain_watermark_command,
        logs_command,
        sample_command,
        create_command,
        start_command,
        stop_command,
        modify_command,
        rescale_command,
        drop_command,
        skip_command,
        keep_command,
        forget_command,
        login_command,
        logout_command,
    ):
        app.command(command.__name__.removesuffix("_command").replace("_", "-"))(command)
