"""`python -m tests.harness.clients build|record|read|jobs|rates`: what clients of other languages write, as jobs have it."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.harness.clients.building import BUILT, build
from tests.harness.clients.drawing import CLIENTS, Drawn, drawn
from tests.harness.clients.jobs import story
from tests.harness.clients.programs import written_by
from tests.harness.clients.rare import rare_topics
from tests.harness.clients.rates import rates
from tests.harness.clients.recording import FILE, Recording, heard, read
from tests.harness.clients.registered import registered
from tests.harness.clients.running import Row
from tests.harness.clients.standing import Brokers, standing

WAIT_S = 60.0
"""For a topic of some hundred records."""


def say(text: str) -> None:
    """A line of the run."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def bare(rows: list[Row]) -> list[Row]:
    """Without headers, which sources do not read."""
    return [Row(r.partition, r.offset, r.time_ms, r.key, r.value) for r in rows]


async def compared(brokers: Brokers, one: Drawn, topic: str, reader: str) -> tuple[str, Recording | None]:
    """What differs between a client that reads the topic and a source; nothing where nothing does."""
    ends = await brokers.filled(one, topic)
    wanted = bare(await brokers.read(one, topic, ends, reader))
    with heard() as answers:
        async with asyncio.timeout(WAIT_S):
            found = await read(brokers.of(one), topic, ends)
    recording = Recording(one.shown, tuple(answers), tuple(wanted))
    if found == wanted:
        return "", recording
    differing = [pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]][:1]
    return f"{len(found)} records of {len(wanted)}; {str(differing)[:300]}", None


async def reading(brokers: Brokers, seeds: range, reader: str) -> int:
    """How many seeds differ."""
    bad = 0
    for seed in seeds:
        one = drawn(seed)
        try:
            said, _ = await compared(brokers, one, f"read-{seed}", reader)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told with the seed
            said = f"{type(error).__name__}: {str(error)[:300]}"
        bad += bool(said)
        say(f"{one.shown}: {said or 'equal'}")
    return bad


async def recorded(brokers: Brokers) -> int:
    """Record each client with each compression, and each old format; how many failed."""
    lines, bad, seed = [], 0, 0
    for client, can in CLIENTS.items():
        for codec in can.codecs:
            for old in [False] + [True] * (2 if can.old and codec != "zstd" else 0):
                seed += 1
                one = drawn(seed, client, old=old, codec=codec, small=True)
                said, recording = await compared(brokers, one, f"record-{seed}", "java")
                bad += bool(said)
                say(f"{one.shown}: {said or 'recorded'}")
                lines += [recording.text()] if recording else []
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("".join(f"{line}\n" for line in lines))
    return bad


async def worked(brokers: Brokers, seeds: range, folder: Path) -> int:
    """How much did not hold of jobs over topics with what these seeds draw, of bad days and of Kafka's programs; by broker."""
    bad = 0
    for old in (False, True):
        rows: dict[str, list[Row]] = {}
        for one in map(drawn, seeds):
            topic = f"jobs-{one.seed}"
            if one.old == old:
                rows[topic] = await brokers.read(one, topic, await brokers.filled(one, topic))
        if not old:
            (folder / "programs").mkdir()
            rows |= await rare_topics(brokers, "jobs")
            rows |= await written_by(brokers, folder / "programs", "jobs")
            (folder / "registered").mkdir()
            wrong = await registered(brokers, folder / "registered", "jobs")
            say("\n  ".join([f"a schema registry: {'not ' * bool(wrong)}held", *wrong]))
            bad += len(wrong)
        if rows:
            wrong = await story(brokers, brokers.old if old else brokers.new, rows, folder / f"old-{old}", "jobs")
            held = f"{len(rows)} topics, {sum(map(len, rows.values()))} records: {'not ' * bool(wrong)}held"
            say("\n  ".join([held, *wrong]))
            bad += len(wrong)
    return bad


async def main(what: str, seeds: range, built: Path, reader: str) -> int:
    """How many did not hold."""
    if what == "build":
        build(built)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        async with standing(Path(folder), built) as brokers:
            match what:
                case "jobs":
                    return await worked(brokers, seeds, Path(folder))
                case "record":
                    return await recorded(brokers)
                case "rates":
                    say("\n".join(f"{seconds:.2f} s {whose}" for seconds, whose in await rates(brokers, "all")))
                    return 0
                case _:
                    return await reading(brokers, seeds, reader)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.harness.clients", description=__doc__)
    parser.add_argument("what", choices=["build", "record", "read", "jobs", "rates"])
    parser.add_argument("--seeds", default="1-20")
    parser.add_argument("--built", type=Path, default=BUILT)
    parser.add_argument("--reader", default="librdkafka", help="the client that says what is right")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    sys.exit(asyncio.run(main(options.what, range(int(first), int(last or first) + 1), options.built, options.reader)))
