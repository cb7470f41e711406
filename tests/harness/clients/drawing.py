"""What a client writes into a topic, drawn from a seed: settings, records, transactions."""

import base64
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS: Final = 2
START_MS: Final = 1_700_000_000_000
LARGE_BYTES: Final = 300_000


@dataclass(frozen=True, slots=True)
class Can:
    """What a client can be asked for."""

    codecs: tuple[str, ...] = CODECS
    levels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    idempotent: bool = True
    transactional: bool = True
    acks: tuple[str, ...] = ("all", "1", "0")
    null_header: bool = True
    repeated_header: bool = True
    old: tuple[str, ...] = ()
    """Versions of the protocol whose records have an old format, where the broker keeps it."""
    times: bool = True
    """Whether it can be given the time 0, which some take for none."""
    odd_times: bool = True
    """Whether times of one batch may be far apart: one client's are then refused by the broker."""


_LEVELS: Final = {"gzip": (1, 9), "lz4": (1, 9), "zstd": (1, 3, 19, 22)}
CLIENTS: Final[Mapping[str, Can]] = {
    "java": Can(levels={**_LEVELS, "lz4": (1, 17)}, times=False),
    "librdkafka": Can(levels={**_LEVELS, "lz4": (0, 12), "zstd": (1, 12)}, old=("0.9.0.1", "0.10.2.0"), times=False),
    "franz": Can(levels={"gzip": (1, 9), "lz4": (0, 9), "zstd": (1, 4)}, old=("0.9.0", "0.10.2"), null_header=True),
    "sarama": Can(levels={"gzip": (1, 9), "zstd": (1, 3, 19), "lz4": (1, 9)}, old=("0.8.2.2", "0.9.0.1", "0.10.2.2"), acks=("all", "1")),
    "kafkago": Can(idempotent=False, transactional=False, acks=("all", "1")),
    "kafkajs": Can(codecs=("none", "gzip", "snappy"), null_header=False),
    "platformatic": Can(
        codecs=CODECS[:4], acks=("all", "1"), repeated_header=False, null_header=False, odd_times=False
    ),
    "rskafka": Can(acks=("all",), idempotent=False, transactional=False, null_header=False, repeated_header=False),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
    """A client's settings and what it does."""

    seed: int
    client: str
    said: Mapping[str, Any]
    does: tuple[Mapping[str, Any], ...]
    topic: Mapping[str, str]
    """Settings of the topic."""
    old: bool
    """Whether it needs a broker that keeps old formats."""

    @property
    def shown(self) -> str:
        """In a line."""
        said = self.said
        kind = said["protocol"] or (
            "transactional" if said["transactional"] else "idempotent" if said["idempotent"] else "plain"
        )
        level = "" if said["level"] is None else f" {said['level']}"
        append = " append" if "message.timestamp.type" in self.topic else ""
        return f"{self.seed} {self.client} {said['codec']}{level} {kind}{append}"


def coded(data: bytes | None) -> str | None:
    """As scripts have bytes."""
    return None if data is None else base64.b64encode(data).decode()


def raw(text: str | None) -> bytes | None:
    """Back."""
    return None if text is None else base64.b64decode(text)


def _document(chance: random.Random, n: int) -> bytes:
    pad = chance.choice(["", "x" * 30, "äöü€😀", "y" * 90])
    return json.dumps({"n": n, "at": START_MS + n, "pad": pad}, ensure_ascii=False).encode()


def value(chance: random.Random, n: int, bytes_max: int = LARGE_BYTES) -> bytes | None:
    """A value; mostly a document."""
    if chance.random() < 0.6:
        return _document(chance, n)
    plain = _document(chance, n)
    return chance.choice([
        None,
        b"",
        b" ",
        json.dumps(json.loads(plain), indent=4).encode(),
        json.dumps(json.loads(plain), indent=1).replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + plain,
        plain.decode().encode("utf-16"),
        plain.decode().encode("utf-16-le"),
        plain.decode().encode("latin-1", "replace"),
        plain + b"\0",
        b"\0" * 20,
        plain + b"\r\n",
        plain + b"\n" + plain,
        plain[:-1] + b', "n": %d}' % (n + 1),
        b'{"n": NaN, "at": %d}' % (START_MS + n),
        b'{"n": +Infinity, "at": %d}' % (START_MS + n),
        b'{"n": 123456789012345678901234567890, "at": %d}' % (START_MS + n),
        b'{"n": 1e400, "at": %d}' % (START_MS + n),
        b'{"n": %d, "at": %d, "x": 0.1e-400}' % (n, START_MS + n),
        b'{"n": %d, "at": %d, "\\u0000": "\\ud800"}' % (n, START_MS + n),
        b"[1, 2]",
        b"null",
        b'"text"',
        b"42",
        b"<xml/>",
        bytes(chance.randrange(256) for _ in range(chance.randint(1, 60))),
        b'{"n": %d, "at": %d, "pad": "%s"}' % (n, START_MS + n, b"z" * chance.randint(1, bytes_max)),
    ])  # fmt: skip


def _key(chance: random.Random, n: int) -> bytes | None:
    return chance.choice(
        [None, None, b"", b"k%d" % (n % 7), bytes([n % 256, 0, 255]), "schlüssel€".encode(), b"x" * 300]
    )


def _time(chance: random.Random, can: Can, n: int) -> int | None:
    given = START_MS + n
    if chance.random() < 0.8 or not can.odd_times:
        return given
    odd = [None, given // 1000, given - 10**11, 1]
    if can.times:
        odd += [0]
    return chance.choice(odd)


def _headers(chance: random.Random, can: Can) -> list[dict[str, str | None]]:
    if chance.random() < 0.7:
        return []
    names = ["trace", "", "ключ", "a" * 300] + (["trace"] if can.repeated_header else [])
    values = [b"", b"x", b"\xff\xfe\x00", b"v" * 100] + ([None] if can.null_header else [])
    if not can.repeated_header:
        return [{"n": coded(n.encode()), "v": coded(chance.choice(values))} for n in chance.sample(names, 2)]
    return [
        {"n": coded(chance.choice(names).encode()), "v": coded(chance.choice(values))}
        for _ in range(chance.randint(1, 4))
    ]


def drawn(
    seed: int, client: str | None = None, *, old: bool | None = None, codec: str | None = None, small: bool = False
) -> Drawn:
    """Of a seed. client, codec: these. old: whether with an old format. small: few records of few bytes, as recordings have."""
    chance = random.Random(f"clients {seed}")
    names = [name for name, can in CLIENTS.items() if not old or can.old]
    client = client or chance.choice(names)
    can = CLIENTS[client]
    is_old = bool(can.old) and (chance.random() < 0.15 if old is None else old)
    protocol = chance.choice(can.old) if is_old else ""
    codec = codec or chance.choice([c for c in can.codecs if not is_old or c != "zstd"])
    if (client, codec) == ("sarama", "lz4") and is_old:
        protocol = can.old[-1]  # the client has none for earlier ones
    levels = () if is_old else can.levels.get(codec, ())
    kinds = ["plain"] + ["idempotent"] * can.idempotent + ["transactional"] * (2 * can.transactional)
    kind = "plain" if is_old else chance.choice(kinds)
    said = {
        "client": client,
        "codec": codec,
        "level": chance.choice([None, *levels]) if levels else None,
        "acks": chance.choice([a for a in can.acks if a != "0"]) if kind == "plain" else "all",
        "idempotent": kind == "idempotent",
        "transactional": f"id-{seed}" if kind == "transactional" else "",
        "timeout_ms": 60_000,
        "batch_records": chance.choice([0, 1, 3, 50]),
        "protocol": protocol,
    }
    count = 40 if said["batch_records"] == 1 else chance.choice([60, 200, 400])
    does = _doing(chance, can, 12 if small else count, kind, is_old, 200 if small else LARGE_BYTES)
    topic = {"message.timestamp.type": "LogAppendTime"} if chance.random() < 0.2 else {}
    if is_old:
        topic["message.format.version"] = (
            ".".join(protocol.split(".")[:3]) if protocol[:4] in ("0.8.", "0.9.") else "0.10.2"
        )
    return Drawn(seed, client, said, tuple(does), topic, is_old)


def _doing(
    chance: random.Random, can: Can, count: int, kind: str, is_old: bool, bytes_max: int
) -> list[dict[str, Any]]:
    does: list[dict[str, Any]] = []
    n = 0
    while n < count:
        begun = kind == "transactional"
        if begun:
            does.append({"do": "begin"})
        for _ in range(chance.choice([1, 5, min(count, 40)])):
            made: dict[str, Any] = {
                "p": chance.randrange(PARTITIONS),
                "k": coded(_key(chance, n)),
                "v": coded(value(chance, n, bytes_max)),
                "t": _time(chance, can, n),
                "h": [] if is_old else _headers(chance, can),
            }
            does.append(made)
            n += 1
        if begun:
            does.append({"do": "abort" if chance.random() < 0.3 else "commit"})
        elif chance.random() < 0.3:
            does.append({"do": "flush"})
    return does
