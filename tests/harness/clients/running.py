"""Starts the clients: each is a program that reads a script."""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.harness.clients.drawing import Drawn, raw
from tidemark.services.local.jars import ensure_jars
from tidemark.services.local.java import find_java

HERE: Final = Path(__file__).resolve().parent
WAIT_S: Final = 120.0
"""For a client that writes or reads some hundred records."""


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A record as a reader shows it."""

    partition: int
    offset: int
    time_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


class ClientFailed(Exception):
    """A client ended with an error, or never."""


def command(client: str, built: Path) -> list[str]:
    """The program of a client, built in a folder."""
    if client in ("franz", "sarama", "kafkago"):
        return [str(built / "go" / "clients")]
    if client in ("kafkajs", "platformatic"):
        return ["node", str(HERE / "node" / "clients.mjs")]
    if client == "rskafka":
        return [str(built / "rust" / "release" / "clients")]
    if client == "librdkafka":
        return [str(built / "python" / "bin" / "python"), str(HERE / "librdkafka.py")]
    classes = ":".join(map(str, (built / "java", *ensure_jars())))
    return [str(find_java().executable), "-XX:TieredStopAtLevel=1", "-cp", classes, "Clients"]


async def ran(client: str, built: Path, role: str, script: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What the client said, line by line. ClientFailed."""
    process = await asyncio.create_subprocess_exec(
        *command(client, built), role,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=built / "node",
        env={**os.environ}, limit=64 << 20,
    )  # fmt: skip
    text = "".join(json.dumps(one) + "\n" for one in script).encode()
    try:
        async with asyncio.timeout(WAIT_S):
            said, error = await process.communicate(text)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ClientFailed(f"{client} {role}: not ended within {WAIT_S:.0f} s") from None
    if process.returncode:
        raise ClientFailed(f"{client} {role}: {error.decode(errors='replace')[-600:]}")
    return [json.loads(line) for line in said.splitlines()]


async def produce(drawn: Drawn, built: Path, bootstrap: str, topic: str) -> None:
    """Let the client do what was drawn."""
    await ran(drawn.client, built, "produce", [{**drawn.said, "bootstrap": bootstrap, "topic": topic}, *drawn.does])


async def consumed(client: str, built: Path, bootstrap: str, topic: str, ends: Sequence[int]) -> list[Row]:
    """All committed records of a topic, as the client reads them, in the order of partitions and offsets."""
    script = [{"client": client, "bootstrap": bootstrap, "topic": topic, "ends": list(ends)}]
    return sorted(map(_row, await ran(client, built, "consume", script)), key=lambda row: (row.partition, row.offset))


def _row(one: dict[str, Any]) -> Row:
    headers = tuple((raw(h["n"]) or b"", raw(h["v"])) for h in one["h"] or ())
    return Row(one["p"], one["o"], one["t"], raw(one["k"]), raw(one["v"]), headers)
