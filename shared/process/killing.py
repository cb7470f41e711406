"""Tests of faults: a process that kills itself at a phase of the protocol, once, and leaves a record of it.

TIDEMARK_KILL_AT is `phase:nth:record`: at the nth time that this process passes the phase it writes `record`, a JSON file, and dies by
SIGKILL. A process that finds the record already there lives on: a place dies once, however often it is started again.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from shared.model.ids import Epoch
from shared.process.settings import ProcessSettingsError
from shared.runtime.context import Phase


def killing_at(place: str, order: str) -> Callable[[Phase, Epoch], None]:
    """What `Outside.passing` does under such an order. ProcessSettingsError for one that is not as the module says."""
    phase, _, rest = order.partition(":")
    nth, _, record = rest.partition(":")
    if phase not in get_args(Phase) or not nth.isdigit() or not record:
        message = f"TIDEMARK_KILL_AT: expected phase:nth:record with a phase of {get_args(Phase)}, found {order!r}"
        raise ProcessSettingsError(message)
    left = int(nth)

    def passing(reached: Phase, epoch: Epoch) -> None:
        nonlocal left
        if reached != phase or Path(record).exists():
            return
        left -= 1
        if left > 0:
            return
        with Path(record).open("x") as out:
            json.dump({"place": place, "phase": phase, "epoch": epoch, "pid": os.getpid()}, out)
            out.flush()
            os.fsync(out.fileno())
        os.kill(os.getpid(), signal.SIGKILL)

    return passing
