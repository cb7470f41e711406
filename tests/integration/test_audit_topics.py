"""What an audit says of topics that people have changed: that records are gone, and with which topic; never that they are wrong."""

import logging

import pytest

from tests.harness.audited import READINGS, Saved, Story, feed, finished_run, run
from tidemark.services.audit.check import Audited, NotAuditable
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.virtual import run_virtual


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    out = tmp_path_factory.mktemp("audited")
    return run_virtual(lambda world: finished_run(world, out))


@pytest.mark.parametrize(("partitions", "records"), [(1, 0), (2, 10), (2, 300), (3, 300)])
def test_a_source_that_was_made_anew_is_not_read_for_the_old_one(saved: Saved, partitions: int, records: int) -> None:
    """However many partitions and records it has now: no statement, and no word of lost or wrong records."""

    async def then(told: Story) -> None:
        told.broker.delete_topic("readings")
        told.broker.create_topic("readings", partitions)
        if records:
            await feed(told.log, [{**each, "wh": 1} for each in READINGS[:records]])
        with pytest.raises(
            NotAuditable, match=r"topic readings: the job read the topic with id .* another one has the name"
        ):
            await told.audit()

    run(saved, then)


@pytest.mark.parametrize("again", [True, False])
def test_an_output_whose_topic_was_deleted_is_told_and_not_compared(saved: Saved, again: bool) -> None:
    """Each epoch with records in it is named, whether another topic has the name or not; the other outputs are compared."""

    async def then(told: Story) -> Audited:
        told.broker.delete_topic("usage")
        if again:
            told.broker.create_topic("usage", 4)
        return await told.audit()

    found: Audited = run(saved, then)
    (gone,) = set(found.gone)
    assert gone.startswith("topic usage: it was deleted" if again else "topic usage is not there")
    assert found.records == len(READINGS) + 15
