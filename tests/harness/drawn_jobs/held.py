"""Targets that take nothing for a while: commits go on, and what is staged for them waits.

Databases are locked, the way to MongoDB is closed. A folder takes files at any time: there it is seen that some are staged.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import sql

from tests.harness.drawn_jobs.job import Job

HELD: Final = ("sqlite", "postgresql", "mongodb")
"""Targets that can be made to wait; the others of `drawing.FOCUSES["staged"]` are files."""
_LOCK_S: Final = 30.0
_LOOKS_S: Final = 0.001
"""Between two looks at a folder: what is staged there is released within some ten milliseconds."""


@contextmanager
def held(job: Job) -> Iterator[None]:
    """No row comes into the job's target, one of `HELD`."""
    match job.target:
        case "postgresql":
            with psycopg.connect(job.places.postgresql) as server:
                server.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier(job.table)))
                yield
                server.rollback()
        case "sqlite":
            connection = sqlite3.connect(job.database, timeout=_LOCK_S, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield
                connection.execute("ROLLBACK")
            finally:
                connection.close()
        case _:
            assert job.places.way is not None
            with job.places.way.held():
                yield


def staged_files(job: Job) -> int:
    """Of a file sink: those that no release has given their names."""
    return sum(path.is_file() for path in (job.folder / job.name / "_staged").rglob("*"))


def until_staged(jobs: list[Job], ended: threading.Event) -> None:
    """Until one of these jobs of files has some staged, or ended is set."""
    while not any(map(staged_files, jobs)) and not ended.wait(_LOOKS_S):
        pass
