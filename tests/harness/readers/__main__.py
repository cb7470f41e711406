"""`python -m tests.harness.readers [SEED] [COUNT] [FORM]`: see the package."""

import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final, cast

import structlog

from tests.harness.readers.drawing import FORMS, drawn
from tests.harness.readers.environment import made, others, own
from tests.harness.readers.running import Reading, asked, written_in
from tests.harness.readers.watched import Watch
from tidemark.shared.language.stages import EmitFormat

KILLS: Final = 4
"""Of a sink's process."""


def say(text: str) -> None:
    """At once, beside what others print."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def watched(seed: int, form: EmitFormat, readings: list[Reading]) -> list[str]:
    """Readers that found something wrong while a sink committed and was killed."""
    wrong: list[str] = []
    for reading in readings:
        with tempfile.TemporaryDirectory(prefix="readers-") as folder:
            watch = Watch(seed, form, Path(folder))
            watch.run(reading, asked(watch.written, [name for name in reading.names if "spark" not in name]), KILLS)
        say(
            f"{form}: {sum(watch.reads.values())} reads while the sink committed, {KILLS} kills: {len(watch.wrong)} wrong"
        )
        for each in watch.wrong[:12]:
            say(f"  {each}")
        wrong += watch.wrong
    return [each.partition(": ")[0] for each in wrong]


def main(words: list[str]) -> int:
    """1 if a reader found what no document has, or a row twice, or not."""
    first, count = int(words[0]), int(words[1])
    if words[2:] and words[2] not in FORMS:
        say(f"no such form: {words[2]}; there are {', '.join(FORMS)}")
        return 2
    form = cast("EmitFormat | None", words[2] if words[2:] else None)
    readings = [Reading(sys.executable, own()), Reading(made(), others())]
    right, excuses, wrong = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
    try:
        for seed in range(first, first + count):
            with tempfile.TemporaryDirectory(prefix="readers-") as folder:
                story = drawn(seed, form)
                written = written_in(story, Path(folder))
                found = [each for reading in readings for each in reading.findings(written, right)]
            excuses.update((each.reader, each.excuse) for each in found if each.excuse)
            left = [each for each in found if not each.excuse]
            wrong.update({each.reader for each in left})
            shown = {(each.reader, each.name): each for each in left}
            what = f"{len(left)} wrong" if left else "right"
            say(f"{seed}: {story.traits}: {len(written.released)} rows, {len(written.refused)} dead letters: {what}")
            for each in list(shown.values())[:12]:
                say(f"  {each}")
        for number, each_form in enumerate(FORMS if form is None else (form,)):
            wrong.update(watched(first + number, each_form, readings))
    finally:
        for reading in readings:
            reading.close()
    for reader, times in sorted(right.items()):
        say(f"{reader}: {times} tables or folders, {wrong[reader]} of them wrong")
    for (reader, why), times in sorted(excuses.items()):
        say(f"{reader}: cannot carry {times}: {why}")
    say(f"{sum(wrong.values())} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    sys.exit(main(sys.argv[1:] + ["1", "20"][len(sys.argv) - 1 :]))
