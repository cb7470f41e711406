"""Warnings that repeat are held back and counted."""

from typing import Any

import structlog

from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.process.logged import Repeats


def test_of_a_repeated_warning_one_passes_an_interval_and_counts_the_others() -> None:
    """Other facts are another warning; errors and news always pass; where kinds are too many nothing is forgotten uncounted."""

    async def main(world: VirtualWorld) -> None:
        repeats = Repeats(world.clock, interval_ms=10_000, kinds_max=3)

        def say(method: str = "warning", **facts: Any) -> dict[str, Any] | None:
            try:
                return dict(repeats(None, method, {"event": "log_away", **facts}))
            except structlog.DropEvent:
                return None

        away = {"event": "log_away", "topic": "a"}
        assert say(topic="a") == away
        assert [say(topic="a") for _ in range(5)] == [None] * 5
        assert say(topic="b") == away | {"topic": "b"}
        assert [say("error", topic="a"), say("info", topic="a")] == [away, away]
        await world.clock.sleep_ms(10_500)
        assert say(topic="a") == away | {"held": 5}
        assert [say(topic="a"), say(topic="b")] == [None, away | {"topic": "b"}]
        assert say(topic="c") == away | {"topic": "c"}
        assert say(topic="d") == away | {"topic": "d", "held": 1}, (
            "beyond its kinds it begins anew, with what it had held"
        )
        assert say(topic="a") == away

    run_virtual(main)
