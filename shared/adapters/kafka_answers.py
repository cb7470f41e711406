"""What brokers refuse, or leave without an answer, and the library tries again without a word: told when the time is up.

Else all that is known of a partition whose replicas are not in sync, or of a leader that nobody reaches, is that it took too long.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

from aiokafka import errors

_SHOWN_MAX: Final = 3
"""Refusals that are named; others are like them."""
_REMEDIES: Final[dict[type[BaseException], str]] = {
    errors.NotEnoughReplicasError: "fewer replicas are in sync than min.insync.replicas of the topic: bring brokers back, or lower it",
    errors.NotEnoughReplicasAfterAppendError: "as NotEnoughReplicas: bring brokers back",
    errors.ConcurrentTransactions: (
        "an earlier transaction of this identity has not ended everywhere: a partition that it wrote to has no leader, or fewer replicas in"
        " sync than its min.insync.replicas: bring brokers back, or lower it"
    ),
    errors.CoordinatorNotAvailableError: "the brokers' own topics have no leader, or too few replicas in sync: bring brokers back",
}


class Answers:
    """Of one client, by what was asked; an answer without an error takes the refusal before it back."""

    def __init__(self, client: Any) -> None:
        self._refused: dict[tuple[str, str], tuple[float, float, str]] = {}
        """By the kind of request and the place: when it was refused first and last, and the words."""
        original = client.send

        async def send(node: Any, request: Any, **named: Any) -> Any:
            place = "", f"broker {_address(client, node)}"
            try:
                answer = await original(node, request, **named)
            except (errors.KafkaError, OSError, TimeoutError) as error:
                self._note(place, str(error) or type(error).__name__)
                raise
            self._refused.pop(place, None)
            for where, code in _codes(answer):
                self._take(type(request).__name__, where, code)
            return answer

        client.send = send

    def _take(self, kind: str, where: str, code: int) -> None:
        if not code:
            self._refused.pop((kind, where), None)
            return
        error = errors.for_code(code)
        remedy = next((f" ({words})" for known, words in _REMEDIES.items() if issubclass(error, known)), "")
        self._note((kind, where), f"{error.__name__}{remedy}")

    def _note(self, place: tuple[str, str], words: str) -> None:
        now = time.monotonic()
        first, *_ = self._refused.get(place, (now, now, ""))
        self._refused[place] = first, now, words

    def refused_s(self) -> float:
        """For how long the same is refused, without an answer to it that was good; 0 where nothing is. A broker may be away for good."""
        firsts = [first for (kind, _), (first, *_) in self._refused.items() if kind]
        return time.monotonic() - min(firsts) if firsts else 0.0

    def said(self, within_s: float) -> str:
        """The refusals of the last so many seconds, the latest first, as a part of a sentence; nothing where there are none."""
        since = time.monotonic() - within_s
        late = sorted(((last, *place, words) for place, (_, last, words) in self._refused.items()), reverse=True)
        shown = [f"{where or kind}: {words}" for last, kind, where, words in late if last >= since]
        return f"; last answers: {', '.join(shown[:_SHOWN_MAX])}" if shown else ""


def _address(client: Any, node: Any) -> str:
    found = client.cluster.broker_metadata(node)
    return f"{found.host}:{found.port}" if found else str(node)


def _codes(answer: Any) -> Iterator[tuple[str, int]]:
    """Places and codes in an answer that has some."""
    parts = (
        getattr(answer, "topics", None)
        if type(answer).__name__.startswith("Produce")
        else getattr(answer, "errors", None)
    )
    if parts is not None:
        for topic, found in parts:
            for number, code, *_ in found:
                yield f"topic {topic} partition {number}", code
    elif isinstance(code := getattr(answer, "error_code", None), int):
        yield "", code
