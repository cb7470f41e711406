"""Ways to take F9 out: how many rows a source may put into an epoch."""

from tests.unit.protocol_task.mutant import Mutation

PACE_FILE, MACHINE = "tidemark.shared.protocol.task.pace", "tidemark.shared.protocol.task.machine"

PACE = (
    Mutation("F9", "an epoch has no bound", MACHINE, " or self.pace.full()", ""),
    Mutation("F9", "a full epoch is not told", MACHINE, "self._asked_for < self.sender.epoch", "False"),
    Mutation("F9", "asks again and again", MACHINE, "            self._asked_for = self.sender.epoch\n", ""),
    Mutation("F9", "what is held does not count", PACE_FILE, "self.sent_rows + self.held_rows >=", "self.sent_rows >="),
    Mutation(
        "F9",
        "the time of an epoch is not heard",
        MACHINE,
        "self.pace.took(event.epoch, event.took_ms, event.late, event.late_ms)",
        "pass",
    ),
    Mutation("F9", "a slow epoch bounds nothing", PACE_FILE, "min(self.window_rows, fit) if fit < rows else", ""),
    Mutation("F9", "a fast epoch frees nothing", PACE_FILE, "else max(self.window_rows, fit)", "else self.window_rows"),
    Mutation("F9", "an epoch under way bounds nothing", PACE_FILE, "elapsed_ms <= self.target_ms", "True"),
    Mutation(
        "F9",
        "a time that goes on teaches",
        PACE_FILE,
        "        rows = self._rows.get(late, 0)\n",
        "        rows = self._rows.get(late, 0)\n        self._learn_fixed(rows, late_ms)\n",
    ),
    Mutation(
        "F9",
        "a time that goes on bounds nothing",
        PACE_FILE,
        "fit := self._fitting(rows, late_ms)) < rows",
        "fit := self._fitting(rows, late_ms)) < 0",
    ),
    Mutation(
        "F9",
        "a time that is told again teaches again",
        PACE_FILE,
        "            if epoch > self._learned:\n",
        "            if True:\n",
    ),
    Mutation(
        "F9",
        "what became slower counts as what an epoch costs",
        PACE_FILE,
        " and (each_ms or _alike(took_ms, before_ms))",
        "",
    ),
    Mutation("F9", "a commit does not end it", PACE_FILE, "        if self._flight <= epoch:\n", "        if False:\n"),
    Mutation(
        "F9",
        "the rows of an aborted one are forgotten",
        PACE_FILE,
        "self.sent_rows += self._rows.pop(self._flight, 0)",
        "pass",
    ),
    Mutation(
        "F9", "an aborted one bounds nothing", PACE_FILE, "            self.window_rows = self._bound_rows()\n", ""
    ),
    Mutation(
        "F9",
        "the last row may be refused",
        PACE_FILE,
        "return max(1, int(rows * spare_ms / work_ms))",
        "return int(rows * spare_ms / work_ms)",
    ),
    Mutation(
        "F9",
        "fixed costs count as the rows'",
        PACE_FILE,
        "            self._fixed_ms = min(took_ms, before_ms,",
        "            _ = min(took_ms, before_ms,",
    ),
    Mutation(
        "F9",
        "rows that become many count as one",
        PACE_FILE,
        "self._became = max(_BECAME_LEAST, more / taken_rows)",
        "pass",
    ),
    Mutation("F9", "the last rows come one by one", PACE_FILE, "max(left, bound // _PIECES)", "left"),
    Mutation("F9", "another leader begins anew", PACE_FILE, "if not self.target_ms and target_ms:", "if target_ms:"),
)
