"""Tidemark in programs that set whatever a program may set: the short form of `make hosts`."""

from pathlib import Path

import pytest

from tests.harness.host_settings import SETTINGS
from tests.harness.hosts import Host, Hosts, together
from tests.harness.share import CI

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_program_may_set_what_it_likes(tmp_path: Path) -> None:
    """All settings at once, and of those that exclude each other the first, then the last: results are those of a plain program."""
    hosts = Hosts(tmp_path, 1, runs=False, cases=8 if CI else 20)
    for place, order in (("a thread", list(SETTINGS)), ("a running loop", list(SETTINGS)[::-1])):
        assert hosts.run(Host(place=place, settings=together(order)), place) == ""
