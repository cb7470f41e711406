"""Damaged requests, byte by byte, to the listeners: `python -m tests.harness.raw_http REQUESTS [SEED]` (a part of `make fuzz`).

A listener answers each with a status below 500, or closes the connection; and it answers a whole request as before.
"""

import logging
import random
import socket
import sys
from collections import Counter
from typing import Final
from urllib.parse import urlsplit

from tests.harness.console import NAME, token_of
from tests.harness.damage import damaged

ANSWER_BYTES_MAX: Final = 1 << 20
WAIT_S: Final = 0.5
"""A request that is cut waits for its rest: that is not waited for."""
_BEHIND: Final = b"\r\n\r\nGET /healthz HTTP/1.0\r\n\r\n"
"""A request behind the damaged one: it, or the rest of the damaged one, and the connection is closed."""


def _requests(token: str) -> list[bytes]:
    """Whole ones, as clients send them."""
    body = b'{"document": {"pipeline": []}}'
    head = f"Host: a\r\nAuthorization: Bearer {token}\r\nIdempotency-Key: key-1\r\nContent-Type: application/json\r\n"
    lines = b'{"id": 1}\n{"id": "\xc3\xa4"}\n'
    chunked = b"1e\r\n" + body + b"\r\n0\r\n\r\n"
    return [
        f"GET /v1/processors/{NAME}/logs?limit=5 HTTP/1.1\r\n{head}\r\n".encode(),
        f"GET /v1/processors/%C3%A4%FF/stats?scale=1&verbose=true HTTP/1.1\r\n{head}\r\n".encode(),
        f"POST /v1/validate HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body,
        f"POST /v1/validate HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunked,
        f"POST /v1/topics/t/records?key=id&id=id HTTP/1.1\r\n{head}Content-Length: {len(lines)}\r\n\r\n".encode().replace(
            b"application/json", b"application/x-ndjson"
        )
        + lines,
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nAuthorization: Basic bWU6YS10b2tlbg==\r\nExpect: 100-continue\r\n\r\n",
    ]


def asked(url: str, data: bytes) -> bytes:
    """The beginning of what a listener says to these bytes; nothing where it waits for more of them."""
    place = urlsplit(url)
    assert place.hostname is not None
    found = b""
    with socket.create_connection((place.hostname, place.port or 80), timeout=WAIT_S) as connection:
        try:
            connection.sendall(data + _BEHIND)
            while len(found) < ANSWER_BYTES_MAX and (more := connection.recv(1 << 16)):
                found += more
                if b"text/event-stream" in found:
                    break
        except (ConnectionError, TimeoutError):
            return found
    return found


def run(urls: list[str], count: int, seed: int) -> tuple[list[str], Counter[str]]:
    """What was found in so many damaged requests, and the statuses that came ("": none)."""
    found, statuses = [], Counter[str]()
    whole = _requests(token_of("viewer"))
    for number in range(seed, seed + count):
        chooser = random.Random(number)
        data, url = damaged(chooser.choice(whole), chooser), chooser.choice(urls)
        answer = asked(url, data)
        said = [line.split()[1].decode(errors="replace") for line in answer.split(b"\r\n") if line.startswith(b"HTTP/")]
        statuses.update(said[:1] or [""])
        if any(not status.isdecimal() or status >= "500" for status in said) or (answer and not said):
            found.append(f"seed {number}: {answer[:600]!r} to {data[:600]!r}")
    for url in urls:
        alive = asked(url, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        if b" 200 " not in alive[:20]:
            found.append(f"{url} does not answer any more: {alive[:200]!r}")
    return found, statuses


def main(count: int, seed: int) -> int:
    """How many findings; each is printed."""
    logging.disable(logging.CRITICAL)  # The library logs each request that is none.
    from tests.harness.rest import served

    with served() as (control, gateway):
        found, statuses = run([control, gateway], count, seed)
    for line in found:
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"{count} damaged requests from seed {seed}: {len(found)} findings; {dict(statuses)}\n")
    return len(found)


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
