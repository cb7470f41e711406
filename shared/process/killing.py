"""Tests of faults: a process that kills itself at a phase of the protocol, once, and leaves a record of it.

TIDEMARK_KILL_AT is a list of orders, separated by `;`: `place=phase:nth:record`. At the nth time that the process at this place passes the
phase it writes `record`, a JSON file, and dies by SIGKILL. A process that finds the record already there lives on: an order is carried out
once, however often the place is started again.
"""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from tidemark.shared.process.settings import ProcessSettingsError
from tidemark.shared.runtime.context import Moment, Phase


@dataclass(slots=True)
class _Order:
    phase: str
    left: int
    record: Path


def killing_at(place: str, orders: str) -> Callable[[Moment], None]:
    """The function that `Outside.passing` calls under such orders. ProcessSettingsError for orders not of the module's form."""
    mine = [_order(text) for owner, _, text in (o.partition("=") for o in orders.split(";") if o) if owner == place]

    def passing(moment: Moment) -> None:
        for order in mine:
            if order.phase == moment.phase and not order.record.exists():
                order.left -= 1
                if order.left <= 0:
                    _die(place, order, moment)

    return passing


def _order(text: str) -> _Order:
    phase, _, rest = text.partition(":")
    nth, _, record = rest.partition(":")
    if phase not in get_args(Phase) or not nth.isdigit() or not record:
        message = f"TIDEMARK_KILL_AT: expected place=phase:nth:record with a phase of {get_args(Phase)}, found {text!r}"
        raise ProcessSettingsError(message)
    return _Order(phase, int(nth), Path(record))


def _die(place: str, order: _Order, moment: Moment) -> None:
    with order.record.open("x") as out:
        json.dump({"place": place, "phase": order.phase, "epoch": moment.epoch, "pid": os.getpid()}, out)
        out.flush()
        os.fsync(out.fileno())
    os.kill(os.getpid(), signal.SIGKILL)
