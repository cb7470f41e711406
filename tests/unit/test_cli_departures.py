"""The year on an installation elsewhere: what is there is not sent again; tokens from files; numbers of tasks."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.oracle.check_demo import feed_of
from tidemark.services.cli import control
from tidemark.services.cli.__main__ import app
from tidemark.services.cli.demo import TOPIC
from tidemark.services.cli.departures import feed_rest
from tidemark.services.cli.remote import RemoteFailed, find
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.log import NewRecord, TopicPartition


def test_a_feed_goes_on_where_the_topic_ends() -> None:
    """A feed that was cut off anywhere in each partition sends the rest, in order, and a third one nothing."""
    year = feed_of()
    first = [(p, k, v) for (p, k, v), _ in zip(year.in_order(), range(round(year.sent * 0.005)), strict=False)]

    async def main(world: VirtualWorld) -> tuple[list[tuple[int, int]], list[list[bytes | None]]]:
        broker = MemoryBroker(world.clock)
        broker.create_topic(TOPIC, len(year.partitions))
        log = MemoryLog(broker)
        writer = await log.writer("cut off")
        for partition, key, value in first[:700]:
            if partition != 1:
                await (await writer.send(TopicPartition(TOPIC, partition), NewRecord(value, key)))
        await writer.close()
        told = [await feed_rest(log, 1.0, 0.005), await feed_rest(log, 1.0, 0.005)]
        dump = broker.dump(TOPIC)
        return told, [[r.value for r in dump[p]] for p in range(len(year.partitions))]

    told, held = run_virtual(main, seed=1)
    there = sum(1 for partition, _, _ in first[:700] if partition != 1)
    assert told == [(len(first) - there, there), (0, len(first))]
    assert held == [[v for p, _, v in first if p == partition] for partition in range(len(year.partitions))]


def test_the_token_may_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TIDEMARK_TOKEN_FILE names it; one that is not there is named."""
    monkeypatch.setenv("TIDEMARK_CONTROL", "http://localhost:1/")
    monkeypatch.setenv("TIDEMARK_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(RemoteFailed, match=r"TIDEMARK_TOKEN_FILE: expected a file .* No such file"):
        find(tmp_path)
    (tmp_path / "token").write_text("secret\n")
    assert find(tmp_path).token == "secret"


class _Remote:
    """A control service that knows one processor."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []

    def get(self, path: str) -> Any:
        assert path == "/v1/processors/job"
        return {"parallelism": {"source": 2, "sink": 1}}

    def send(self, method: str, path: str, body: Any = None) -> None:
        self.sent.append((method, path, body))


def test_a_rescale_changes_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numbers stay; what is no number is refused before anything is asked."""
    remote = _Remote()
    monkeypatch.setattr(control, "find", lambda _: remote)
    refused = CliRunner().invoke(app, ["rescale", "job", "operator=many"])
    assert (refused.exit_code, remote.sent) == (2, [])
    done = CliRunner().invoke(app, ["rescale", "job", "operator=3", "sink=2"])
    assert done.stdout == "job: operator=3, sink=2, source=2\n"
    assert remote.sent == [("PATCH", "/v1/processors/job", {"parallelism": {"source": 2, "sink": 2, "operator": 3}})]


@pytest.mark.parametrize("tasks", ["source=²", "source=" + "9" * 5_000, "=1", "source", "source=-1", "source=1.5"])
@pytest.mark.parametrize("words", [["run", "p.json", "--tasks"], ["rescale", "p"]])
def test_numbers_of_tasks_that_are_none_are_refused(
    words: list[str], tasks: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a sentence and the status of a wrong command line, before a document is read or a service asked; never with a trace."""
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, [*words, tasks])
    assert refused.exit_code == 2, refused.output
    assert "expected name=number" in refused.output
