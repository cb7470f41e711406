"""A try-out for others, in a process of its own: a document and rows come by standard input, output and dead letters go out.

The process reads nothing else: a document whose stages reach outside, or that brings code, is refused. Its memory and time have bounds.
"""

import resource
import sys
from collections.abc import Iterator
from typing import Any, Final

from tidemark.services.cli.process import quiet, runner
from tidemark.services.library.trying import TryOutFailed, with_rows
from tidemark.shared.language.documents import InvalidDocument, Processor, all_stages, parse
from tidemark.shared.language.stages import CachedLookup, Compute, DocumentsSource, Https, InlineTable, Lookup
from tidemark.shared.language.values import ExtendedJsonError, parse_json, render_json
from tidemark.shared.model.ids import ProcessorName

DATA_BYTES_MAX: Final = 2 << 30
"""A process that compiles and runs a pipeline takes some 235 MiB."""
CPU_S_MAX: Final = 20
"""Of processor time: a thousand records take 0.15 s behind the start, one row that uses up its budget some seconds."""
_NAME: Final = ProcessorName("try-out")


def outside(processor: Processor) -> Iterator[str]:
    """The stages that read or call what is not among the rows."""
    for stage in all_stages(processor.pipeline):
        table = isinstance(stage, CachedLookup | Lookup) and not isinstance(stage.from_, InlineTable)
        if table or isinstance(stage, Compute | Https):
            yield stage.path
    yield from (source.path for source in processor.sources if not isinstance(source, DocumentsSource))


def tried(asked: Any) -> dict[str, Any]:
    """The answer to {document, rows, limit}. TryOutFailed; InvalidDocument."""
    text, rows = with_rows(asked["document"], asked["rows"])
    if found := ", ".join(outside(parse(text))):
        raise TryOutFailed(f"{found}: reaches outside; `tidemark try` tries it out with your own rights")
    with runner("local") as running:
        outcome, _ = running.run(text, _NAME, None, rows)
    most = int(asked["limit"])
    error = {} if outcome.error is None else {"error": outcome.error}
    counts = {"out": len(outcome.output), "dead": len(outcome.letters)}
    return {"documents": outcome.output[:most], "deadLetters": outcome.letters[:most], **counts, **error}


def main() -> int:
    """0, and an answer; 1, and a sentence on standard error."""
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    quiet()
    try:
        answer = tried(parse_json(sys.stdin.buffer.read()))
    except (TryOutFailed, InvalidDocument, ExtendedJsonError) as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return 1
    sys.stdout.buffer.write(render_json(answer, canonical=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
