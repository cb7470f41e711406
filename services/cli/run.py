"""`tidemark run FILE`: a pipeline on this machine, by the real parts."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console

from tidemark.services.cli.connected import refused_by_what_is_there
from tidemark.services.cli.foreseen import refused_by_a_run
from tidemark.services.cli.installation import (
    Begun,
    ChangeRefused,
    Installation,
    attached,
    console_address,
    installation,
    make_topics,
    stays,
    workers_of,
)
from tidemark.services.cli.reading import read_document
from tidemark.services.cli.remote import find, is_here
from tidemark.services.cli.tasks import check_tasks
from tidemark.services.cli.view import ProcessorView
from tidemark.services.local.broker_settings import FREE_PORT
from tidemark.services.local.folders import BROKER_VARIABLE, STORE
from tidemark.services.local.supervisor import CONTROL
from tidemark.shared.language.documents import (
    CollectionDlq,
    FileDlq,
    InvalidDocument,
    KafkaDlq,
    Processor,
    parse,
    resolve,
)
from tidemark.shared.language.documents.model import plugin_uses
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.language.problems import DocumentError
from tidemark.shared.language.stages import FileEmit, HttpsEmit, KafkaEmit, Merge, PluginEmit
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import ProcessorStatus, StopProcessor
from tidemark.shared.planning import plan_processor
from tidemark.shared.process.allowed import closed_values
from tidemark.shared.process.foreseen import connection_names
from tidemark.shared.process.settings import read_runtime

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_ANEW = "--data with another folder, or another name in the document, begins anew"


class RunFailed(Exception):
    """The processor has failed: says why."""


async def run(
    file: Path,
    data_dir: Path,
    parallelism: Mapping[str, int],
    port: int = FREE_PORT,
    topics: Mapping[str, int] | None = None,
) -> None:
    """Create or resume the processor and show it until it ends. RunFailed; before anything starts, InvalidDocument and PlanError.

    topics: made on its broker before the processor is, by name with their partitions.
    """
    text = read_document(file)
    processor = parse(text)
    name = processor.name or ProcessorName(file.stem)
    for doubt in processor.warnings:
        Console(stderr=True, soft_wrap=True).print(f"warning: {doubt}", highlight=False, markup=False)
    async with installed_for(processor, data_dir, parallelism, port) as installed:
        telling = asyncio.create_task(_tell_address(data_dir))
        await make_topics(installed.log, topics or {})
        begun = await _begin(installed, name, text, parallelism, data_dir)
        view = ProcessorView(installed, name, None, None)
        showing = asyncio.create_task(view.run())
        try:
            status = await _until_ended_or_interrupted(installed, name)
            if begun != "finished":
                await installed.until_counted(status, view.seen.beats.values)
        finally:
            showing.cancel()
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await showing
            with contextlib.suppress(asyncio.CancelledError):
                await telling
    said = Console(stderr=True, soft_wrap=True)
    said.print(view.totals(), highlight=False)
    if status.state == "FAILED":
        message = f"{name}: FAILED {status.reason}"
        raise RunFailed(message)
    said.print(f"{name}: {status.state} {status.reason}".rstrip(), highlight=False, markup=False)
    if begun == "finished":
        said.print(f"it had finished before, so nothing was read now; {_ANEW}", highlight=False)
    for line in outputs(processor):
        said.print(line, highlight=False)
    if processor.options.dlq is None and view.seen.dead():
        logs = data_dir / "logs"
        said.print(
            f"dead letters ({view.seen.dead_told()}) are kept nowhere: options.dlq names a place for them; {logs} has reasons of some",
            highlight=False,
            markup=False,
        )


@asynccontextmanager
async def installed_for(
    processor: Processor, data_dir: Path, parallelism: Mapping[str, int], port: int = FREE_PORT
) -> AsyncIterator[Installation]:
    """The installation that `tidemark up` keeps, or one with the workers that a processor needs, all there.

    RunFailed; before anything starts, InvalidDocument and PlanError.
    """
    if stays(data_dir):
        async with attached(data_dir) as installed:
            yield installed
        return
    plan = plan_processor(processor, engine=read_runtime(os.environ).engine)
    check_tasks(plan, parallelism)
    workers = workers_of(plan, parallelism, os.cpu_count() or 1)
    if not (data_dir / STORE).exists():
        await check_surroundings(processor)
    opened = {name for each in processor.connections.values() for name in closed_values(each.settings, ())}
    plugins = {use.plugin for use in plugin_uses(processor.pipeline)}
    async with installation(
        data_dir, {}, {**workers, CONTROL: 1}, port=port, variables=opened, plugins=plugins
    ) as installed:
        await installed.until_there(workers)
        yield installed


async def check_surroundings(processor: Processor) -> None:
    """Check that the variables and files that the document names exist. InvalidDocument.

    A path that nothing matches is no empty stream, but a mistake, unless the document says that the folder grows.
    """
    errors = await asyncio.to_thread(lambda: list(refused_by_a_run(processor, {BROKER_VARIABLE: "", **os.environ})))
    errors += [
        DocumentError(
            "connections", f"{name} is not in the document, and a new installation has no connections of its own"
        )
        for name in sorted(connection_names(processor) - processor.connections.keys())
    ]
    if errors := errors or await refused_by_what_is_there(processor):
        raise InvalidDocument(errors)


async def _created(installed: Installation, name: ProcessorName, text: str, data_dir: Path) -> bool:
    """Whether the service of an installation that stays has created the processor now. RemoteFailed.

    It sees variables and topics as tasks do, and says what is missing before one starts.
    """
    if not is_here() or not stays(data_dir) or name in await installed.client.statuses():
        return False
    document = {"name": name, "document": text, "start": False}
    await asyncio.to_thread(find(data_dir).send, "POST", "/v1/processors", document)
    return True


async def _begin(
    installed: Installation, name: ProcessorName, text: str, parallelism: Mapping[str, int], data_dir: Path
) -> Begun:
    """Create the processor, or go on with it; a changed document is reported. RunFailed where it cannot go on with the change."""
    created = await _created(installed, name, text, data_dir)
    try:
        begun = await installed.ensure_started(name, text, parallelism)
    except ChangeRefused as error:
        raise RunFailed(f"{name}: {error}\n{data_dir} holds a run of {name} with another document; {_ANEW}") from error
    if created:
        return "created"
    if begun == "changed":
        Console(stderr=True, soft_wrap=True).print(f"{name}: goes on with the changed document", highlight=False)
    return begun


def outputs(processor: Processor) -> list[str]:
    """The places that the processor has written to, a line each."""

    def inside(connection: str | None, what: str) -> str:
        known = processor.connections.get(connection or "")
        root = str(resolve(known, os.environ).settings.get("path", "")) if known is not None else ""
        return f"{root.rstrip('/')}/{what}" if root else what

    found = []
    for stage in processor.sinks:
        match stage:
            case FileEmit():
                what = {"parquet": "a Delta table", "iceberg": "an Iceberg table"}.get(stage.format, "files")
                place = f"{what} in {inside(stage.connection_name, stage.file_path)}"
            case KafkaEmit(topic=Literal(value=str() as topic)):
                place = f"topic {topic} of {stage.connection_name}"
            case KafkaEmit():
                place = f"topics of {stage.connection_name}, by an expression"
            case HttpsEmit():
                place = f"requests to {stage.connection_name}"
            case PluginEmit():
                place = f"what the plug-in {stage.plugin} has written"
            case Merge() if not isinstance(stage.table, str):
                place = f"tables of {stage.connection_name}, by an expression"
            case _:
                place = f"table {stage.table} of {stage.connection_name}"
        found.append(f"results: {place}")
    match processor.options.dlq:
        case FileDlq(file_path=path, connection_name=connection):
            found.append(f"dead letters, if any: files in {inside(connection, path)}")
        case CollectionDlq(connection_name=connection, db=db, coll=coll):
            found.append(f"dead letters, if any: collection {db}.{coll} of {connection}")
        case KafkaDlq(topic=name, connection_name=connection):
            found.append(f"dead letters, if any: topic {name} of {connection}")
        case None:
            pass
    return found


async def _tell_address(data_dir: Path) -> None:
    Console(stderr=True, soft_wrap=True).print(await console_address(data_dir))


async def _until_ended_or_interrupted(installed: Installation, name: ProcessorName) -> ProcessorStatus:
    """Ctrl-C, or SIGTERM, stops after a checkpoint, so that the next run repeats no work; a second one does not wait for it."""
    interrupted, loop = asyncio.Event(), asyncio.get_running_loop()

    def interrupt() -> None:
        Console(stderr=True, soft_wrap=True).print(
            f"{name}: stops after a checkpoint; Ctrl-C again does not wait for one"
        )
        interrupted.set()
        for number in _STOPPING:
            loop.remove_signal_handler(number)

    for number in _STOPPING:
        loop.add_signal_handler(number, interrupt)
    ended = asyncio.create_task(installed.until_ended(name))
    waiting = asyncio.create_task(interrupted.wait())
    await asyncio.wait({ended, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if interrupted.is_set():
        await installed.client.request(StopProcessor(installed.client.unique(), name))
    return await ended
