"""Reasons for which a run of any installation would refuse a valid document: found before anything starts, without connecting."""

from collections.abc import Iterator, Mapping
from typing import Any

from tidemark.shared.language.documents import InvalidDocument, Processor, resolve
from tidemark.shared.language.documents.model import connection_needs
from tidemark.shared.language.problems import DocumentError
from tidemark.shared.planning import PlanError, plan_processor


def never_runs(processor: Processor, variables: Mapping[str, str]) -> Iterator[DocumentError]:
    """Parts that cannot be planned, and variables of connections that are not set."""
    try:
        plan_processor(processor)
    except PlanError as error:
        place, _, message = str(error).partition(": ")
        yield DocumentError(place, message)
    for connection in named_connections(processor).values():
        try:
            resolve(connection, variables)
        except InvalidDocument as error:
            yield from error.errors


def connection_names(processor: Processor) -> set[str]:
    """The connections that stages and the queue of dead letters name."""
    return {need.connection for need in connection_needs(processor.pipeline, processor.options.dlq)}


def named_connections(processor: Processor) -> Mapping[str, Any]:
    """Those of them that the document brings itself."""
    names = connection_names(processor)
    return {name: connection for name, connection in processor.connections.items() if name in names}
