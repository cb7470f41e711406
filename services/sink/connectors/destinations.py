"""From the place of an `$emit` to the directory or object store that its files go to."""

from pathlib import Path
from urllib.parse import urlparse

from tidemark.services.sink.connectors.destination import Destination, LocalDestination
from tidemark.services.sink.connectors.objects import ObjectDestination
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import FileEmit
from tidemark.shared.process.connections import Connections, filesystem_at


def destination_of(connections: Connections, processor: Processor, stage: FileEmit, attempt: str) -> Destination:
    """Where files go. attempt: names that another attempt does not use."""
    place, config = connections.place_of(processor, stage.connection_name, stage.file_path, stage.path)
    if urlparse(place).scheme in ("", "file"):
        return LocalDestination(Path(place.removeprefix("file://")), attempt)
    filesystem, path = filesystem_at(place, stage.path, config)
    return ObjectDestination(filesystem, path)
