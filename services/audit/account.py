"""Both sides of an audit: the documents that must have come out against those that are there, and the account of the records."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemark.services.audit.expected import ExpectedOutput, Line, canonical
from tidemark.services.audit.forms import TargetForms
from tidemark.services.audit.history import AuditFailed, Commit, NotAuditable, positions_of
from tidemark.services.audit.outputs import Output
from tidemark.services.audit.recompute import Recomputed
from tidemark.services.audit.report import AuditedEpoch
from tidemark.services.audit.rowsums import NO_ROWS, RowSum
from tidemark.shared.model.ids import VertexId
from tidemark.shared.model.values import Document
from tidemark.shared.operators.dead_letters import LATE


async def same(
    vertex: VertexId,
    done: Recomputed,
    output: Output,
    commits: Sequence[Commit],
    how: ExpectedOutput,
    *,
    by_epoch: bool,
    others: bool,
    part: bool = False,
) -> None:
    """Both as multisets, epoch by epoch, or as a whole. AuditFailed names the first document that is missing, repeated or altered.

    others: documents that no record decides may be there besides. Of a piece (`part`), rows that lie in files with those of other epochs
    are owed: the last piece looks for them.
    """
    text, forms = how.text, how.forms
    complete = [e for e, commit in zip(done.epochs, commits, strict=True) if output.complete(commit, vertex)]
    if partly := output.mixed - {epoch.epoch for epoch in complete}:
        message = (
            f"{vertex}: rows of commit {max(partly)}, which is not released everywhere yet, lie in files together with others: audit again"
            " when it is"
        )
        raise NotAuditable(message)
    if not by_epoch and (output.gone or output.untold):
        return
    if by_epoch:
        apart = {*output.gone, *output.untold, *output.mixed}
        for epoch in complete:
            if epoch.epoch not in apart:
                found = output.texts.get(epoch.epoch, [])
                expected = done.certain_texts(epoch, vertex, text)
                await _match(f"epoch {epoch.epoch}, {vertex}", expected, found, forms=forms, others=others)
        complete = [epoch for epoch in complete if epoch.epoch in output.mixed]
        where = "that lie in files together, "
    else:
        where = ""
    expected = [each for epoch in complete for each in done.certain_texts(epoch, vertex, text)]
    found = [item for epoch in complete for item in output.texts.get(epoch.epoch, [])]
    if part and output.mixed:
        output.owed = NO_ROWS if others else RowSum.of(expected) - RowSum.of(there for there, _ in found)
        return
    last = complete[-1].epoch if complete else "that of the last audit"
    found = [*found, *output.large]
    await _match(f"epochs up to {last} {where}{vertex}", expected, found, output.earlier, forms=forms, others=others)


async def _match(
    where: str,
    expected: Sequence[str],
    found: Sequence[tuple[str, str]],
    earlier: RowSum = NO_ROWS,
    *,
    forms: TargetForms | None,
    others: bool,
) -> None:
    """earlier: of rows that are there, too."""
    if earlier != NO_ROWS:
        if not others and (there := RowSum.of(line for line, _ in found)) != RowSum.of(expected) + earlier:
            message = (
                f"{where}: the rows are not those that an earlier audit saw and those that came out since:"
                f" expected {earlier.rows} and {len(expected)} documents, found {there.rows}"
            )
            raise AuditFailed(message)
        return
    # What a sink wrote is what it would write again, letter by letter. Only where it is not so do all texts have to be parsed.
    if Counter(expected) != Counter(text for text, _ in found):
        texts: Sequence[str] = [text for text, _ in found]
        unread: Mapping[int, str] = {}
        if forms is not None:
            expected, _ = await forms.read(expected)
            texts, unread = await forms.read(texts)
        lines = [_line(text, found[n][1], unread.get(n, "")) for n, text in enumerate(texts)]
        _match_lines(where, [canonical(text) for text in expected], lines, others=others)


def _line(text: str, place: str, why: str) -> tuple[Line, str]:
    try:
        return canonical(text), place
    except ValueError as error:
        raise AuditFailed(f"{place}: {why or 'expected a JSON document'}, found {text[:60]!r}") from error


def _match_lines(where: str, expected: Sequence[Line], found: Sequence[tuple[Line, str]], *, others: bool) -> None:
    left = Counter(expected)
    sizes = f"expected {len(expected)} documents, found {len(found)}"
    for line, place in found:
        if left[line] == 0:
            if others:
                continue
            times = sum(1 for other, _ in found if other == line)
            why = f"is there {times} times" if times > 1 else "does not follow from the epoch's input"
            absent = next(
                (wanted for wanted in left if left[wanted] and wanted not in {other for other, _ in found}), None
            )
            instead = f"; missing: {absent[:300]}" if absent is not None else ""
            message = f"{where}: {place}: {line[:300]} {why}{instead}; {sizes}"
            raise AuditFailed(message)
        left[line] -= 1
    missing = next((line for line, count in left.items() if count), None)
    if missing is not None:
        message = f"{where}: missing from the output: {missing[:300]}; {sizes}"
        raise AuditFailed(message)


def account_of(
    done: Recomputed,
    outputs: Mapping[VertexId, Output],
    vouched: Mapping[VertexId, Output],
    commits: Sequence[Commit],
    after: Commit | None,
) -> tuple[AuditedEpoch, ...]:
    """Each input record once: counted, late, repeated, or a dead letter for another reason. vouched: outputs that were compared whole."""
    epochs = []
    for epoch, commit, taken in zip(done.epochs, commits, positions_of(commits, after), strict=True):
        late, dead = _letters(done.certain_of(epoch, VertexId("dlq")))
        epochs.append(
            AuditedEpoch(
                epoch=epoch.epoch,
                generation=commit.row.generation,
                positions=taken,
                records=epoch.records,
                counted=epoch.records - epoch.duplicates - late - dead,
                late=late,
                duplicates=epoch.duplicates,
                dead_letters=dead,
                outputs={vertex: output.count(epoch.epoch) for vertex, output in vouched.items()},
                released=all(output.complete(commit, vertex) for vertex, output in outputs.items()),
                gone=tuple(output.gone[epoch.epoch] for output in outputs.values() if epoch.epoch in output.gone),
            )
        )
    return tuple(epochs)


def _letters(letters: Iterable[tuple[Document, frozenset[VertexId]]]) -> tuple[int, int]:
    """Input records that are late, and those that are dead letters for other reasons; letters about anything else are neither."""
    records: dict[tuple[Any, ...], bool] = {}
    for letter, sources in letters:
        source = letter["_stream_meta"]["source"]
        if "offset" in source:
            place = sources, source.get("topic"), source.get("partition"), source["offset"]
            records[place] = records.get(place, False) or letter["errInfo"]["reason"] == LATE
    late = sum(records.values())
    return late, len(records) - late
