"""Brokers that refuse a client: a wrong password, a certificate that nobody signs, a client without one.

If a first connection fails, the library says only that it did, and writes the reason into its log. So a refusal would look like an outage,
which is waited out for ever. A caller that cannot connect asks here: every address is tried once more, by hand, and only a plain refusal
counts as one.
"""

import asyncio
import os
import ssl
from typing import Any, Final

from aiokafka import errors
from aiokafka.conn import collect_hosts, create_conn

from tidemark.shared.adapters.kafka_client import translated
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.ports.log import LogDenied, LogError, LogUnavailable

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
    unreached: list[str] = []
    if isinstance(error, _CONNECTING) and not _is_denial(error):
        for host, port, _ in collect_hosts(settings.bootstrap):
            found = await _tried(settings, host, port)
            if found is not None and _is_denial(found):
                error = found
                break
            if found is not None:
                unreached.append(f"{host}:{port}: {_why(found, settings)}")
    if _is_denial(error):
        return LogDenied(f"{doing}: the brokers refuse this client ({_said(error, settings)}){_REMEDY}")
    if unreached:
        return LogUnavailable(f"{doing}: no broker is reached ({'; '.join(unreached)}); try again")
    return translated(error, doing)


async def _tried(settings: KafkaSettings, host: str, port: int) -> BaseException | None:
    """Connect once, within the time of a request; the error, a refusal before what it caused."""
    given: dict[str, Any] = settings.connection("asks")
    del given["bootstrap_servers"]
    try:
        async with asyncio.timeout(settings.request_timeout_ms / 1000):
            connection = await create_conn(host, port, **given)
    except (errors.KafkaError, OSError, TimeoutError) as error:
        cause = error.__cause__
        return next((found for found in (error, cause) if found is not None and _is_denial(found)), error)
    connection.close()
    return None


def _is_denial(error: BaseException) -> bool:
    if isinstance(error, ssl.SSLError) and any(word in (error.reason or "") for word in _TLS_DENIALS):
        return True
    return isinstance(error, _DENIALS)


def _why(error: BaseException, settings: KafkaSettings) -> str:
    """Why there is no connection: the system's words, or that it ended, which a listener of another protocol does without a word."""
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {settings.request_timeout_ms} ms"
    if isinstance(cause, OSError) and not isinstance(cause, ConnectionResetError):
        return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror or str(cause)
    return f"it ends the connection: it may be none for security_protocol {settings.security_protocol}"


def _said(error: BaseException, settings: KafkaSettings) -> str:
    """The message of the broker or of TLS, with the library's name for it. No password is in it: the broker does not know ours."""
    if isinstance(error, errors.UnsupportedSaslMechanismError):
        return f"they do not take sasl_mechanism {settings.sasl_mechanism}"
    text, name = str(error), type(error).__name__
    return text if name in text else f"{name}: {text}"
