"""People at the console without a script, drawn, before installations of every shape; and what these walks have found."""

import asyncio
import json
import logging
import os
import random
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession
from yarl import URL

from tests.harness.console import token_of
from tests.harness.visits import growth
from tests.harness.visits.between import between
from tests.harness.visits.meeting import meet, meeting
from tests.harness.visits.sessions import sit
from tests.harness.visits.shapes import KINDS, Shape, document, letter, processor, window
from tests.harness.visits.stand import USERS, stand
from tests.harness.visits.walking import Walk, walk
from tests.integration.test_login import place_of
from tidemark.services.cli.process import quiet
from tidemark.services.cli.remote import Remote, RemoteFailed
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.model.ids import Place


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


def one(**how: object) -> Shape:
    """An installation with a processor that runs."""
    found = Shape("one processor")
    status, found.beats = processor(random.Random(0), "clicks", document(window(0)), state="RUNNING", **how)  # type: ignore[arg-type]
    found.statuses.append(status)
    return found


@pytest.mark.parametrize("kind", KINDS)
async def test_a_walk_finds_nothing(kind: str, tmp_path: Path) -> None:
    """Every page of an installation of this kind, and some steps of a walk."""
    chooser = random.Random(len(kind))
    async with stand(KINDS[kind](chooser, Shape(kind)), tmp_path) as there:
        assert await walk(there, chooser, 12) == []


async def test_several_at_once_find_nothing(tmp_path: Path) -> None:
    """Old pages, other rights, scripts, the command line, two replicas, and requests that come again."""
    async with meeting(random.Random(2), tmp_path) as several:
        assert await meet(several, 40) == []


async def test_people_who_log_in_find_nothing(tmp_path: Path) -> None:
    """Tokens end, are renewed, refused or changed; somebody logs out in another tab; a browser takes no cookies."""
    async with place_of(tmp_path, leeway_s=0) as place:
        assert await sit(place, random.Random(2), 20) == []


async def test_a_command_whose_answer_is_lost_is_sent_again(tmp_path: Path) -> None:
    """Once, under the same id: what the first one has done is its answer, and no refusal."""
    async with meeting(random.Random(0), tmp_path) as several, between(URL(several.urls[0]).port or 0) as net:
        remote, executor = Remote(net.url, token_of("admin")), AsyncExecutor()
        for method, path, body in (
            ("POST", "/v1/processors", {"name": "p", "document": document()}),
            ("DELETE", "/v1/processors/p", None),
        ):
            net.lose_answer_to = f"{method} {path}"
            assert "request" in await executor.blocking(remote.send, method, path, body)
        assert net.lost == 2


@pytest.mark.parametrize(
    ("way", "unknown"), [("nobody", False), ("gateway", True), ("cut requests", True), ("lost, then nobody", True)]
)
async def test_a_command_without_an_answer_says_whether_it_may_be_done(tmp_path: Path, way: str, unknown: bool) -> None:
    """Where nobody heard it, it is not; where something answers in the service's place, or the answer is lost, it is not known."""
    taken = 0

    async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        await reader.readuntil(b"\r\n\r\n")
        if way == "lost, then nobody":
            server.close()
        if way == "gateway":
            writer.write(b"HTTP/1.1 504 Gateway Time-out\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(takes, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    if way == "nobody":
        server.close()
    with pytest.raises(RemoteFailed) as failed:
        await AsyncExecutor().blocking(Remote(url, "token").send, "POST", "/v1/processors/p/stop")
    server.close()
    assert ("whether it was done is not known" in str(failed.value).lower()) == unknown, failed.value
    assert taken == {"nobody": 0, "lost, then nobody": 1}.get(way, 2)


async def test_a_log_is_followed_while_its_installation_starts_again(tmp_path: Path) -> None:
    """Its address and its token are gone meanwhile; at the beginning that is an error."""
    shape, address, token = one(), tmp_path / "run" / "control.json", tmp_path / "run" / "token"
    shape.lines = [json.dumps({"timestamp": "2026-01-01T00:00:00Z", "processor": "clicks", "event": "first"}).encode()]
    address.parent.mkdir()
    async with stand(shape, tmp_path) as there:
        command = (sys.executable, "-m", "tidemark", "logs", "clicks", "--follow", "--data", str(address.parent))
        settings = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
        early = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=settings)
        assert b"no control service runs" in (await early.communicate())[1]
        assert early.returncode == 1
        token.write_text(token_of("viewer"))
        address.write_text(json.dumps({"url": there.url, "token_file": str(token)}))
        running = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=settings)
        assert running.stdout is not None
        assert running.stderr is not None
        assert b"first" in await running.stdout.readline()
        for gone, event in ((address, b"second"), (token, b"third")):
            gone.rename(tmp_path / "kept")
            assert b"no control service runs" in await running.stderr.readline()
            with (tmp_path / "source-0.log").open("ab") as log:
                log.write(shape.lines[0].replace(b"first", event) + b"\n")
            (tmp_path / "kept").rename(gone)
            assert event in await running.stdout.readline()
        running.terminate()
        await running.wait()


async def test_a_log_is_followed_over_a_break_and_no_longer_than_one_may(tmp_path: Path) -> None:
    """The service is away for a while: what follows says so, and goes on. The user is taken away: it ends, and says why."""
    shape = one()
    shape.lines = [json.dumps({"timestamp": "2026-01-01T00:00:00Z", "processor": "clicks", "event": "first"}).encode()]
    async with stand(shape, tmp_path) as there, between(there.port) as net:
        command = (sys.executable, "-m", "tidemark", "logs", "clicks", "--follow")
        settings = {**os.environ, "TIDEMARK_CONTROL": net.url, "TIDEMARK_TOKEN": token_of("viewer")}
        running = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=settings)
        assert running.stdout is not None
        assert running.stderr is not None
        assert b"first" in await running.stdout.readline()
        net.way = "refuses"
        assert b"does not answer" in await running.stderr.readline()
        with (tmp_path / "source-0.log").open("ab") as log:
            log.write(shape.lines[0].replace(b"first", b"second") + b"\n")
        net.way = ""
        assert b"second" in await running.stdout.readline()
        there.grant(*(user for user in USERS if user != "viewer"))
        assert b"header Authorization" in (await running.communicate())[1]
        assert running.returncode == 1


@pytest.mark.parametrize("what", growth.DIMENSIONS)
async def test_pages_grow_no_faster_than_what_they_show(what: str) -> None:
    """Bytes, questions to the brokers and lines of code that run, with four times as much of one thing."""
    assert await growth.steep(what) == []


async def test_a_refused_page_is_a_page(tmp_path: Path) -> None:
    """Whatever refuses: no such page, a role that is too low, a name that is another's, a token that is none."""
    async with stand(one(), tmp_path) as there, ClientSession() as session:
        for rights, path, status, finding in (
            ("admin", "/console/nowhere", 404, "GET: Not Found"),
            ("viewer", "/console/audit", 403, "viewer's, who is viewer"),
            ("viewer@a", "/console/processors/clicks/time", 404, "there is no processor named clicks"),
            ("stranger", "/", 401, "another"),
        ):
            told, kind, text = await Walk(there, random.Random(0), session, rights).ask("GET", path)
            assert (told, kind) == (status, "text/html"), path
            assert finding in text.replace("&#x27;", "'"), path
            assert ("<script" in text) == (status != 401), "a script would make the browser ask for a token again"


async def test_a_page_is_asked_for_as_browsers_and_programs_do(tmp_path: Path) -> None:
    """Without its body, with a slash behind it, by the folder; a role counts for HEAD as it does for GET, and a stream has none."""
    async with stand(one(), tmp_path) as there, ClientSession() as session:
        walk = Walk(there, random.Random(0), session)
        assert (await walk.ask("HEAD", "/console/connections"))[0] == 200
        assert (await walk.ask("HEAD", "/healthz"))[::2] == (200, "")
        assert (await walk.ask("HEAD", "/v1/live"))[0] == 405
        assert (await Walk(there, random.Random(0), session, "viewer").ask("HEAD", "/console/audit"))[0] == 403
        assert (await Walk(there, random.Random(0), session, "viewer@a").ask("HEAD", "/v1/processors/clicks"))[0] == 404
        for path, due in (
            ("/console", "/"),
            ("/console/", "/"),
            ("/console/connections//?a=%26", "/console/connections?a=%26"),
        ):
            async with session.get(f"{there.url}{path}", allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (302, due)


async def test_letters_of_others_are_shown(tmp_path: Path) -> None:
    """Anyone may write to the topic: what is no letter, or an odd one, is shown, and a large one with its begin alone."""
    shape = one()
    odd: tuple[Any, ...] = (
        {"errInfo": "text"},
        {"errInfo": [1]},
        {"errInfo": {"code": {"a": 1}, "reason": ["x"]}},
        {"dlqTime": [1]},
        [],
        1,
    )
    shape.letters["refused"] = [json.dumps(each).encode() for each in (*odd, {"doc": "<&>" * 200_000})]
    async with stand(shape, tmp_path) as there, ClientSession() as session:
        status, _, text = await Walk(there, random.Random(0), session).ask(
            "GET", "/console/processors/clicks/dead-letters"
        )
        assert status == 200
        assert text.count("<tr>") == 8
        assert "more characters: REST has them" in text
        assert len(text) < 50_000


async def test_a_watermark_beyond_the_year_9999_is_shown(tmp_path: Path) -> None:
    """Its instant has no ISO form: REST tells milliseconds, and the page plots them."""
    shape = one()
    far = 253_402_300_800_000
    shape.beats = [
        msgspec.structs.replace(beat, input_watermark_ms=far, output_watermark_ms=far) for beat in shape.beats
    ]
    async with stand(shape, tmp_path) as there, ClientSession() as session:
        walk = Walk(there, random.Random(0), session)
        while not any(
            p["watermark"] for p in json.loads((await walk.ask("GET", "/v1/processors/clicks/history"))[2])["points"]
        ):
            pass
        status, _, text = await walk.ask("GET", "/console/processors/clicks/time")
        assert status == 200
        assert str(far) in text


async def test_numbers_are_shown_to_the_last_digit(tmp_path: Path) -> None:
    """Those beyond 2^53, too."""
    shape = one()
    shape.beats = [msgspec.structs.replace(beat, counters={"inRows": 2**53 + 1}) for beat in shape.beats]
    async with stand(shape, tmp_path) as there, ClientSession() as session:
        _, _, text = await Walk(there, random.Random(0), session).ask("GET", "/console/processors/clicks")
        assert "9,007,199,254,740,993" in text


async def test_a_sample_waits_no_longer_for_the_coordinator_than_commands(tmp_path: Path) -> None:
    """Without a coordinator its page says so."""
    async with stand(one(), tmp_path) as there, ClientSession() as session:
        for path in (
            "/console/processors/clicks/sample?edge=",
            "/console/processors/clicks/sample?edge=source-1%3Ewindow-1",
        ):
            status, _, text = await Walk(there, random.Random(0), session).ask("GET", path)
            assert status == 504
            assert "no coordinator answered within 0.2 s" in text


async def test_a_task_with_more_to_do_than_others_is_seen(tmp_path: Path) -> None:
    """Rows, lag and state of each task, by REST and on the page; of one that nobody has heard of, nothing."""
    shape = one()
    status, beat = shape.statuses[0], next(each for each in shape.beats if each.vertex == "window-1")
    silent = (beat.vertex, 2, Place("operator-0"))
    shape.statuses[0] = msgspec.structs.replace(
        status, tasks=((beat.vertex, 0, Place("operator-0")), (beat.vertex, 1, Place("operator-0")), silent)
    )
    shape.beats = [
        msgspec.structs.replace(beat, index=index, counters={"inRows": rows, "lagMs": 7, "stateBytes": 9})
        for index, rows in enumerate((10, 123_456))
    ]
    async with stand(shape, tmp_path) as there, ClientSession() as session:
        walk = Walk(there, random.Random(0), session)
        _, _, text = await walk.ask("GET", "/v1/processors/clicks")
        tasks = json.loads(text)["tasks"]
        assert [task["inputMessageCount"] for task in tasks] == [10, 123_456, None]
        assert (tasks[1]["lagMillis"], tasks[1]["stateSize"]) == (7, 9)
        assert "<td>123,456</td>" in (await walk.ask("GET", "/console/processors/clicks"))[2]


async def test_a_page_says_that_there_are_more_letters(tmp_path: Path) -> None:
    """It shows a hundred of those that were read, of all codes or of the one that is chosen."""
    shape = one()
    others = [json.dumps({"errInfo": {"code": "Other", "reason": "x"}, "dlqTime": "2020"}).encode()] * 7
    shape.letters["refused"] = [*others, *(letter("clicks", number) for number in range(150))]
    async with stand(shape, tmp_path) as there, ClientSession() as session:
        walk, path = Walk(there, random.Random(0), session), "/console/processors/clicks/dead-letters"
        for query, words in (
            ("", "100 of the last 157"),
            ("?code=DocumentLate", "100 of the last 150"),
            ("?code=Other", ""),
        ):
            _, _, text = await walk.ask("GET", path + query)
            assert (words in text) if words else ("of the last" not in text)
