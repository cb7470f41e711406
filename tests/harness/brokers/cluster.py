"""Three brokers, and the broker of an installation that they stand for."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.harness.brokers.asking import Asking
from tests.harness.brokers.node import Node
from tidemark.services.local.broker import free_port, new_id
from tidemark.services.local.broker_settings import LOOPBACK, Port

OPEN: Final = (LOOPBACK,) * 3
"""Hosts of brokers that everybody may use."""
_PORT_TRIES_MAX: Final = 100
_LOOK_S: Final = 0.2
"""Between two looks."""
HEALED_S: Final = 180.0
"""Within so long all brokers are in use again, and all replicas in sync."""
REPLICATED: Final = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # Longer than the local broker's: three of them share the machine.
    "broker.session.timeout.ms": "4000",
}
"""What such clusters have."""


class Brokers:
    """Started together; each may then be away."""

    def __init__(self, folder: Path, properties: Mapping[str, str], hosts: Sequence[str] = OPEN) -> None:
        """hosts: where clients reach each of them."""
        self.folder, cluster_id = folder, new_id()
        ports: list[Port] = []
        for _ in range(3 * len(hosts)):
            ports.append(free_port(None, ports, _PORT_TRIES_MAX))
        voters = ",".join(f"{n + 1}@{LOOPBACK}:{ports[3 * n + 2]}" for n in range(len(hosts)))
        given = {**REPLICATED, "controller.quorum.voters": voters, **properties}
        self.nodes = {
            n + 1: Node(n + 1, cluster_id, folder / f"broker-{n + 1}", ports[3 * n : 3 * n + 3], given, host)
            for n, host in enumerate(hosts)
        }
        self.asking = Asking(lambda: [node.bootstrap for node in self.running()])

    def running(self) -> list[Node]:
        """Those that can answer."""
        return [node for node in self.nodes.values() if node.running and not node.frozen]

    @property
    def bootstrap(self) -> str:
        """Addresses of all, for clients."""
        return ",".join(node.address for node in self.nodes.values())

    async def start(self) -> None:
        """All of them."""
        await asyncio.gather(*(node.lane.open() for node in self.nodes.values()))
        await asyncio.gather(*(node.start() for node in self.nodes.values()))
        await self.healed()

    def end(self) -> None:
        """None is left."""
        for node in self.nodes.values():
            node.go_on()
            node.kill()
            node.lane.close()

    async def healed(self, but: Sequence[int] = ()) -> None:
        """Wait until all brokers but these are in use, and the replicas there in sync."""
        there = set(self.nodes) - set(but)
        async with asyncio.timeout(HEALED_S):
            while True:
                if await self.asking.members() >= there and all(
                    part.leader in there and set(part.in_sync) >= set(part.replicas) & there
                    for part in await self.asking.parts()
                ):
                    return
                await asyncio.sleep(_LOOK_S)

    async def gone(self, number: int) -> None:
        """Wait until a broker that was killed is no longer counted."""
        async with asyncio.timeout(HEALED_S):
            while number in await self.asking.members():  # noqa: ASYNC110 - it is not told
                await asyncio.sleep(_LOOK_S)

    def controller(self) -> Node:
        """The one that leads the voters, by what they have noted last."""
        found = []
        for node in self.nodes.values():
            noted = json.loads((node.data / "log" / "__cluster_metadata-0" / "quorum-state").read_text())
            found.append((noted["leaderEpoch"], noted["leaderId"]))
        return self.nodes[max(found)[1]]


class Fronting:
    """Several brokers in the place of an installation's one, which its supervisor keeps."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._stopped = asyncio.Event()
        self.running = True
        self.pid: int | None = None

    async def start(self, on_address: Callable[[str], None] | None = None) -> str:
        """They run already."""
        if on_address is not None:
            on_address(self._brokers.bootstrap)
        return self._brokers.bootstrap

    async def exited(self) -> int:
        """Never by themselves."""
        await self._stopped.wait()
        return 0

    async def stop(self) -> None:
        """They go on: who started them ends them."""
        self._stopped.set()


@asynccontextmanager
async def brokers(folder: Path, properties: Mapping[str, str], hosts: Sequence[str] = OPEN) -> AsyncIterator[Brokers]:
    """For the time of a block."""
    made = Brokers(folder, properties, hosts)
    try:
        await made.start()
        yield made
    finally:
        made.end()
