"""REST by its own description: requests that fit it and requests that do not, from each role and from nobody, to a real control service.

`python -m tests.harness.rest REQUESTS [SEED]` (a part of `make fuzz`). Every status of 500 and more, every status or form of an answer that
/openapi.json does not name, and every request that does not fit and is carried out anyway, is a finding.
"""

import asyncio
import json
import logging
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

from tests.harness import hostile
from tests.harness.console import DOCUMENT, NAME, console, token_of
from tests.harness.damage import damaged
from tests.harness.installation import Installed
from tidemark.services.cli.process import quiet
from tidemark.services.gateway.service import GatewayService
from tidemark.services.gateway.settings import GatewaySettings
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_log import MemoryLog

STRANGER: Final = "admin@elsewhere"
"""A user to whom the processor that is there does not exist."""
ROLES: Final = ("viewer", "operator", "admin", STRANGER, None)
"""Users; None: a request without a token."""
CHECKS: Final = (
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
)
WAIT_S: Final = 40
"""For an answer: longer than control waits for the coordinator."""
_SEEN: Final = "source-1"
"""A vertex of the processor that is there: it stands in what is told of it."""
_ODD: Final = (
    "",
    "9" * 5_000,
    "-1",
    "0x1",
    "1e3",
    "\u0663",
    "TRUE",
    "\x00",
    "%",
    "a/b",
    "..",
    "\ud83d\ude00" * 30,
    "{name}",
)
_VALUES: Final = (
    {"type": "files", "path": "x"},
    {"type": "kafka", "bootstrapServers": "127.0.0.1:1"},
    {"type": "https", "url": "https://127.0.0.1:1"},
)


@contextmanager
def served() -> Iterator[tuple[str, str]]:
    """The addresses of a control service before a processor that runs, and of a gateway, for as long as the block lasts."""
    ready, addresses, stop = threading.Event(), list[str](), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve(folder: Path) -> None:
        quiet(logging.CRITICAL)
        async with console(folder) as shown, gateway(shown.there) as url:
            addresses.extend((shown.url, url))
            ready.set()
            await stop.wait()

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=lambda: loop.run_until_complete(serve(Path(folder))))
        thread.start()
        try:
            assert ready.wait(60), "the control service does not serve"
            yield addresses[0], addresses[1]
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


@asynccontextmanager
async def gateway(there: Installed) -> AsyncIterator[str]:
    """The address of a gateway to the installation's log, with a token of the console's."""
    log, broken = MemoryLog(there.broker), list[BaseException]()
    await log.create_topic("t", 1)
    service = GatewayService(
        log, there.clock, AsyncExecutor(), "g", "tidemark", GatewaySettings(port=0), token_of("viewer")
    )
    running = AsyncExecutor().spawn(service.run(), "gateway", broken.append)
    await service.serving.wait()
    yield service.url
    service.stop()
    await running.join()
    assert broken == []


def _changed(case: Case, chooser: random.Random) -> None:
    """Often the processor that is there, a document that is nearly one, a value that no schema thinks of."""
    if "name" in (case.path_parameters or {}) and chooser.random() < 0.6:
        case.path_parameters["name"] = NAME
    for each in case.operation.query:
        if chooser.random() < 0.3:
            case.query = {**(case.query or {}), each.name: chooser.choice(_ODD)}
    if case.operation.body and chooser.random() < 0.1:
        case.headers["Content-Encoding"] = chooser.choice(("gzip", "deflate", "br", "\xe9"))
    if isinstance(case.body, dict) and "document" in case.body and chooser.random() < 0.6:
        case.body = {**case.body, "document": hostile.a_tree(chooser)}
        if chooser.random() < 0.3:
            case.body["document"] = damaged(json.dumps(case.body["document"]).encode(), chooser).decode(
                errors="replace"
            )
        if case.operation.label.startswith("POST /v1/processors"):
            case.body["start"] = False
    elif case.operation.label.startswith("PUT") and chooser.random() < 0.6:
        value = chooser.choice(_VALUES)
        case.body = {
            **value,
            chooser.choice(("path", "type", "config", "x")): chooser.choice((*_ODD, None, [], {"a": _ODD[1]}, 2**80)),
        }


class Asked:
    """Requests to one service, and what was wrong with the answers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema = schemathesis.openapi.from_dict(self._own("GET", "/openapi.json").json())
        self.schema.config.update(base_url=url)
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.findings: dict[str, str] = {}

    def run(self, count: int, first: int) -> list[str]:
        """What was found in so many requests, drawn from a seed; each kind once."""
        operations: list[Any] = [found.ok() for found in self.schema.get_all_operations()]
        for operation in operations:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                self._run(operation, mode, max(1, count // len(operations) // 2), first)
        return list(self.findings.values())

    def _run(self, operation: Any, mode: GenerationMode, count: int, first: int) -> None:
        drawn = settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )

        @drawn
        @seed(first)
        @given(operation.as_strategy(generation_mode=mode), st.sampled_from(ROLES), st.integers(0, 2**32))
        def ask(case: Case, role: str | None, number: int) -> None:
            self._ask(case, role, random.Random(number))

        with suppress(Unsatisfiable):  # Nothing does not fit an operation without parameters.
            ask()

    def _ask(self, case: Case, role: str | None, chooser: random.Random) -> None:
        if case.operation.label.endswith(("/stop", "/start")) or case.method == "DELETE":
            self._there()
        _changed(case, chooser)
        sent = case.as_transport_kwargs(base_url=self.url)
        sent["headers"] = {**(sent.get("headers") or {}), "Authorization": f"Bearer {token_of(role)}" if role else ""}
        try:
            found = requests.request(**sent, stream=True, timeout=WAIT_S)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeEncodeError):
            return  # No request.
        with found:
            # Live events end when nobody listens: one is enough.
            live = found.headers.get("Content-Type", "").startswith("text/event-stream")
            found._content = next(found.iter_content(1 << 16)) if live else found.content
        self.statuses[case.operation.label, found.status_code] += 1
        self._judge(case, role, found)

    def _judge(self, case: Case, role: str | None, found: requests.Response) -> None:
        place = f"{case.operation.label} as {role}: {found.status_code}"
        asked = f" | {str(found.request.url)[:200]} {str(found.request.body)[:300]}"
        if found.status_code >= 500:
            self._note(place, f"{found.text[:300]}{asked}")
        elif role is None and found.status_code != 401 and case.operation.definition.raw["security"]:
            self._note(place, "answered without a token")
        elif role == STRANGER and _SEEN in found.text:
            self._note(f"{place}: told of another namespace", f"{found.text[:300]}{asked}")
        elif found.status_code not in (401, 403):
            try:
                case.validate_response(found, checks=list(CHECKS))
            except (FailureGroup, AssertionError) as error:
                for one in error.exceptions if isinstance(error, FailureGroup) else (error,):
                    self._note(f"{place}: {type(one).__name__}", f"{str(one)[:400]}{asked}")

    def _note(self, place: str, text: str) -> None:
        self.findings.setdefault(place, f"{place}: {text}")

    def _there(self) -> None:
        """The processor, running, whatever has been done to it."""
        self._own("POST", "/v1/processors", {"name": NAME, "document": DOCUMENT})
        self._own("POST", f"/v1/processors/{NAME}/start", {})

    def _own(self, method: str, path: str, body: Any = None) -> requests.Response:
        headers = {"Authorization": f"Bearer {token_of('admin')}"}
        return requests.request(method, self.url + path, json=body, headers=headers, timeout=WAIT_S)


def main(count: int, first: int) -> int:
    """How many kinds of findings; each is printed, with the statuses that came."""
    with served() as (url, _):
        asked = Asked(url)
        found = asked.run(count, first)
    for line in found:
        sys.stdout.write(line + "\n")
    for (label, status), times in sorted(asked.statuses.items()):
        sys.stdout.write(f"{label} {status}: {times}\n")
    sys.stdout.write(f"{sum(asked.statuses.values())} requests from seed {first}: {len(found)} findings\n")
    return len(found)


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
