"""What an audit says in sums."""

from tidemark.services.audit.report import NOTHING, Audited, AuditedEpoch
from tidemark.shared.model.ids import Epoch, Generation, VertexId


def _epoch(number: int, **outputs: int) -> AuditedEpoch:
    return AuditedEpoch(
        epoch=Epoch(number),
        generation=Generation(1),
        positions={},
        records=5,
        counted=5,
        late=0,
        duplicates=0,
        dead_letters=0,
        outputs={VertexId(name): count for name, count in outputs.items()},
        released=True,
    )


def test_an_output_that_a_later_epoch_takes_out_of_the_comparison_is_not_vouched_for_by_the_next_audit() -> None:
    """Also where that one finds no epoch more."""
    epochs = (_epoch(1, raw=5, results=2), _epoch(2, raw=5, results=3), _epoch(3, raw=5))
    found = Audited(epochs)
    then = Audited((), before=NOTHING.with_epochs(epochs))
    assert found.outputs == then.outputs == {"raw": 15}
    assert found.records == then.records == 15
