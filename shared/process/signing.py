"""The keys by which an installation's processes know each other's records, and the log that seals with them."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, kafka_settings
from tidemark.shared.runtime.sealed_log import SealedLog
from tidemark.shared.wire.seals import SealKeys

VARIABLE: Final = "TIDEMARK_SIGNING_KEYS"
FILE_VARIABLE: Final = f"{VARIABLE}_FILE"
_KEY_BYTES: Final = 32
"""Length of a new key, as HMAC-SHA256 uses it."""


def read_keys(environment: Mapping[str, str]) -> SealKeys:
    """The keys that the environment holds, or the file that it names, which is made where it is not there. ProcessSettingsError."""
    text, place = environment.get(VARIABLE, ""), VARIABLE
    if not text and (name := environment.get(FILE_VARIABLE, "")):
        text, place = _from_file(Path(name)), name
    if not text:
        message = (
            f"{VARIABLE} is not set; expected the keys that all processes of this installation share, of at least 32 characters each, or"
            f" {FILE_VARIABLE}, a file of them: without them anybody who reaches the brokers commands the installation"
        )
        raise ProcessSettingsError(message)
    try:
        return SealKeys.of(text)
    except ValueError as error:
        message = f"{place}: {error}"
        raise ProcessSettingsError(message) from error


def _from_file(path: Path) -> str:
    """The content of the file; the first process to come makes it, whole and readable by its owner alone."""
    try:
        if not path.exists():
            temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(secrets.token_urlsafe(_KEY_BYTES) + "\n")
            try:
                os.link(temporary, path)
            except FileExistsError:
                return path.read_text()
            finally:
                temporary.unlink()
        return path.read_text()
    except OSError as error:
        message = f"{FILE_VARIABLE}: {path}: expected a file of keys, or a place for one: {error.strerror}"
        raise ProcessSettingsError(message) from error


def sealed_log(kafka: KafkaSettings, keys: SealKeys, prefix: str = "tidemark") -> SealedLog:
    """The log of a cluster, with topics below the prefix sealed. LogError as `KafkaLog`."""
    return SealedLog(KafkaLog(kafka), keys, prefix)


def own_log(settings: ProcessSettings) -> SealedLog:
    """The log of this process' installation. ProcessSettingsError."""
    return sealed_log(kafka_settings(settings), read_keys(os.environ), settings.prefix)
