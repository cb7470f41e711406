"""Which vertices wait for barriers, and how long (C13)."""

from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import DocumentsSource, ScriptSource
from tidemark.shared.model.plan import Vertex

OPERATOR = "operator"


def alignment_timeout_ms(processor: Processor, vertex: Vertex) -> int | None:
    """How long its tasks wait for barriers after the coordinator's command; None: for ever.

    Operators alone are cut in between. A Spark stage works an epoch at a time (P1). A sink releases with a checkpoint the rows that
    its senders gave out in front of their barriers, whatever other sinks do. And a script goes step by step: a checkpoint shows that a
    step is done only if all earlier rows have been worked on.
    """
    if vertex.service != OPERATOR or isinstance(processor.source, DocumentsSource | ScriptSource):
        return None
    return processor.options.alignment_timeout_ms


def alignment_text(processor: Processor, vertex: Vertex) -> str:
    """For people; empty where the document says nothing of it."""
    if processor.options.alignment_timeout_ms is None or vertex.service == "source":
        return ""
    timeout_ms = alignment_timeout_ms(processor, vertex)
    if timeout_ms is None:
        return ", waits for barriers"
    return f", waits at most {timeout_ms} ms for barriers" if timeout_ms else ", does not wait for barriers"
