"""Settings of the source service (TIDEMARK_EXTRA, JSON). Settings that decide results stand in a document's `options.limits` instead."""

from dataclasses import dataclass

from tidemark.shared.model.settings import check_positive, knob
from tidemark.shared.process.settings import ProcessSettings, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Bounds of every source task of one process."""

    splits_max: int = knob(10_000)
    """Partitions that one Kafka source may have, over all tasks."""
    files_max: int = knob(100_000)
    """Files that one source may have."""
    file_poll_ms: int = 500
    """How long a source of files waits before it looks for new files and lines, at most."""
    answer_age_ms_max: int = 2_000
    """A broker's answer older than this says nothing about the end of a partition (W4); above the broker's fetch wait."""
    gather_ms_max: int = 500
    """How long records lie at the brokers, at most, before a source fetches them; it does when a checkpoint starts, too (C2)."""
    last_look_ms: int = 100
    """How long a source's checkpoint waits for what has come to the brokers by then."""
    noted_checkpoints_max: int = 16
    """Checkpoints under way of which a task knows the positions, for group offsets that lag tools read."""
    told_splits_max: int = 64
    """Splits of which a heartbeat says where they stand, those first that hold the watermark back."""
    beside_ms: int = 100
    """Records that take longer, going by those before, are worked on beside the loop: on a thread they cost an eighth more."""

    def __post_init__(self) -> None:
        """Raise ValueError for values that cannot work."""
        check_positive(self, "source")

    def check_answers(self, fetch_wait_ms: int, connection: str) -> None:
        """W4: an answer is still young when the next one comes. ValueError."""
        if self.answer_age_ms_max <= fetch_wait_ms:
            raise ValueError(
                f"source setting answer_age_ms_max={self.answer_age_ms_max} must be above fetch_wait_ms={fetch_wait_ms} of connection"
                f" {connection!r}: no silent partition would ever be seen to be at its end"
            )


def source_settings(settings: ProcessSettings) -> SourceSettings:
    """From the process' settings. ProcessSettingsError."""
    return settings_of(settings.extra, SourceSettings, "TIDEMARK_EXTRA", others=True)
