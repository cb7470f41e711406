"""`python -m tidemark.services.audit.program audit|redrive NAME`: one on the installation of the environment; a verdict as JSON.

The control service starts one for each request, so that it takes memory and time of its own. It ends with status 0 where it has a verdict.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Iterable
from typing import Final, get_args

import msgspec

from tidemark.services.audit.check import audit
from tidemark.services.audit.corrections import CannotRedrive
from tidemark.services.audit.history import AuditFailed, NotAuditable
from tidemark.services.audit.installed import installation_of
from tidemark.services.audit.reading import TooMuchHeld
from tidemark.services.audit.redrive import redrive
from tidemark.services.audit.report import Audited
from tidemark.services.cli.process import quiet
from tidemark.shared.language.redaction import redacted_line
from tidemark.shared.model.failures import Outage
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.verdicts import Kind, ProgramVerdict
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.ports.commits import StoreUnavailable, StoreUnusable
from tidemark.shared.ports.log import LogError

_SAID_MAX: Final = 20
"""Sentences of a sort that are kept: a topic may have many partitions."""


def verdict_of(audited: Audited) -> ProgramVerdict:
    """Of an audit without a discrepancy."""
    unchecked = [*audited.gone, *audited.unchecked]
    return ProgramVerdict(
        "unchecked" if unchecked else "held",
        epoch=max((each.epoch for each in audited.epochs if each.released), default=audited.before.epoch),
        records=audited.records,
        counted=audited.accepted,
        late=audited.late,
        repeated=audited.duplicates,
        dead=audited.dead_letters,
        outputs={str(vertex): rows for vertex, rows in audited.outputs.items()},
        waiting=len(audited.waiting),
        unchecked=_some(unchecked),
        notes=_some([*audited.earlier(), *audited.notes, *audited.unread]),
    )


def _some(sentences: Iterable[str]) -> list[str]:
    found = list(sentences)
    left = len(found) - _SAID_MAX
    return [*found[:_SAID_MAX], f"and {left} more"] if left > 0 else found


async def judge(kind: Kind, name: ProcessorName) -> ProgramVerdict:
    """Carry it out. ProcessSettingsError."""
    try:
        async with installation_of(os.environ) as installed:
            if kind == "audit":
                return verdict_of(await audit(name, installed, resumes=True))
            done = await redrive(name, installed)
            return ProgramVerdict("done", letters=done.letters, corrections=done.corrections, topic=done.topic)
    except (NotAuditable, CannotRedrive, TooMuchHeld, StoreUnusable) as error:
        return ProgramVerdict("cannot", redacted_line(str(error)))
    except AuditFailed as error:
        return ProgramVerdict("differs", redacted_line(str(error)))
    except (LogError, BlobError, StoreUnavailable) as error:
        passing = isinstance(error, Outage | StoreUnavailable)
        return ProgramVerdict("away" if passing else "cannot", redacted_line(str(error)))


def main() -> None:
    """The entry point."""
    kinds = get_args(Kind)
    words = sys.argv[1:]
    if len(words) != 2 or words[0] not in kinds:  # noqa: PLR2004 - a kind and a processor's name
        sys.stderr.write(f"expected {' or '.join(kinds)} and a processor's name, found {words}\n")
        sys.exit(2)
    quiet(logging.CRITICAL)
    verdict = asyncio.run(judge("audit" if words[0] == "audit" else "redrive", ProcessorName(words[1])))
    sys.stdout.buffer.write(msgspec.json.encode(verdict))


if __name__ == "__main__":
    main()
