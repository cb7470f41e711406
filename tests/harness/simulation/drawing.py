"""What a seed draws: a pipeline, its data, the topology and the settings. Faults and orders are drawn apart (`story.py`)."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tidemark.shared.model.ids import Offset, ProcessorName
from tidemark.shared.model.messages import KEY_GROUPS
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings, Quota
from tidemark.shared.protocol.task.start import TaskLimits
from tidemark.shared.runtime.settings import RuntimeSettings

NAME: Final = ProcessorName("story")
BASE_MS: Final = 1_700_000_000_000
DELAY_MS: Final = 2_000
LATENESS_MS: Final = 1_000
SIZE_MS: Final = 5_000
HOP_MS: Final = 2_000
GAP_MS: Final = 1_500
WITHIN_MS: Final = (1_500, 500)
FOLDER: Final = "results"
LETTERS_FOLDER: Final = "letters"
OUTPUT: Final = "out"
LETTERS: Final = "letters"

Shape = Literal["tumbling", "hopping", "sessions", "marked", "computed", "chain", "join", "lookup"]
Target = Literal["kafka", "files", "sql", "table"]
Scope = Literal["source", "split"]
SHAPES: Final[tuple[Shape, ...]] = (
    "tumbling", "hopping", "sessions", "marked", "computed", "chain", "join", "lookup",
)  # fmt: skip
WINDOWED: Final = ("tumbling", "hopping", "sessions", "marked", "lookup")
SPARK_RATE: Final = 0.35
TARGETS: Final[tuple[Target, ...]] = ("kafka", "kafka", "files", "sql", "table")
SCOPES: Final[tuple[Scope, ...]] = ("source", "source", "split")


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as a producer sends it."""

    at_ms: int
    """When, in virtual time from the begin of the feed."""
    time_ms: int
    key: str
    value: int
    """No other record has it, but for repeats of this one."""
    bad: bool = False
    """Its bytes are no document."""
    again: bool = False
    """A producer sends it a second time, to another partition."""

    @property
    def data(self) -> bytes:
        """Its bytes."""
        if self.bad:
            return b'{"v": ' + str(self.value).encode()
        return json.dumps({"t": self.time_ms, "k": self.key, "v": self.value, "id": f"r{self.value}"}).encode()


@dataclass(frozen=True, slots=True)
class Scenario:
    """All but the faults."""

    seed: int
    shape: Shape
    target: Target
    letters: Literal["kafka", "files"]
    refuses: bool
    """The table refuses some rows, which nobody can know before they are released."""
    union: bool
    scope: Scope
    lanes: Mapping[TopicPartition, Sequence[Sent]]
    come: frozenset[TopicPartition]
    """Partitions that are added when their first record is sent."""
    document: Mapping[str, Any]
    tasks: Mapping[str, int]
    key_groups: int
    """Few of them have several of the few keys, so that what changes of a group is less than all of it."""
    workers: Mapping[str, int]
    coordinators: int
    runtime: RuntimeSettings
    coordinator: CoordinatorSettings

    @property
    def span_ms(self) -> int:
        """How long the feed takes."""
        return max((sent.at_ms for lane in self.lanes.values() for sent in lane), default=0)

    @property
    def summary(self) -> str:
        """For people."""
        also = [word for word, there in (("union", self.union), ("refusals", self.refuses)) if there]
        also += ["spark"] if self.runtime.engine == "spark" else []
        return ", ".join([f"{self.shape} to {self.target}", f"letters to {self.letters}", *also])

    @property
    def redriven(self) -> bool:
        """Whether late records can go through their windows again."""
        windows = self.shape in ("tumbling", "hopping", "sessions", "marked")
        return windows and self.target != "sql" and self.letters == "kafka" and not self.union

    def topics(self) -> dict[str, int]:
        """Of the sources, with the partitions that they begin with."""
        found: dict[str, int] = {}
        for topic, partition in sorted(set(self.lanes) - self.come):
            found[topic] = max(found.get(topic, 0), partition + 1)
        return found

    def ends(self) -> dict[str, Offset]:
        """The offset behind each split's last record, as a drain names it."""
        return {f"{at.topic}-{at.partition}": Offset(len(lane)) for at, lane in self.lanes.items()}


def waits_ms(seed: int) -> int | None:
    """How long tasks wait for barriers (C13); None: for ever."""
    return random.Random(f"{seed}/alignment").choice((None, None, 0, 0, 10, 50))


def draw(seed: int, url: str) -> Scenario:
    """The scenario of a seed. `url`: the database's."""
    chooser = random.Random(f"{seed}/scenario")
    shape = SHAPES[seed % len(SHAPES)]
    target = chooser.choice(TARGETS)
    if target == "sql" and shape not in ("tumbling", "hopping", "sessions", "lookup"):
        target = chooser.choice(("kafka", "files", "table"))
    if target == "table" and shape == "join":  # whose rows without a partner have no type that a column could take
        target = "files"
    letters: Literal["kafka", "files"] = chooser.choice(("kafka", "files"))
    union = shape not in ("join", "computed") and chooser.random() < 0.3
    lanes = _lanes(chooser, two=union or shape == "join")
    ids = random.Random(f"{seed}/ids")
    scope = ids.choice(SCOPES)
    come = _coming(chooser, lanes) if shape != "join" and not union and chooser.random() < 0.3 else frozenset()
    if scope == "source":
        _send_again(ids, lanes)
    sources = chooser.choice((1, 2))
    operators = chooser.choice((1, 2, 3))
    engine: Literal["spark", "local"] = "spark" if shape in WINDOWED and chooser.random() < SPARK_RATE else "local"
    stages = {"spark": 2} if engine == "spark" else {}
    return Scenario(
        seed=seed,
        shape=shape,
        target=target,
        letters=letters,
        refuses=target == "sql" and chooser.random() < 0.4,
        union=union,
        scope=scope,
        lanes=lanes,
        come=come,
        document=document(shape, target, letters, url, union=union, scope=scope, waits_ms=waits_ms(seed)),
        tasks={
            "source": sources,
            "operator": operators,
            "sink": chooser.choice((1, 2)),
            "spark": random.Random(f"{seed}/stages").choice((1, 2, 3)),
        },
        key_groups=random.Random(f"{seed}/groups").choice((3, KEY_GROUPS)),
        workers={"source": 2, "operator": chooser.choice((2, 3)), "sink": 2, **stages},
        coordinators=2,
        runtime=_runtime(chooser, engine, random.Random(f"{seed}/joins")),
        coordinator=_coordinator(chooser, random.Random(f"{seed}/quotas")),
    )


# --- data -----------------------------------------------------------------------------------------------------------------


def _lanes(chooser: random.Random, *, two: bool) -> dict[TopicPartition, list[Sent]]:
    """Event time that goes on in jumps, with records that come late, twice or broken; splits that lie idle; keys that are skewed."""
    found: dict[TopicPartition, list[Sent]] = {}
    partitions = chooser.choice((1, 2, 2))
    keys = [f"k{n}" for n in range(chooser.choice((1, 3, 6)))]
    skewed = chooser.random() < 0.3
    value = 0
    for topic in ("a", "b") if two else ("a",):
        for partition in range(partitions):
            lane: list[Sent] = []
            at_ms = event_ms = 0
            for _ in range(chooser.choice((0, 8, 25, 25, 40))):
                at_ms += chooser.choice((0, 20, 150, 300))
                event_ms += chooser.randint(0, 700)
                behind_ms = chooser.choice((0, 0, 0, 900, 1_900, 2_500, 9_000))
                key = keys[0] if skewed and chooser.random() < 0.8 else chooser.choice(keys)
                value += 1
                sent = Sent(at_ms, BASE_MS + max(0, event_ms - behind_ms), key, value, chooser.random() < 0.02)
                lane += [sent, sent] if chooser.random() < 0.05 and not sent.bad else [sent]
                if chooser.random() < 0.02:
                    at_ms += 1_500  # lies idle
            found[TopicPartition(topic, partition)] = lane
    return found


def _send_again(chooser: random.Random, lanes: dict[TopicPartition, list[Sent]]) -> None:
    """To other partitions of their topic, soon or late: records whose time no other has, where neither copy is behind its partition.

    So which of the copies counts shows nowhere: what comes out does not hang on how the faults cut epochs.
    """
    times = Counter(s.time_ms for lane in lanes.values() for s in {s.value: s for s in lane}.values())
    homes: dict[int, TopicPartition] = {}
    for at, lane in list(lanes.items()):
        for sent in [s for s in lane if not s.bad and not s.again and times[s.time_ms] == 1]:
            others = [other for other in lanes if other.topic == at.topic and other != at]
            if others and chooser.random() < 0.1:
                homes[sent.value] = at
                there = lanes[chooser.choice(others)]
                behind = [n for n, s in enumerate(there) if s.at_ms >= sent.at_ms]
                place = chooser.choice([*behind, len(there)])
                at_ms = max(sent.at_ms, there[place - 1].at_ms if place else 0)
                there.insert(place, replace(sent, at_ms=at_ms, again=True))
    while unfit := {s.value for lane in lanes.values() for s in _behind(lane)} & homes.keys():
        for at, lane in lanes.items():
            lanes[at] = [s for s in lane if not (s.again and s.value in unfit)]
        for value in unfit:
            del homes[value]


def _behind(lane: Sequence[Sent]) -> Iterator[Sent]:
    """Those behind the watermark of their partition."""
    highest = 0
    for sent in lane:
        if sent.time_ms < highest - DELAY_MS:
            yield sent
        if not sent.bad:
            highest = max(highest, sent.time_ms)


def _coming(chooser: random.Random, lanes: dict[TopicPartition, list[Sent]]) -> frozenset[TopicPartition]:
    """A partition that comes while the processor runs. Its records are ahead of all others, or where windows stand would decide."""
    sent = [sent for lane in lanes.values() for sent in lane]
    if not sent:
        return frozenset()
    at_ms = max(s.at_ms for s in sent) * chooser.random()
    time_ms, value = max(s.time_ms for s in sent) + 10_000, max(s.value for s in sent)
    added = TopicPartition("a", len(lanes))
    lanes[added] = [
        Sent(round(at_ms) + 100 * n, time_ms + 500 * n, sent[0].key, value + 1 + n)
        for n in range(chooser.choice((1, 6)))
    ]
    return frozenset({added})


# --- the document ---------------------------------------------------------------------------------------------------------


def _ms(size: int) -> dict[str, Any]:
    return {"size": size, "unit": "ms"}


def _source(topic: str, scope: Scope) -> dict[str, Any]:
    return {
        "$source": {
            "connectionName": "k",
            "topic": topic,
            "timeField": {"$toDate": "$t"},
            "schema": {"t": "long", "k": "string", "v": "int", "id": "string"},
            "recordId": "$id",
            "recordIdScope": scope,
            "config": {"auto_offset_reset": "earliest"},
            "watermark": {"strategy": "boundedDisorder", "maxDelay": _ms(DELAY_MS)},
        }
    }


_GROUP: Final = [
    {"$group": {"_id": "$k", "n": {"$sum": 1}, "s": {"$sum": "$v"}, "vs": {"$push": "$v"}}},
    {"$addFields": {"at": {"$toLong": {"$meta": "stream.window.start"}}}},
]
_SEEN: Final = {"$compute": {"class": "tests.harness.computations:Marks", "key": "$k"}}
_KEYED: Final = {"$addFields": {"k": "$_id"}}


def _stages(shape: Shape, scope: Scope) -> list[dict[str, Any]]:
    window = {"allowedLateness": _ms(LATENESS_MS), "pipeline": _GROUP}
    tumbling = {"$tumblingWindow": {"interval": _ms(SIZE_MS), **window}}
    match shape:
        case "tumbling":
            return [tumbling, _KEYED]
        case "hopping":
            return [{"$hoppingWindow": {"interval": _ms(SIZE_MS), "hopSize": _ms(HOP_MS), **window}}, _KEYED]
        case "sessions":
            return [{"$sessionWindow": {"gap": _ms(GAP_MS), "partitionBy": "$k", **window}}, _KEYED]
        case "marked":
            return [tumbling, _KEYED, _SEEN]
        case "computed":
            return [_SEEN]
        case "chain":
            return [
                {"$match": {"$expr": {"$ne": [{"$mod": ["$v", 3]}, 0]}}},
                {"$addFields": {"w": {"$add": ["$v", 1]}}},
            ]
        case "join":
            within = {"before": _ms(WITHIN_MS[0]), "after": _ms(WITHIN_MS[1])}
            options = {"leftKey": "$k", "rightKey": "$k", "within": within, "type": "full", "as": "r"}
            return [{"$join": {"from": [_source("b", scope)], **options}}]
        case "lookup":
            table = [{"key": f"k{n}", "weight": n} for n in range(3)]
            find = {"from": {"documents": table}, "localField": "k", "foreignField": "key", "as": "found"}
            return [{"$lookup": find}, tumbling, _KEYED]


def document(
    shape: Shape,
    target: Target,
    letters: Literal["kafka", "files"],
    url: str,
    *,
    union: bool,
    scope: Scope,
    waits_ms: int | None,
    variant: int = 0,
) -> dict[str, Any]:
    """The pipeline of a shape. `variant`: another one with the same results, for `modify`."""
    pipeline = [_source("a", scope)]
    if union:
        pipeline.append({"$union": {"pipelines": [[_source("b", scope)]]}})
    pipeline += _stages(shape, scope)
    pipeline += [{"$addFields": {"extra": variant}}] if variant and target != "sql" else []
    match target:
        case "kafka":
            key = {"$ifNull": ["$k", "$r.k"]} if shape == "join" else "$k"
            into = {"connectionName": "k", "topic": OUTPUT, "config": {"key": key, "keyFormat": "string"}}
            pipeline.append({"$emit": into})
        case "table":
            pipeline.append({"$emit": {"path": FOLDER, "format": "parquet"}})
        case "files":
            pipeline.append({"$emit": {"path": FOLDER, "format": "json"}})
        case "sql":
            name = {"$concat": ["$k", "-", {"$toString": "$at"}]}
            pipeline += [
                {"$project": {"_id": 0, "id": name, "k": 1, "n": 1, "s": 1}},
                {
                    "$merge": {
                        "into": {"connectionName": "t", "table": "results"},
                        "on": ["id"],
                        "whenMatched": "replace",
                    }
                },
            ]
    dlq = {"connectionName": "k", "topic": LETTERS} if letters == "kafka" else {"path": LETTERS_FOLDER}
    connections: dict[str, Any] = {"k": {"type": "kafka", "bootstrapServers": "nowhere:9092"}}
    checkpoint = {"interval": _ms(300)} | ({} if waits_ms is None else {"alignmentTimeout": _ms(waits_ms)})
    if target == "sql":
        connections["t"] = {"type": "sql", "url": url}
    return {
        "name": NAME,
        "connections": connections,
        "pipeline": pipeline,
        "options": {"lateness": "split", "dlq": dlq, "checkpoint": checkpoint},
    }


# --- settings -------------------------------------------------------------------------------------------------------------


def _runtime(chooser: random.Random, engine: Literal["spark", "local"], of_joins: random.Random) -> RuntimeSettings:
    """`of_joins` draws what was bounded later, so that a seed draws what it drew before."""
    inline_bytes_max = chooser.choice((400, 256 * 1024))
    settings = RuntimeSettings(
        engine=engine,
        heartbeat_interval_ms=500,
        heartbeat_timeout_ms=2_000,
        coordinator_silence_ms_max=8_000,
        topics_kept_ms=20_000,
        garbage_interval_ms=2_000,
        tick_interval_ms=200,
        flow_interval_ms=500,
        fetch_timeout_ms=1_000,
        retry_ms=200,
        inline_bytes_max=inline_bytes_max,
        state_inline_bytes_max=chooser.choice((200, 64 * 1024)),
        state_blobs_max=chooser.choice((1, 16)),
        splits_interval_ms=3_000,
        fetch_records_max=chooser.choice((3, 500)),
        join_bytes_max=of_joins.choice((1, 2_000, 10_000, 1 << 30)),
        join_ahead_bytes_max=of_joins.choice((5_000, 1 << 33)),
        state_parts_max=of_joins.choice((1, 4, 256)),
        snapshots_waiting_max=chooser.choice((1, 3)),
        limits=TaskLimits(
            waiting_bytes_max=chooser.choice((1, 600, 16 << 20)),
            uncommitted_bytes_max=chooser.choice((2_000, 1 << 30)),
        ),
    )
    settings.check()
    return settings


def _coordinator(chooser: random.Random, of_quotas: random.Random) -> CoordinatorSettings:
    return CoordinatorSettings(
        heartbeat_timeout_ms=2_000,
        adopt_wait_ms=800,
        checkpoint_interval_ms=300,
        checkpoint_timeout_ms=chooser.choice((900, 4_000, 15_000)),
        checkpoint_timeouts_max=3,
        restore_timeout_ms=8_000,
        backoff_base_ms=100,
        backoff_max_ms=1_000,
        retry_ms=200,
        unreleased_max=chooser.choice((1, 4, 8)),
        inline_bytes_max=chooser.choice((300, 256 * 1024)),
        numbers_block=chooser.choice((1, 4, 64)),
        stop_release_wait_ms=chooser.choice((0, 3_000)),
        cleanup_interval_ms=chooser.choice((100, 1_000)),
        status_interval_ms=500,
        spawn_wait_ms=1_000,
        failures_max=10_000,
        lease_ms=2_000,
        lineage_max=chooser.choice((3, 10_000)),
        quotas=of_quotas.choice(((), (), (), (Quota("*", bytes_per_s=of_quotas.choice((2_000, 20_000))),))),
    )
