"""What can be set about the commands themselves (TIDEMARK_CLI, JSON): a command is a process, and here it reads its environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.shared.model.positive import check_positive
from tidemark.shared.process.settings import read_table, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CliSettings:
    """Of one command."""

    held_bytes_max: int = 4 * 1024 * 1024 * 1024
    """Records of one topic that an audit or a redrive holds to compare them; beyond it the command ends and says so."""
    collected_rows_max: int = 10_000_000
    """Documents and dead letters that a try-out collects; beyond it the try-out fails and says so."""
    fetch_records_max: int = 10_000
    """Records that one fetch of a topic that is read whole brings."""
    recomputed_rows: int = 20_000
    """Records that an audit takes through the operators at once."""
    redrive_batch_records: int = 500
    """Corrections that are handed to a transaction at once."""
    alerts_shown: int = 8
    """The last alerts of the demo, while it runs."""
    outage_ms_max: int = 30_000
    """How long one reading waits out outages of the broker."""
    retry_ms: int = 300
    """Wait before a broker that is away is asked again."""
    ready_ms_max: int = 300_000
    """For an installation to be ready."""
    request_timeout_ms: int = 60_000
    """For the control service's answer."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        check_positive(self, "")
        if self.retry_ms > self.outage_ms_max:
            raise ValueError(
                f"settings: retry_ms={self.retry_ms} must not be above outage_ms_max={self.outage_ms_max}: nothing would be tried again"
            )


def cli_settings(environment: Mapping[str, str] | None = None) -> CliSettings:
    """Of this command. ProcessSettingsError names the setting, what is expected and what was found."""
    env = os.environ if environment is None else environment
    return settings_of(read_table(env, "CLI"), CliSettings, "TIDEMARK_CLI")
