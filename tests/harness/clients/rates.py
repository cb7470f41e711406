"""How fast a source reads what each client writes, beside plain records of librdkafka: figures, none of which is judged."""

import json
import time
from typing import Any, Final

from tests.harness.clients.drawing import CLIENTS, START_MS, coded
from tests.harness.clients.recording import read
from tests.harness.clients.running import ran
from tests.harness.clients.standing import Brokers, ends_of, make

RECORDS: Final = 60_000
_SHOWN: Final = 12


def _does() -> list[dict[str, Any]]:
    texts = (
        json.dumps({"n": n, "at": START_MS + n, "key": f"k{n % 97}", "pad": "x" * 40}).encode() for n in range(RECORDS)
    )
    return [
        {"p": 0, "k": coded(b"k%d" % (n % 97)), "v": coded(text), "t": START_MS + n, "h": []}
        for n, text in enumerate(texts)
    ]


async def rates(brokers: Brokers, tag: str) -> list[tuple[float, str]]:
    """(seconds of a second reading of so many records, whose), the costliest first; each client's compressions and formats."""
    found, does = [], _does()
    for client, can in CLIENTS.items():
        for protocol in ("", *can.old[-2:]):
            for codec in can.codecs:
                if protocol and (codec == "zstd" or (client, codec, protocol[:3]) == ("sarama", "lz4", "0.9")):
                    continue
                address = brokers.old if protocol else brokers.new
                topic = f"rate-{client}-{codec}-{protocol}-{tag}"
                version = "0.9.0" if protocol[:3] == "0.9" else "0.10.2"
                await make(address, topic, {"message.format.version": version} if protocol else {}, 1)
                said = {
                    "client": client,
                    "bootstrap": address,
                    "topic": topic,
                    "codec": codec,
                    "acks": "all",
                    "protocol": protocol,
                }
                await ran(client, brokers.built, "produce", [{**said, "batch_records": 0}, *does])
                ends = await ends_of(address, topic, 1)
                await read(address, topic, ends)
                began = time.monotonic()
                rows = await read(address, topic, ends)
                found.append((time.monotonic() - began, f"{client} {codec} {protocol or 'now'}: {len(rows)}"))
    return sorted(found, reverse=True)
