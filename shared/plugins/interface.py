"""The interface of plug-ins: what their authors write, what they promise, and the errors that they raise (docs/plugins.md)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

from tidemark.shared.computation.base import NoConfig
from tidemark.shared.model.failures import Lasting, Outage
from tidemark.shared.model.values import Document, Found, Value


class Away(Outage):
    """For plug-ins to raise: the other side does not answer; waiting may help. It is tried again on a new object, and is no failure."""


class Refused(Lasting):
    """For plug-ins to raise: time does not mend it. The processor is FAILED at once, with the reason."""


class Overtaken(Exception):
    """For sinks to raise: the marker is not the one that the write names as the last, so another writer was there. Nothing is written."""


class PluginError(Lasting):
    """A plug-in that is not installed, does not load, or does not take its config. The message names plug-in, expectation and finding."""


class PluginFailed(Exception):
    """A plug-in raises what is neither `Away` nor `Refused`, or breaks its contract. It is tried again, as every failure."""


API: Final = 1
"""The version of this interface. It rises where a plug-in that is written for the version before would do something wrong."""
C = TypeVar("C")
S = TypeVar("S")


class Plugin(Generic[C, S]):
    """A plug-in made with a stage's config and the settings of the stage's connection.

    Each object is used by one thread at a time, but not always by the same one. It may block. It is made anew after every error.
    """

    api: ClassVar[int] = 0
    """The version of the interface that the class is written for: set it to 1."""
    Config: ClassVar[type[Any]] = NoConfig
    """The stage's `config`: a dataclass; a field without a default has to be given."""
    Settings: ClassVar[type[Any]] = NoConfig
    """The `config` of the stage's connection, of type plugin, which is the place for addresses and passwords: a dataclass, too."""

    def __init__(self, config: C, settings: S) -> None:
        """Keeps both, and connects to nothing: `tidemark validate` makes an object, too. ValueError for a config that cannot work."""
        self.config = config
        self.settings = settings

    def open(self) -> None:
        """Connect. Raises Away, Refused."""

    def close(self) -> None:
        """Let go. Called once, also where `open` has failed."""


class Lookup(Plugin[C, S], ABC):
    """Derive from `Lookup[Config, Settings]`, and write `find`. The documents may change from one question to the next."""

    @abstractmethod
    def find(self, fields: Sequence[str], wanted: Sequence[tuple[Value, ...]]) -> Sequence[Found]:
        """The documents that equal one of `wanted`, which has a value for each field; more may come, none may lack.

        fields: paths, as `place.city`; there may be none, and then all documents are asked for. Equal is as `$eq` has it: numbers of all
        types by their value, null as a missing field, and an array by its items, too. What comes is compared again, so a
        plug-in that cannot narrow a question by a field or a value leaves it out of its own.

        A `Found` is a document and its place, a whole number that tells it from all others and stays while the document is there:
        what is found stands in the order of places. Raises Away, Refused.
        """


class Format(Plugin[C, NoConfig], ABC):
    """Derive from `Format[Config]`, and write `decode` and `encode`. A format is never opened: what it gives follows from what it is given.

    A record or document for which either raises anything becomes a dead letter, with what was raised as the reason.
    """

    @abstractmethod
    def decode(self, data: bytes) -> Document | bytes:
        """The document of a record, or its JSON in bytes. ValueError where the bytes are no record."""

    @abstractmethod
    def encode(self, document: Document) -> bytes:
        """The record of a document, always the same. ValueError where it has none."""


class Sink(Plugin[C, S], ABC):
    """Derive from `Sink[Config, Settings]`, and write `marker` and `write`.

    An epoch's documents are kept until its checkpoint is committed, and then written, part by part. So a sink never sees what may have to
    be taken back: no staging, no abort, no epochs. It has one duty: documents and a marker become visible in one step, and only behind the
    marker that is named. From that follows exactly once, whatever process dies when.

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


@dataclass(frozen=True, slots=True)
class Split:
    """A part of the source that is read in order, by one task."""

    name: str
    ordinal: int = 0
    """A number of its own, 0 to 2^31 − 1, which stays when splits come and go: it gives the split to a task."""
    origin: str = ""
    """The owner of the positions, such as the id of a table: in another one they mean something else, and the job fails."""
    begin: int = 0
    """The position where a job begins to read, when it looks at the source for the first time."""
    earliest: int = 0
    """The same for a split that comes while the job runs: at or in front of its first record."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a split."""

    position: int
    """0 to 2^52; above that of the record before it."""
    value: Document | bytes | None
    """A document, or one as JSON in bytes; None for a record without a value, such as a tombstone."""
    timestamp_ms: int
    """The event time where the document names no `timeField`, ms since 1970. The same whenever it is read."""


Then = Literal["more", "nothing yet", "nothing"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of a read."""

    records: Sequence[Record]
    next: int
    """The position to read from next: behind the last record, or further."""
    then: Then = "more"
    """Behind them: more; nothing now; nothing ever, for the split has ended."""


class Source(Plugin[C, S], ABC):
    """Splits that are read in order: derive from `Source[Config, Settings]`, and write `splits`, `read` and `end`.

    A split and a position name a record for ever: what was read from a position comes again, the same, when it is read from there again.
    From that follows exactly once: positions are part of the snapshot, and no input is stored besides. A job goes on at a position that the
    source has given: of a split's begin, of a record, or `next`. So a byte of a file serves as well as a number.
    """

    @property
    def bounded(self) -> bool:
        """Whether every split ends by itself, and no more splits come."""
        return False

    @abstractmethod
    def splits(self) -> Sequence[Split]:
        """All that exist now; the same in every task. Raises Away, Refused."""

    @abstractmethod
    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        """The next records from a position on, in order, about so many bytes, and at least one if there is one; does not wait for any.

        Raises Away, Refused.
        """

    @abstractmethod
    def end(self, split: str) -> int:
        """The position behind the last record that there is now: where a drain stops. Not asked where `bounded`. Raises Away, Refused."""

    def committed(self, positions: Mapping[str, int]) -> None:
        """A checkpoint has these next positions: records in front of them are not asked for again, unless an older one is restored.

        For queues that keep records until they are told so. Raises Away, Refused.
        """
