"""Exits 0 if the service in this container can do its work; else says why not, and exits 1. healthy.sh runs it for TLS: imports little."""

import os
import socket
import sys
from typing import Final

_TIMEOUT_S: Final = 4.0
_ANSWER_BYTES_MAX: Final = 4096


def ready(port: int) -> tuple[bool, str]:
    """Whether /readyz on this port of the loopback address answers 200, and the text of the answer. OSError."""
    with _encrypted(socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)) as connection:
        connection.sendall(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        with connection.makefile("rb") as answer:
            head, _, body = answer.read(_ANSWER_BYTES_MAX).partition(b"\r\n\r\n")
    return head.split(b" ")[1:2] == [b"200"], body.decode(errors="replace").strip()


def _encrypted(connection: socket.socket) -> socket.socket:
    """With TLS where the services listen with it. The certificate is not checked: the process asks itself."""
    if not os.environ.get("TIDEMARK_TLS_CERTIFICATE"):
        return connection
    import ssl  # noqa: PLC0415 - only where it is needed: this is run every few seconds

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection)


def main() -> int:
    """The exit status."""
    try:
        well, said = ready(int(os.environ["TIDEMARK_HEALTH_PORT"]))
    except (KeyError, ValueError, OSError) as error:
        well, said = False, repr(error)
    sys.stdout.write(f"{said}\n")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
