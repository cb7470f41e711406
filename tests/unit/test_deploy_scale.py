"""`deploy/scale.py` with a compose that only writes down what it is asked, and the wishes that it follows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.installation import installed
from tests.harness.sealing import sealed
from tidemark.deploy.scale import Scaler
from tidemark.services.cli.wishes import line_of
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Place, ProcessorName, WorkerIncarnation
from tidemark.shared.model.messages import StartProcessor, WorkerUnwanted, WorkerWanted
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.wishes import wishes

IDS = ["0123456789ab", "ba9876543210", "00ff00ff00ff"]
ENGINE = """#!/bin/sh
echo "$(basename "$0") $*" >> asked
case "$*" in "ps --quiet sink") cat there;; esac
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `docker` and `compose`; they say what is `there`, and write what they are asked."""
    for name in ("docker", "compose"):
        (tmp_path / name).write_text(ENGINE)
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "asked"


def follows(asked: Path, wish: WorkerWanted | WorkerUnwanted, there: list[str], **most: int) -> list[str]:
    """What is asked of compose and the engine for a wish, while these containers of the sink are there."""
    (asked.parent / "there").write_text("".join(f"{each:f<64}\n" for each in there))
    asked.write_text("")
    Scaler(["compose"], most).follow(json.loads(line_of(wish)))
    return [line for line in asked.read_text().splitlines() if "--quiet" not in line]


def wanted(*containers: str) -> WorkerWanted:
    return WorkerWanted("sink", tuple(Place(f"sink-{each}") for each in containers))


def test_a_wish_adds_one_up_to_the_most_and_waits_for_one_on_its_way(asked: Path) -> None:
    """And services that are not named stay as they are."""
    added = ["compose up --detach --no-deps --no-recreate --no-build --scale sink=2 sink"]
    assert follows(asked, wanted(IDS[0]), IDS[:1], sink=3) == added
    assert follows(asked, wanted(IDS[0]), IDS[:2], sink=3) == []
    assert follows(asked, wanted(*IDS), IDS, sink=3) == []
    assert follows(asked, wanted(IDS[0]), IDS[:1], operator=3) == []


def test_who_hosts_nothing_is_removed_but_not_the_last(asked: Path) -> None:
    """By its container: compose would end the newest. One that is gone, or no container of the service's, is nobody."""
    unwanted = WorkerUnwanted(Place(f"sink-{IDS[0]}"), WorkerIncarnation("w"))
    assert follows(asked, unwanted, IDS[:2], sink=3) == [f"docker stop {IDS[0]}", f"docker rm {IDS[0]}"]
    assert follows(asked, unwanted, IDS[:1], sink=3) == []
    assert follows(asked, unwanted, IDS[1:], sink=3) == []
    assert follows(asked, unwanted, IDS[:2], operator=3) == []


def test_words_that_are_no_bound_are_refused() -> None:
    """Before anything is asked of compose."""
    for words in ([], ["--most", "sink"], ["--most", "sink=0"]):
        done = subprocess.run(
            [sys.executable, "-m", "tidemark.deploy.scale", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "expected --most SERVICE=N" in done.stderr


def test_a_compose_that_is_not_installed_is_named() -> None:
    """Instead of trying it again and again."""
    words = [sys.executable, "-m", "tidemark.deploy.scale", "--most", "sink=2", "--compose", "no-such-compose -f x"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "--compose no-such-compose -f x: expected a command that is installed, found no no-such-compose\n"
    )


def test_wishes_of_a_leader_are_heard(tmp_path: Path) -> None:
    """A processor waits for a worker of a service that has none."""

    async def main(world: VirtualWorld) -> list[str]:
        async with installed(world.clock, world.executor, services=("source",)) as there:
            name = ProcessorName("p")
            pipeline = [{"$source": {"documents": [{"a": 1}]}}, {"$emit": {"path": str(tmp_path), "format": "json"}}]
            await there.create({"pipeline": pipeline}, name)
            await there.client.request(StartProcessor(there.client.unique(), name))
            heard = wishes(sealed(MemoryLog(there.broker)), world.clock, RuntimeSettings(), Topics())
            return [line_of(await anext(heard))]

    assert [json.loads(line) for line in run_virtual(main)] == [{"wanted": "sink", "there": []}]
