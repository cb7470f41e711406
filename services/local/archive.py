"""An archive of the classes that the broker loads (the JVM's class data sharing): with it a start takes half the processor time.

`python -m tidemark.services.local.archive` writes it: a broker on a folder of its own is started, written to and read from, and its JVM
writes the classes it has loaded as it ends. A JVM of another version, or with other jars, leaves an archive aside and loads classes as
ever; so does one that finds none.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tidemark.services.local.broker import BrokerError, LocalBroker
from tidemark.services.local.broker_settings import BrokerSettings, archive_path

_TOPIC: Final = "archive"
_DUMP_TIMEOUT_S: Final = 120.0
"""For the broker's JVM to write its archive, once."""


async def _use(bootstrap: str) -> None:
    """The work of every job with a broker: topics, a transaction, a committed read."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(_TOPIC, 1, 1)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=_TOPIC)
    await producer.start()
    async with producer.transaction():
        await producer.send_and_wait(_TOPIC, b"record")
    await producer.stop()
    consumer = AIOKafkaConsumer(
        _TOPIC, bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    await consumer.start()
    await consumer.getone()
    await consumer.stop()


async def _live(folder: Path, made: Path) -> None:
    """Run a broker once; as it ends, its JVM writes the archive."""
    options = ("-Xlog:disable", f"-XX:ArchiveClassesAtExit={made}")
    broker = LocalBroker(BrokerSettings(data_dir=folder, jvm_options=options, stop_timeout_s=_DUMP_TIMEOUT_S))
    await _use(await broker.start())
    await broker.stop()


def write_archive(path: Path) -> bool:
    """Write it anew, by a broker of its own; False where this JVM writes none. BrokerError where no broker starts at all."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        asyncio.run(_live(Path(folder) / "data", made))
        if made.exists():
            made.replace(path)
    return path.exists()


def main() -> int:
    """Write it; without one everything works as well, so that only a broker that does not start is a failure."""
    path = archive_path()
    try:
        written = write_archive(path)
    except BrokerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if written:
        sys.stdout.write(f"Archive of the broker's classes: {path.stat().st_size / 2**20:.0f} MiB\n")
    else:
        sys.stdout.write("No archive of the broker's classes: this Java wrote none; the broker starts without\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
