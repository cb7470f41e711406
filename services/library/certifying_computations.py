"""The tests that a computation has to pass: its author derives a class from the contract, and pytest runs them.

What comes out follows from the records of each key alone: it is the same over restarts, at any pace, beside other keys, in each process
and on each day.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from tidemark.services.library.elsewhere import SEEDS, Came, course, course_elsewhere, order_of
from tidemark.shared.computation.base import Computation
from tidemark.shared.computation.harness import Harness
from tidemark.shared.language.values import canonical_key, render_json


class ComputationContract:
    """Derive `class TestMine(ComputationContract)`, set `plugin`, `key` and `records`, and `config` where it takes one."""

    plugin: ClassVar[type[Computation[Any, Any]]]
    key: ClassVar[str]
    """The field that it is."""
    records: ClassVar[Sequence[Came]]
    """Some of several keys, of which documents come out, in the order in which they arrive; no callback raises for them."""
    config: ClassVar[Mapping[str, Any]] = {}

    def test_a_restart_changes_nothing(self) -> None:
        """Behind any record, and behind each: what is not in `state` and timers is lost."""
        whole = self._outputs(self.records)
        assert whole, "nothing comes out of these records"
        for place in range(len(self.records)):
            self._same(whole, self._outputs(self.records, restarts=(place,)), f"a restart behind record {place}")
        everywhere = range(len(self.records))
        self._same(whole, self._outputs(self.records, restarts=everywhere), "a restart behind each record")

    def test_the_pace_changes_nothing(self) -> None:
        """The watermark follows each record as closely as it may, or comes at the end alone; records come one by one, or together."""
        whole = self._outputs(self.records)
        self._same(whole, self._outputs(self.records, late=True), "no watermark before the end")

    def test_a_key_knows_nothing_of_others(self) -> None:
        """The records of one key alone give what they give among the others."""
        whole = self._outputs(self.records)
        keys = {canonical_key(document.get(self.key)) for document, _ in self.records}
        assert len(keys) > 1, "records of several keys are needed"
        for key in sorted(keys):
            alone = self._outputs([each for each in self.records if canonical_key(each[0].get(self.key)) == key])
            self._same([each for each in whole if each[0] == key], alone, f"key {key!r} without the others")

    def test_it_is_the_same_in_another_process_and_on_another_day(self) -> None:
        """`hash()` and the order of a set, the clock, and random numbers are in no document, no state and no timer."""
        order = order_of(self.plugin, self.key, self.config, self.records)
        here = course(self.plugin, order)
        for seed in SEEDS:
            there = course_elsewhere(order, seed)
            for where, what in here | there:
                self._same(
                    here.get((where, what)), there.get((where, what)),
                    f"in another process (PYTHONHASHSEED={seed}), on another day, {where}: {what}",
                )  # fmt: skip

    def _outputs(
        self, records: Sequence[Came], *, restarts: Collection[int] = (), late: bool = False
    ) -> list[tuple[bytes, int, bytes]]:
        """What comes out up to the end: key, time and document, in the order of the keys; within one as it came."""
        harness = Harness(self.plugin, key=self.key, config=self.config)
        if late:
            harness.record_all(records)
        for place, (document, at) in enumerate(() if late else records):
            harness.record(document, at)
            harness.watermark(min((later for _, later in records[place + 1 :]), default=at))
            if place in restarts:
                harness.restart()
        harness.end()
        found = [(each.key, each.timestamp, render_json(each.value, canonical=True)) for each in harness.records]
        return sorted(found, key=lambda each: each[0])

    @staticmethod
    def _same(expected: object, found: object, what: str) -> None:
        assert found == expected, f"{what}: expected {expected}, found {found}"
