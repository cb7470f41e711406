"""A task's state comes back group by group: its bytes are not held beside the keys that were made of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemark.shared.computation import Computation, NoConfig, Record, Timers, make_computation
from tidemark.shared.model.values import Document
from tidemark.shared.operators.computation import KeyedComputation, row_of


@dataclass
class Log:
    seen: list[str] = field(default_factory=list)


class Noting(Computation[Log, NoConfig]):
    """Notes what it has seen."""

    State = Log

    def process(self, record: Record, state: Log, timers: Timers) -> Iterator[Document]:
        state.seen.append(record.value["n"])
        yield {}


def test_what_is_restored_goes_as_its_keys_come() -> None:
    """When the first key of a group comes, only the bytes of the groups behind it are left in the mapping; in the end none."""
    task = KeyedComputation(make_computation(Noting), groups=8)
    task.on_records([row_of(k, {"n": "a"}, 10) for k in range(40)])
    task.on_watermark(11)
    groups = {group: data for group, data in task.snapshot().items() if data is not None}
    left: list[int] = []
    again = KeyedComputation(make_computation(Noting), groups=8)
    again._keys.restore(groups, lambda _: left.append(len(groups)))
    assert len(again._keys) == 40
    assert groups == {}
    assert sorted(set(left), reverse=True) == list(range(7, -1, -1))
