"""Settings of the commands themselves (TIDEMARK_CLI, JSON): a command is a process, and here it reads its environment."""

import os
from dataclasses import dataclass

from tidemark.shared.model.settings import check_positive, knob
from tidemark.shared.process.settings import read_table, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CliSettings:
    """The settings of one command."""

    collected_rows_max: int = knob(10_000_000)
    """Documents and dead letters that a try-out collects; beyond it the try-out fails and says so."""
    ready_ms_max: int = knob(300_000)
    """How long a command waits for an installation to be ready."""
    logins_file: str = knob("")
    """Where `tidemark login` keeps its tokens; "": in the folder of the user's settings."""
    request_timeout_ms: int = knob(60_000)
    """How long a command waits for the control service's answer."""

    def __post_init__(self) -> None:
        """Raise ValueError for values that cannot work."""
        check_positive(self, "")


def cli_settings() -> CliSettings:
    """The settings of this command. ProcessSettingsError names the setting, the expected and the found value."""
    return settings_of(read_table(os.environ, "CLI"), CliSettings, "TIDEMARK_CLI")
