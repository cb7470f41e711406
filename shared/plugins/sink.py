"""Sinks: Tidemark keeps an epoch's documents until its checkpoint is committed, and then has them written, part by part.

So a sink never sees what may have to be taken back: no staging, no abort, no epochs. It has one duty: documents and a marker become visible
in one step, and only behind the marker that is named. From that follows exactly once, whatever process dies when.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tidemark.shared.model.values import Document
from tidemark.shared.plugins.base import C, Plugin, S


class Sink(Plugin[C, S], ABC):
    """Derive from `Sink[Config, Settings]`, and write `marker` and `write`.

    An *identity* is a text of letters, digits, `.` and `-` (at most 200), and stands for one task of one processor; a *marker* is some 300
    bytes of JSON that mean nothing to the sink.
    """

    @abstractmethod
    def marker(self, identity: str) -> bytes | None:
        """The marker that was written last under the identity, by whatever process; None if none ever was. Raises Away, Refused."""

    @abstractmethod
    def write(self, identity: str, documents: Sequence[Document], marker: bytes, after: bytes | None) -> None:
        """In one step: if the identity's last marker is `after` (None: it has none), documents become visible and `marker` is the last.

        All of it or nothing, and durable on return. A process that was taken for dead may still call it: comparing and writing must not be
        divided. There may be no documents.

        Raises:
            Overtaken: the last marker is another one.
            Away: it is not known, or not done; it is tried again, with the marker that is then the last.
            Refused: a document that the target will never take. Documents that `refused` names do not come here.
        """

    def refused(self, documents: Sequence[Document]) -> Mapping[int, str]:
        """Why the target would not take some of the documents, by their place: they become dead letters.

        Looks at the documents alone: it is called on an object that is never opened.
        """
        del documents
        return {}
