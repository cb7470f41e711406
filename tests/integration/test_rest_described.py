"""REST by its own description, and requests that are none: a few of those that `make fuzz` draws by the thousand."""

from collections.abc import Iterator

import pytest

from tests.harness import raw_http, rest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    with rest.served() as found:
        yield found


def test_rest_answers_as_it_is_described(urls: tuple[str, str]) -> None:
    """Of each operation, by each role and by nobody, requests that fit and that do not: no fault, no answer that is not described."""
    assert rest.Asked(urls[0]).run(240, 0) == []


def test_requests_that_are_none_are_refused(urls: tuple[str, str]) -> None:
    """Damaged bytes to control and gateway: a status below 500, or nothing; then both answer as before."""
    found, statuses = raw_http.run(list(urls), 300, 0)
    assert found == []
    assert len(statuses) > 3


def test_an_expectation_that_is_none_is_named(urls: tuple[str, str]) -> None:
    """The header Expect, with bytes beyond ASCII too: 417 from the service, and no fault of its library."""
    for url in urls:
        for expected in (b"10\xdf0-continue", b"\xff", b"200-ok"):
            answer = raw_http.asked(url, b"GET /healthz HTTP/1.1\r\nHost: a\r\nExpect: " + expected + b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 417 "), answer
