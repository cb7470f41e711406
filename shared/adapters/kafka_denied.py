"""Brokers that refuse a client: a wrong password, a certificate that nobody signs, a client without one.

If a first connection fails, the library says only that it did, and writes the reason into its log. So a refusal would look like an outage,
which is waited out for ever. A caller that cannot connect asks here: every address is tried once more, by hand, and only a plain refusal
counts as one.
"""

import asyncio
import ssl
from typing import Any, Final

from aiokafka import errors
from aiokafka.conn import collect_hosts, create_conn

from tidemark.shared.adapters.kafka_client import translated
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.ports.log import LogDenied, LogError

_DENIALS: Final = (
    errors.SaslAuthenticationFailed,
    errors.AuthenticationFailedError,
    errors.AuthenticationMethodNotSupported,
    errors.UnsupportedSaslMechanismError,
    ssl.SSLCertVerificationError,
)
_TLS_DENIALS: Final = ("ALERT", "WRONG_VERSION_NUMBER")
"""In the reason of a TLS error: the broker has ended the handshake with a word of its own, or does not speak TLS at all."""
_CONNECTING: Final = (errors.KafkaConnectionError, TimeoutError, OSError)
_REMEDY: Final = "; correct the password, the mechanism or the certificates of the connection"


async def why_not(settings: KafkaSettings, error: BaseException, doing: str) -> LogError:
    """The port's error for one of connecting: LogDenied if a broker refuses the client, by its own answer."""
    if isinstance(error, _CONNECTING) and not _is_denial(error):
        for host, port, _ in collect_hosts(settings.bootstrap):
            denial = await _denial(settings, host, port)
            if denial is not None:
                error = denial
                break
    if _is_denial(error):
        return LogDenied(f"{doing}: the brokers refuse this client ({_said(error)}){_REMEDY}")
    return translated(error, doing)


async def _denial(settings: KafkaSettings, host: str, port: int) -> BaseException | None:
    """Connect once, within the time of a request; None for an error that is no refusal."""
    given: dict[str, Any] = settings.connection("asks")
    del given["bootstrap_servers"]
    try:
        async with asyncio.timeout(settings.request_timeout_ms / 1000):
            connection = await create_conn(host, port, **given)
    except (errors.KafkaError, OSError, TimeoutError) as error:
        cause = error.__cause__
        return next((found for found in (error, cause) if found is not None and _is_denial(found)), None)
    connection.close()
    return None


def _is_denial(error: BaseException) -> bool:
    if isinstance(error, ssl.SSLError) and any(word in (error.reason or "") for word in _TLS_DENIALS):
        return True
    return isinstance(error, _DENIALS)


def _said(error: BaseException) -> str:
    """The message of the broker or of TLS, with the library's name for it. No password is in it: the broker does not know ours."""
    text, name = str(error), type(error).__name__
    return text if name in text else f"{name}: {text}"
