"""The environment of users' code in a task: its process, the place of its cold keys, and the callback in which its process died."""

from dataclasses import dataclass, replace

from tidemark.services.operator.apart import Computations
from tidemark.services.operator.deaths import Deaths
from tidemark.services.operator.rockskeys import Stores
from tidemark.shared.operators.computation_keys import Cooling
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.ports.clock import Executor


@dataclass(frozen=True, slots=True)
class UsersCode:
    """Of one task; of one without users' code nothing."""

    deaths: Deaths | None = None
    stores: Stores | None = None
    cooling: Cooling | None = None
    apart: Computations | None = None
    """Processes of their own; None: callbacks run in this one."""

    def known_to(self, operators: TaskContext) -> TaskContext:
        """A task's context, with all that."""
        if self.apart is not None:
            return replace(operators, computing=self.apart.make)
        return replace(operators, guard=self.deaths, cooling=self.cooling)

    async def close(self, executor: Executor, *, idle: bool) -> None:
        """`idle`: no callback runs. A callback that does not end may still be reading files on the disk; its child is ended."""
        if self.deaths is not None and idle:
            self.deaths.close()
        if self.stores is not None and idle:
            self.stores.close()
        if self.apart is not None:
            await executor.blocking(self.apart.close)
