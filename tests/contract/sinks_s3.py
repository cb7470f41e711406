"""As much of S3's interface as a file sink needs, in memory, on the loopback address: objects, listing, and If-None-Match."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Store:
    """Objects by key, and what was asked."""

    def __init__(self, *, names_condition: bool) -> None:
        self.condition = "<Condition>If-None-Match</Condition>" if names_condition else ""
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.conditional_puts = 0
        self.refused = 0
        self.lose_answers = 0
        """So many conditional puts are done, but answered as a server error: the client tries them again."""


class Handler(BaseHTTPRequestHandler):
    """One request; `store` is set in a type of its own for each server."""

    protocol_version = "HTTP/1.1"
    store: Store

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), "ETag": '"x"', "Last-Modified": formatdate(0, usegmt=True)}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status: int, code: str, more: str = "") -> None:
        self.answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message>{more}</Error>".encode())

    def key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    def do_PUT(self) -> None:
        store = self.store
        data = self.rfile.read(int(self.headers["Content-Length"]))
        with store.lock:
            if copied := self.headers.get("x-amz-copy-source"):
                source = unquote(copied).lstrip("/").partition("/")[2]
                if source not in store.objects:
                    self.error(404, "NoSuchKey")
                    return
                store.objects[self.key()] = store.objects[source]
                self.answer(200, b"<CopyObjectResult><ETag>x</ETag></CopyObjectResult>")
                return
            if self.headers.get("If-None-Match") == "*":
                store.conditional_puts += 1
                if self.key() in store.objects:
                    store.refused += 1
                    self.error(412, "PreconditionFailed", store.condition)
                    return
            store.objects[self.key()] = data
            if store.lose_answers:
                store.lose_answers -= 1
                self.error(500, "InternalError")
                return
        self.answer(200)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "list-type" in query:
            self.answer(200, _listing(self.store, query.get("prefix", [""])[0], query.get("delimiter", [""])[0]))
        elif self.key() in self.store.objects:
            self.answer(200, self.store.objects[self.key()])
        else:
            self.error(404, "NoSuchKey")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.store.objects.pop(self.key(), None)
        self.answer(204)


def _listing(store: Store, prefix: str, delimiter: str) -> bytes:
    folders: dict[str, None] = {}
    found = ""
    for key in sorted(key for key in store.objects if key.startswith(prefix)):
        head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        if cut:
            folders[prefix + head + cut] = None
            continue
        found += (
            f"<Contents><Key>{escape(key)}</Key><Size>{len(store.objects[key])}</Size><ETag>x</ETag>"
            "<LastModified>1970-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
        )
    found += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()


@contextmanager
def s3(*, names_condition: bool = True) -> Iterator[tuple[Store, str]]:
    """A running store and its endpoint. `names_condition`: it says which condition failed, as S3 does and others do not."""
    store = Store(names_condition=names_condition)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"store": store}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
