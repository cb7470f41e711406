"""One of several brokers: the local broker's life with a number, other voters, and clients on a listener of its own behind a lane.

The other brokers do not use the lane, so a cut of it is one between this broker and its clients alone.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.harness.chaos.lanes import Lane
from tidemark.services.local.broker import BrokerError, LocalBroker, is_member, listens, new_id, write_properties
from tidemark.services.local.broker_settings import FEATURES_PATH, LOOPBACK, BrokerSettings, Port

_HEAP_MIB: Final = 256
_POLL_S: Final = 0.05
"""Between two looks."""


class Node(LocalBroker):
    """A broker and voter. `address`: where clients reach it."""

    def __init__(
        self,
        number: int,
        cluster_id: str,
        folder: Path,
        ports: Sequence[Port],
        properties: Mapping[str, str],
        host: str,
    ) -> None:
        """ports: for brokers, for clients, for voters. host: of the lane, and of clients' listener."""
        self.number = number
        inner, self._clients, voters = ports
        super().__init__(
            BrokerSettings(
                data_dir=folder, port=inner, controller_port=voters, heap_mib_max=_HEAP_MIB, overrides=properties
            )
        )
        self._cluster_id = cluster_id
        self._host = host
        self.data = folder.resolve()
        self.lane = Lane(self._clients, host)
        self.frozen = False

    @property
    def address(self) -> str:
        """For clients; another after `move`."""
        return f"{self._host}:{self.lane.port}"

    def properties(self, port: Port, controller_port: Port) -> dict[str, str]:
        """The local broker's, with a listener for clients."""
        found = super().properties(port, controller_port)
        secure = self._settings.overrides.get("clients.protocol", "PLAINTEXT")
        inner = f"PLAINTEXT://{LOOPBACK}:{port}"
        found |= {
            "node.id": str(self.number),
            "listeners": f"{inner},CLIENTS://{self._host}:{self._clients},CONTROLLER://{LOOPBACK}:{controller_port}",
            "advertised.listeners": f"{inner},CLIENTS://{self.address}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:{secure}",
        }
        found.pop("clients.protocol", None)
        return found

    async def format(self, java: Path, jars: Sequence[Path]) -> None:
        """As the local broker, for the cluster of the others."""
        folder = self._settings.log_dir
        if folder.exists():
            return
        folder.mkdir()
        shutil.copyfile(FEATURES_PATH, folder / FEATURES_PATH.name)
        meta = {"version": "1", "cluster.id": self._cluster_id, "node.id": str(self.number), "directory.id": new_id()}
        write_properties(folder / "meta.properties", meta)

    async def _ready(self) -> None:
        while not await self._is_member():
            if self._process is not None and self._process.poll() is not None:
                raise BrokerError(f"broker {self.number} ended with status {self._process.returncode}: {self.data}")
            await asyncio.sleep(_POLL_S)

    async def _is_member(self) -> bool:
        return await listens(LOOPBACK, self._port) and await is_member(self.bootstrap, self.number, 5_000)

    # --- what happens to it -----------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """It stays there, and does nothing more."""
        if self._process is not None:
            self.frozen = True
            os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `pause`."""
        if self.frozen and self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)
        self.frozen = False

    def wipe(self) -> None:
        """Its disk is empty. It does not run."""
        shutil.rmtree(self._settings.log_dir)

    async def move(self) -> None:
        """Nobody listens any more at the address that clients know; the next start tells another."""
        self.lane.close()
        self.lane = Lane(self._clients, self._host)
        await self.lane.open()
