"""The log of an installation of tests, sealed as a real one's."""

from typing import Final

from tidemark.shared.ports.log import Log
from tidemark.shared.runtime.sealed_log import SealedLog
from tidemark.shared.wire.seals import SealKeys

KEY: Final = "the-key-of-all-installations-of-tests"
KEYS: Final = SealKeys.of(KEY)


def sealed(log: Log, keys: SealKeys = KEYS, prefix: str = "tidemark") -> SealedLog:
    """What one of the installation's processes has for a log."""
    return SealedLog(log, keys, prefix)
