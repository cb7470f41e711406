"""`tidemark backup` and `tidemark restore`: of the local installation, or of the one that the environment names."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.services.cli.saying import finish
from tidemark.services.local.folders import RUN, chosen

if TYPE_CHECKING:
    from tidemark.services.backup.files import Backup

Kept = Annotated[Path, typer.Argument(help="The backup's folder.")]


def backup_command(
    target: Annotated[Path, typer.Argument(help="Where the backup goes: an empty folder, or none yet.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="The local installation; by default the one that was used last.")
    ] = None,
) -> None:
    """Copy store, blobs and topics of an installation together, with digests.

    Without TIDEMARK_STORE: a local installation, which must not run. With it, and the other settings of its coordinator: any; its
    processors are stopped for the time of the copy.
    """
    from tidemark.services.backup.folder import back_up_folder
    from tidemark.services.backup.parts import back_up_parts, parts_of

    async def work() -> None:
        if not os.environ.get("TIDEMARK_STORE"):
            _write(f"{target}: backed up", await back_up_folder(chosen(data), target))
            return
        async with parts_of(os.environ) as parts:
            _write(f"{target}: backed up", await back_up_parts(parts, target))

    finish(work())


def restore_command(
    source: Kept,
    data: Annotated[Path, typer.Option("--data", help="The folder that is made, of a local installation.")] = RUN,
) -> None:
    """Make an installation from a backup, in an empty folder, or an empty store, blob store and prefix of topics.

    All of the backup is read and compared with its digests before anything is written.
    """
    from tidemark.services.backup.folder import restore_folder
    from tidemark.services.backup.parts import parts_of, restore_parts

    async def work() -> None:
        if not os.environ.get("TIDEMARK_STORE"):
            _write(f"{data}: restored", restore_folder(source, data))
            return
        async with parts_of(os.environ) as parts:
            _write("restored", await restore_parts(parts, source))

    finish(work())


def _write(what: str, backup: "Backup") -> None:
    from tidemark.services.backup.files import told

    sys.stdout.write("\n".join((f"{what}: {told(backup)[0]}", *told(backup)[1:])) + "\n")
