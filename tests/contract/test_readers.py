"""What sinks write, as pandas, PyArrow and the formats' own libraries read it: documents drawn by seed. `make readers` has more."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.readers.drawing import FORMS, drawn
from tests.harness.readers.environment import own
from tests.harness.readers.running import Reading, asked, written_in
from tests.harness.readers.watched import Watch
from tests.harness.share import share
from tidemark.shared.language.stages import EmitFormat


@pytest.fixture(scope="module")
def reading() -> Iterator[Reading]:
    found = Reading(sys.executable, own(spark=False))
    yield found
    found.close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", share(range(1, 9), 8))
def test_each_reader_finds_each_row_once_and_each_value(
    form: EmitFormat, seed: int, reading: Reading, tmp_path: Path
) -> None:
    """Spark and programs that the lock has not are asked by the command alone."""
    asked = Counter[str]()
    found = reading.findings(written_in(drawn(seed, form), tmp_path), asked)
    assert asked
    assert [str(each) for each in found if not each.excuse] == []


@pytest.mark.parametrize("form", FORMS)
def test_readers_see_whole_commits_while_the_sink_commits_and_is_killed(
    form: EmitFormat, reading: Reading, tmp_path: Path
) -> None:
    """No row of a commit that is not made, none twice, and of a table no part of a commit."""
    watch = Watch(1, form, tmp_path)
    watch.run(reading, asked(watch.written, reading.names), kills=1)
    assert watch.wrong == []
