"""The parts of the local broker that need no broker: its Java, its jars, what it says when it fails."""

from __future__ import annotations

import base64
import hashlib
import itertools
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidemark.services.local.broker import _failure, new_id
from tidemark.services.local.broker_settings import BrokerSettings, Port, java_arguments, server_properties
from tidemark.services.local.jars import JarsError, LockedJar, ensure_jars, read_lock
from tidemark.services.local.java import JAVA_MAJOR_MIN, JavaError, find_java, parse_major
from tidemark.shared.computation.folder import import_path


@pytest.mark.parametrize(
    ("told", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "24-ea" 2025-03-18', 24),
        ("bash: java: no such thing", None),
    ],
)
def test_the_major_version_is_read_from_all_that_java_prints(told: str, major: int | None) -> None:
    """Old and new version schemes, early access, and nonsense."""
    assert parse_major(told) == major


def test_a_missing_java_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any Java the error names what is missing and the remedy."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match=r"Java is missing: .*install Java 17"):
        find_java()


def test_an_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Java below 17 is named with its version before anything is started with it."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=r"is Java 11, Kafka and Spark need 17; install"):
        find_java()


def test_java_is_found_by_a_process_whose_folder_was_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A JVM does not begin there, and the remedy was a Java that is there; nor has what is imported from there another place."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", ["", "/elsewhere"])
    folder.rmdir()
    assert find_java().major >= JAVA_MAJOR_MIN
    assert import_path() == "/elsewhere"


def test_the_lock_holds_digests_and_no_address() -> None:
    """Every jar has its digest; Kafka itself and a place for its log lines are among them."""
    jars = read_lock()
    assert {"kafka_2.13", "log4j-slf4j-impl"} <= {jar.artifact for jar in jars}
    assert len({jar.sha256 for jar in jars}) == len(jars)


def test_a_broken_lock_is_named_by_line(tmp_path: Path) -> None:
    """The error has the file, the line, what was expected and how to write it anew."""
    lock = tmp_path / "jars.lock"
    lock.write_text("# head\norg.apache:thing:1.0 md5:abc\n")
    with pytest.raises(JarsError, match=r"jars\.lock:2: expected .*--relock"):
        read_lock(lock)


def test_a_jar_that_differs_from_its_digest_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with other bytes is thrown away and fetched again; if that does not help, it is an error."""
    jar = LockedJar("org.example", "thing", "1.0", read_lock()[0].sha256)
    lock = tmp_path / "jars.lock"
    lock.write_text(f"{jar.coordinate} sha256:{jar.sha256}\n")
    path = tmp_path / "repository" / "org" / "example" / "thing" / "1.0" / "thing-1.0.jar"
    fetched: list[Path] = []

    def fetch(*_: object) -> None:
        fetched.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"something else")

    monkeypatch.setattr("tidemark.services.local.jars._fetch", fetch)
    with pytest.raises(JarsError, match=r"org\.example:thing:1\.0: expected SHA-256 .* thrown away"):
        ensure_jars(tmp_path, lock)
    assert len(fetched) > 1
    assert not path.exists()


def test_nothing_removes_a_record_by_time_or_size(tmp_path: Path) -> None:
    """The log is kept until the product deletes it, topics are never made by accident, one replica is enough."""
    properties = server_properties(BrokerSettings(data_dir=tmp_path), Port(1), Port(2))
    assert properties["log.retention.ms"] == properties["log.retention.bytes"] == "-1"
    assert properties["auto.create.topics.enable"] == "false"
    assert properties["transaction.state.log.min.isr"] == "1"


def test_the_heap_is_bounded_by_the_setting(tmp_path: Path) -> None:
    """``heap_mib_max`` reaches the JVM."""
    settings = BrokerSettings(data_dir=tmp_path, heap_mib_max=300)
    assert "-Xmx300m" in java_arguments(settings, Path("java"), [], "Main")


@pytest.mark.parametrize("first", range(256))
def test_no_cluster_id_looks_like_an_option(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Whatever is drawn, the id is 16 bytes to Kafka and begins with a letter."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=bytes([first, *range(15)])))
    drawn = new_id()
    assert drawn[0].isalpha()
    assert len(base64.urlsafe_b64decode(drawn + "==")) == 16


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("java.io.IOException: No space left on device", "the disk is full; free some space"),
        ("java.net.BindException: Address already in use", "stop what holds it"),
        ("java.lang.OutOfMemoryError: Java heap space", "raise heap_mib_max"),
        ("kafka-storage: error: strange", "Its last words: kafka-storage: error: strange"),
        ("2026-01-01 ERROR KafkaServer: strange", "Its last words: 2026-01-01 ERROR KafkaServer: strange"),
    ],
)
def test_a_failed_start_says_what_to_do(tmp_path: Path, said: str, remedy: str) -> None:
    """What the broker logged last becomes a reason with a remedy, or is quoted."""
    settings = BrokerSettings(data_dir=tmp_path)
    settings.diagnostics_dir.mkdir()
    (settings.diagnostics_dir / "broker.log").write_text(f"2026-01-01 INFO fine\n{said}\n")
    assert remedy in _failure(settings, "it ended")


def test_jars_that_two_fetch_at_once_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first: it neither takes a half-written file for an altered one, nor deletes it."""
    lock, cache, second = tmp_path / "jars.lock", tmp_path / "cache", threading.Event()
    jar = cache / "repository" / "g" / "a" / "1" / "a-1.jar"
    lock.write_text(f"g:a:1 sha256:{hashlib.sha256(b'whole').hexdigest()}\n")
    fetching = itertools.count()

    def fetch(*_: object) -> None:
        if next(fetching):
            second.set()
        jar.parent.mkdir(parents=True, exist_ok=True)
        with jar.open("wb", buffering=0) as file:
            file.write(b"wh")
            second.wait(0.5)
            file.write(b"ole")

    monkeypatch.setattr("tidemark.services.local.jars._fetch", fetch)
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(ensure_jars, cache, lock) for _ in range(2)]
        assert [each.result(30) for each in found] == [(jar,), (jar,)]
    assert next(fetching) == 1
