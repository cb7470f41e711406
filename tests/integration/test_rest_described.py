"""REST by its own description, with requests drawn from it (`make fuzz` draws thousands of them)."""

import pytest

from tests.harness import rest

pytestmark = pytest.mark.slow


def test_rest_answers_as_it_is_described() -> None:
    """Of each operation, by each role and by nobody, requests that fit and that do not: no fault, no answer that is not described."""
    with rest.served() as url:
        assert rest.Asked(url).run(240, 0) == []
