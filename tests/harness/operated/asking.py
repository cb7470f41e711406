"""An operator's three ways to an installation, and what must be true of each answer."""

import asyncio
import json
import os
import random
import re
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import aiohttp
import aiokafka
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from tidemark.services.cli.installation import Installation
from tidemark.services.control.agents import HEADER, signature
from tidemark.services.local.folders import ADDRESS_FILE
from tidemark.services.local.supervisor import TOKEN_FILE
from tidemark.shared.model.messages import Request
from tidemark.shared.ports.log import LogError
from tidemark.shared.runtime.client import RequestRefused, RequestTimeout
from tidemark.shared.runtime.topics import Topics

RIGHTS: Final = {"seer": "viewer@a", "doer": "operator@a", "owner": "admin@b", "looker": "viewer"}
"""Users of the walk, by name, and their rights."""
Outcome = Literal["done", "absent", "refused", "invalid", "denied", "away"]
SANE_S: Final = {"cli": 60.0, "rest": 25.0, "message": 25.0, "topic": 40.0}
"""Until an answer, on a machine that others use, too; a command loads its modules first, and an audit reads."""
WORKS_S: Final = 180.0
"""The same for an audit and a redrive, which read the job's whole input: two walks beside a suite on two cores took 70 s."""
_WORKS: Final = re.compile(r"cli (audit|redrive)|rest POST .*/redrive")
SECOND_FILE: Final = "second.json"
"""Where the second control service tells its address: what one says is done, the next look sees at either."""
NOWHERE: Final = "nowhere"
"""A folder that is none."""
ANSWERED_S: Final = 120.0
"""Until a command by topic has its answer: the agent may have to begin anew."""
AGAIN_S: Final = 1.0
"""Until what was away is asked again."""
TROUBLED_S: Final = 90.0
"""For so long behind a kill answers may be late, or say that something is away."""
_TRACE: Final = re.compile(
    r"Traceback \(most recent|internal error|InternalError|  File \"|<[a-z_.]+ object at 0x", re.IGNORECASE
)
_AWAY: Final = (
    "does not answer", "no control service runs", "Kafka: expected", "coordinator: expected an answer", "nothing runs on",
    "has ended without a word", "expected the brokers to answer", "is still being read", "commands: expected fewer",
)  # fmt: skip
_STATUS: Final[Mapping[int, Outcome]] = {
    400: "invalid", 401: "denied", 403: "denied", 404: "absent", 405: "invalid", 409: "refused", 413: "invalid", 415: "invalid",
    422: "invalid", 429: "away", 503: "away", 504: "away",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an act."""

    outcome: Outcome
    text: str
    value: Any = None
    status: int = 0


@dataclass(slots=True)
class Asker:
    """Asks, judges, and counts."""

    folder: Path
    data: Path
    session: aiohttp.ClientSession
    there: Installation | None = None
    troubled_until: float = 0.0
    acts: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    say: Callable[[str], None] = print
    replicas: random.Random = field(default_factory=lambda: random.Random(0))
    """Draws which control service is asked."""

    def trouble(self, seconds: float = TROUBLED_S) -> None:
        """Something was killed."""
        self.troubled_until = max(self.troubled_until, time.monotonic() + seconds)

    def troubled(self) -> bool:
        """Whether that counts still."""
        return time.monotonic() < self.troubled_until

    def fault(self, text: str) -> None:
        """Something is not as it must be."""
        self.faults.append(text)
        self.say(f"    FAULT {text}")

    def _judged(self, way: str, what: str, answer: Answer, began: float) -> Answer:
        took, told = time.monotonic() - began, f"{way} {what}"
        self.acts[f"{way} {what.split(maxsplit=1)[0]}"] += 1
        self.outcomes[answer.outcome] += 1
        self.say(f"    {time.strftime('%H:%M:%S')} {told}: {answer.outcome}, {took:.1f} s {answer.text[:160]!r}")
        if _TRACE.search(answer.text):
            self.fault(f"trace: {told}: {answer.text[-600:]}")
        sane_s = WORKS_S if _WORKS.match(f"{way} {what}") else SANE_S[way]
        if took > sane_s and not self.troubled():
            self.fault(f"slow: {told}: {took:.1f} s")
        if answer.outcome == "away" and not self.troubled():
            self.fault(f"away without a cause: {told}: {answer.text[:300]}")
        if answer.outcome not in ("done", "away") and len(answer.text.strip()) < 10:
            self.fault(f"says nothing: {told}: {answer.text!r}")
        return answer

    # --- the command line -------------------------------------------------------------------------------------------------

    async def cli(self, *words: str, within_s: float = 180.0, environment: Mapping[str, str] | None = None) -> Answer:
        """`tidemark WORDS` on the installation's folder; or, by the environment, of a user who is elsewhere."""
        began = time.monotonic()
        asked = [sys.executable, "-m", "tidemark.services.cli", *words]
        if "--data" not in words:
            asked += ["--data", str(self.data)] if words[0] not in ("validate", "explain") else []
        process = await asyncio.create_subprocess_exec(
            *asked, cwd=self.folder, env={**os.environ, **(environment or {})}, stdout=PIPE, stderr=PIPE
        )
        try:
            async with asyncio.timeout(within_s):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            self.fault(f"hangs: cli {' '.join(words)}: no end within {within_s} s")
            return self._judged("cli", " ".join(words), Answer("away", "no end"), began)
        said, printed, status = err.decode(errors="replace"), out.decode(errors="replace"), process.returncode or 0
        value: Any = None
        if status == 0 and "--json" in words:
            try:
                value = json.loads(printed)
            except ValueError:
                self.fault(f"no JSON: cli {' '.join(words)}: {printed[:300]}")
        if status not in (0, 1, 2, 3):
            self.fault(f"exit status {status}: cli {' '.join(words)}: {said[-300:]}")
        answer = Answer(
            _of_command(status, said),
            said or printed if status else said + printed,
            value if value is not None else printed,
            status,
        )
        return self._judged(
            "cli", " ".join(word if word.isprintable() else ascii(word) for word in words), answer, began
        )

    # --- REST -------------------------------------------------------------------------------------------------------------

    def address(self, at: str = "") -> tuple[str, str]:
        """The URL of one of the services, and their token. OSError, ValueError while it begins."""
        drawn = self.replicas.choice((self.data / ADDRESS_FILE, self.folder / SECOND_FILE))
        found = json.loads((self.folder / at if at else drawn).read_text())
        return found["url"], Path(found["token_file"]).read_text().strip()

    async def rest(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        token: str = "",
        request: str = "",
        quiet: bool = False,
        at: str = "",
    ) -> Answer:
        """A request; `raw`: a body as it is. quiet: a look of the walk's own. at: the file with the address, in place of a drawn one."""
        began, what = time.monotonic(), f"{method} {path} {'' if body is None else json.dumps(body)[:60]}"
        try:
            url, own = self.address(at)
            headers = {"Authorization": f"Bearer {token or own}", "Content-Type": "application/json"}
            if request:
                headers["Idempotency-Key"] = request
            data = raw if raw is not None else None if body is None else json.dumps(body).encode()
            async with self.session.request(
                method, url + path, data=data, headers=headers, timeout=aiohttp.ClientTimeout(total=120)
            ) as response:
                text = (await response.read()).decode(errors="replace")
                answer = self._of_response(what, response.status, text)
        except (OSError, ValueError, aiohttp.ClientError, TimeoutError) as error:
            answer = Answer("away", f"does not answer: {error!r}")
        return answer if quiet else self._judged("rest", what, answer, began)

    def _of_response(self, what: str, status: int, text: str) -> Answer:
        try:
            value = json.loads(text)
        except ValueError:
            self.fault(f"no JSON: rest {what}: {status} {text[:200]}")
            return Answer("invalid", text, None, status)
        if status < 300:
            return Answer("done", "", value, status)
        if status >= 500 and status not in (503, 504):
            self.fault(f"status {status}: rest {what}: {text[:400]}")
        error = value.get("error") if isinstance(value, dict) else None
        if not isinstance(error, dict) or not {"place", "expectation", "finding"} <= error.keys():
            self.fault(f"error without a place: rest {what}: {status} {text[:300]}")
        return Answer(_STATUS.get(status, "invalid"), text, value, status)

    # --- messages ---------------------------------------------------------------------------------------------------------

    async def message(self, what: str, request: Request) -> Answer:
        """A request to the coordinator."""
        began, told = time.monotonic(), f"{what} {request.name}"
        assert self.there is not None
        try:
            await self.there.client.request(request)
            answer = Answer("done", "")
        except RequestRefused as error:
            answer = Answer("absent" if str(error).startswith("there is no processor") else "refused", str(error))
        except (RequestTimeout, LogError) as error:
            answer = Answer("away", str(error))
        return self._judged("message", told, answer, began)

    # --- the commands' topic ----------------------------------------------------------------------------------------------

    async def topic(self, what: str, bootstrap: str, command: Mapping[str, Any]) -> Answer:
        """A signed command; its answer is an event."""
        began, events = time.monotonic(), TopicPartition(Topics().events, 0)
        expires = datetime.fromtimestamp(time.time() + ANSWERED_S, UTC).isoformat()
        value = json.dumps({**command, "expires": expires}).encode()
        signed = signature((self.data / TOKEN_FILE).read_text().strip(), Topics().control_commands, value).encode()
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, request_timeout_ms=60_000)
        answer = Answer("away", f"coordinator: expected an answer; no event within {ANSWERED_S} s")
        try:
            async with asyncio.timeout(ANSWERED_S):
                await consumer.start()
                await producer.start()
                consumer.assign([events])
                await consumer.seek_to_end(events)
                await consumer.position(events)
                await producer.send_and_wait(Topics().control_commands, value, headers=[(HEADER, signed)])
                async for record in consumer:
                    event = json.loads(record.value)
                    if event["type"] == "answer" and event["id"] == command["request"]:
                        answer = _of_event(event)
                        break
        except (TimeoutError, KafkaError) as error:
            answer = Answer("away", f"{answer.text} {error!r}")
        finally:
            await producer.stop()
            await consumer.stop()
        return self._judged("topic", f"{what} {command['name']}", answer, began)


def token_of(user: str) -> str:
    """The user's token."""
    return f"{user}-token-of-a-walk"


def path_of(name: str, *parts: str) -> str:
    """Of a processor."""
    return "/".join(("/v1/processors", quote(name, safe=""), *parts))


def _of_event(event: Mapping[str, Any]) -> Answer:
    if event["done"]:
        return Answer("done", "")
    reason = event["reason"]
    return Answer("absent" if "there is no processor" in reason else _away_or_refused(reason), reason)


def _of_command(status: int, said: str) -> Outcome:
    if status in (0, 3):
        return "done"
    if status == 2:
        return "invalid"
    if "no processor named" in said or "no processor" in said:
        return "absent"
    return _away_or_refused(said)


def _away_or_refused(said: str) -> Outcome:
    return "away" if any(words in said for words in _AWAY) and NOWHERE not in said else "refused"
