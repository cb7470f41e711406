"""Seeds run without logs and on one thread."""

from collections.abc import Iterator

import pytest

from tests.harness.simulation.story import quiet


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    with quiet():
        yield
