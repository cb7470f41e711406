"""What reads bytes of others stands whatever comes: a few of the inputs that `make hostile` draws by the million."""

import pytest

from tests.harness import hostile
from tests.harness.share import CI


def test_whatever_comes_is_read_or_refused_by_name() -> None:
    """Documents, formats, records, bodies, commands, answers, batches, damaged: no other exception, no crash, nothing that does not end."""
    assert hostile.run(0, 1_300 if CI else 5_200) == []


def test_a_reader_that_falls_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that no reader names is told with its seed."""

    def falls(_: object) -> None:
        raise RuntimeError("fell")

    monkeypatch.setattr(hostile, "FAMILIES", (falls,))
    assert hostile.run(7, 1) == ["seed 7, falls: RuntimeError: fell"]
