"""Activities that may wait for what lies outside, told while they do (C10): with the reason, or by having no end for long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TypeAlias

from msgspec import structs

from tidemark.shared.model.held import Wait, WaitKind
from tidemark.shared.ports.clock import Clock

Tell: TypeAlias = Callable[[str, Wait | None], None]
"""Takes the wait of an activity, by name; None when the activity goes on."""


def unheard(_activity: str, _wait: Wait | None) -> None:
    """Of who has nobody to tell."""


LONG_MS: Final = 10_000
"""An activity that has told no reason is told of after so long: it may be a server that never answers. As long as work that waits makes a
system slow."""


@contextmanager
def waiting(tell: Tell, clock: Clock, activity: str, doing: str, on: str) -> Iterator[Callable[..., None]]:
    """Within, the activity is under way; what is yielded tells why its last try failed, and which side did not answer."""
    since_ms = clock.now_ms()

    def failed(why: object, kind: WaitKind = "target") -> None:
        tell(activity, Wait(kind, doing, on, since_ms, str(why)))

    failed("")
    try:
        yield failed
    finally:
        tell(activity, None)


class Waits:
    """Of one task, by the activity that waits. How long is measured by the monotonic clock: the wall clock may be set meanwhile."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, Wait]] = {}

    def note(self, activity: str, wait: Wait | None, monotonic_ms: int) -> None:
        """What an activity waits for; None when it goes on."""
        if wait is None:
            self._found.pop(activity, None)
        else:
            began_ms, _ = self._found.get(activity, (monotonic_ms, wait))
            self._found[activity] = began_ms, wait

    def told(self, monotonic_ms: int) -> list[Wait]:
        """Those that users are told of, the longest first: with a reason, or without an end for long."""
        found = sorted(self._found.values(), key=lambda each: each[0])
        return [_named(wait) for began_ms, wait in found if wait.reason or monotonic_ms - began_ms >= LONG_MS]


def _named(wait: Wait) -> Wait:
    if wait.reason:
        return wait
    since = datetime.fromtimestamp(wait.since_ms / 1000, UTC)
    return structs.replace(wait, reason=f"{wait.on}: no answer, or a slow one, since {since:%H:%M:%S} UTC")
