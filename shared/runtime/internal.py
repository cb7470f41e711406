"""Topics that are an installation's or a broker's own: no document, record or batch of a user's reads or writes them.

Their names are closed on every cluster: a document may name the installation's by another address.
"""

from collections.abc import Iterator

from tidemark.shared.language.documents import KafkaDlq, Processor
from tidemark.shared.language.documents.model import all_stages
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.language.problems import DocumentError, InvalidDocument
from tidemark.shared.language.stages import KafkaEmit, KafkaSource


def is_internal(topic: str, prefix: str) -> bool:
    """Whether a name is the broker's, or one of the installation with this prefix, or of one with the default's."""
    return topic.startswith(("__", "tidemark.", f"{prefix}."))


def refusal(topic: str, prefix: str) -> str:
    """Why a user may not have this topic; "" if nothing speaks against it."""
    if not is_internal(topic, prefix):
        return ""
    own = " or ".join(repr(f"{name}.") for name in sorted({"tidemark", prefix}))
    return f"{topic} is an internal topic of the broker or the installation; choose a name that begins neither with '__' nor with {own}"


def check_topics(processor: Processor, prefix: str) -> None:
    """InvalidDocument with each place of a document that names one; a name that an expression gives is seen when a record has it."""
    found = [DocumentError(place, reason) for place, topic in _named(processor) if (reason := refusal(topic, prefix))]
    if found:
        raise InvalidDocument(found)


def _named(processor: Processor) -> Iterator[tuple[str, str]]:
    for stage in all_stages(processor.pipeline):
        match stage:
            case KafkaSource():
                yield from ((f"{stage.path}.topic", topic) for topic in stage.topics)
            case KafkaEmit(topic=Literal(value=str() as topic)):
                yield f"{stage.path}.topic", topic
            case _:
                continue
    if isinstance(processor.options.dlq, KafkaDlq):
        yield "options.dlq.topic", processor.options.dlq.topic
