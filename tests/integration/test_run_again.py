"""`tidemark run` on a folder where it ran before: it goes on, with the document as it is now, and is not misled by how it ended then."""

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from tests.harness.installation import NAME, Installed, installed, released
from tidemark.services.cli.installation import ChangeRefused, Installation
from tidemark.services.local.supervisor import LocalCluster
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.messages import StopProcessor

Story = Callable[[Installed, Installation], Coroutine[Any, Any, None]]


def tell(story: Story) -> None:
    """Run a story on virtual time, with what `tidemark run` has of an installation; neither broker nor processes are asked."""

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            nobody = cast("LocalCluster", None)
            await story(there, Installation(nobody, cast("KafkaLog", there.outside.log), there.client))

    run_virtual(main)


def document(folder: Path, *, follow: bool = True, path: str = "in.json", **added: Any) -> str:
    """A document without windows: every line goes out, with what is added to it."""
    return json.dumps(
        {
            "name": NAME,
            "pipeline": [
                {"$source": {"path": str(folder / path), "format": "json", "follow": follow}},
                {"$set": added or {"plain": True}},
                {"$emit": {"path": str(folder / "out"), "format": "json"}},
            ],
            "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
        }
    )


async def stop(there: Installed, run: Installation) -> None:
    """What Ctrl-C does."""
    await there.committed()
    await there.client.request(StopProcessor(there.client.unique(), NAME))
    assert (await run.until_ended(NAME)).state == "STOPPED"


def test_a_run_goes_on_after_a_stop_and_does_not_take_the_old_end_for_its_own(tmp_path: Path) -> None:
    """The registry's topic still tells that the last run stopped: the next one runs, reads what is new, and ends when it is stopped."""
    lines = tmp_path / "in.json"
    lines.write_text('{"n": 1}\n')

    async def story(there: Installed, run: Installation) -> None:
        assert await run.ensure_started(NAME, document(tmp_path), {}) == "created"
        await stop(there, run)
        with lines.open("a") as more:
            more.write('{"n": 2}\n')
        assert await run.ensure_started(NAME, document(tmp_path), {}) == "resumed"
        first = await anext(there.client.watch(NAME))
        assert first.state in ("STARTING", "RUNNING")
        await stop(there, run)
        assert released(tmp_path / "out") == [{"n": 1, "plain": True}, {"n": 2, "plain": True}]

    tell(story)


def test_a_document_that_was_edited_between_two_runs_holds_from_the_second_on(tmp_path: Path) -> None:
    """Who edits the file and runs it again gets what he wrote: its new stages, from the checkpoint on; a comment changes nothing."""
    lines = tmp_path / "in.json"
    lines.write_text('{"n": 1}\n')

    async def story(there: Installed, run: Installation) -> None:
        await run.ensure_started(NAME, document(tmp_path), {})
        await stop(there, run)
        with lines.open("a") as more:
            more.write('{"n": 2}\n')
        assert await run.ensure_started(NAME, document(tmp_path, edited=1), {}) == "changed"
        await stop(there, run)
        assert released(tmp_path / "out") == [{"n": 1, "plain": True}, {"n": 2, "edited": 1}]
        reread = "# the same\n" + document(tmp_path, edited=1)
        assert await run.ensure_started(NAME, reread, {}) == "resumed"

    tell(story)


def test_a_change_that_cannot_go_on_is_refused_and_nothing_starts(tmp_path: Path) -> None:
    """Another source behind a checkpoint is refused with its place; the old document stays, and is not run either."""
    (tmp_path / "in.json").write_text('{"n": 1}\n')
    (tmp_path / "other.json").write_text('{"n": 5}\n')

    async def story(there: Installed, run: Installation) -> None:
        await run.ensure_started(NAME, document(tmp_path), {})
        await stop(there, run)
        with pytest.raises(ChangeRefused, match=r"\$source has changed"):
            await run.ensure_started(NAME, document(tmp_path, path="other.json"), {})
        assert (await there.client.statuses())[NAME].state == "STOPPED"

    tell(story)


def test_a_run_of_what_has_finished_says_so(tmp_path: Path) -> None:
    """A bounded input is read once: the second run is told that there was nothing to do."""
    (tmp_path / "in.json").write_text('{"n": 1}\n')

    async def story(there: Installed, run: Installation) -> None:
        text = document(tmp_path, follow=False)
        await run.ensure_started(NAME, text, {})
        assert (await run.until_ended(NAME)).state == "FINISHED"
        assert await run.ensure_started(NAME, text, {}) == "finished"
        with pytest.raises(ChangeRefused, match="has finished"):
            await run.ensure_started(NAME, document(tmp_path, follow=False, edited=1), {})

    tell(story)


def test_a_misspelt_source_may_be_corrected_while_nothing_was_committed(tmp_path: Path) -> None:
    """Without a checkpoint a changed source loses no state: the processor that failed on it starts with the right one."""
    (tmp_path / "bad.parquet").write_text("no Parquet")
    (tmp_path / "in.json").write_text('{"n": 1}\n')
    wrong = document(tmp_path, follow=False, path="bad.parquet").replace(
        '"format": "json", "follow"', '"format": "parquet", "follow"'
    )

    async def story(there: Installed, run: Installation) -> None:
        await run.ensure_started(NAME, wrong, {})
        failed = await run.until_ended(NAME)
        assert failed.state == "FAILED"
        assert "bad.parquet: not a Parquet file" in failed.reason
        assert await run.ensure_started(NAME, document(tmp_path, follow=False), {}) == "changed"
        assert (await run.until_ended(NAME)).state == "FINISHED"
        assert released(tmp_path / "out") == [{"n": 1, "plain": True}]

    tell(story)
