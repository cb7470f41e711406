"""Settings of the operator service (TIDEMARK_EXTRA, JSON). Settings that decide results stand in a document's `options.limits`."""

from dataclasses import dataclass

from tidemark.shared.model.settings import check_positive, knob
from tidemark.shared.process.settings import ProcessSettings, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """The settings of one process of the service."""

    scratch: str = knob("")
    """A folder for keyed state beyond memory; "": the system's for temporary files."""
    beside_rows: int = 1_000
    """Batches of so many rows are worked on beside the loop, whichever the stage."""
    close_wait_ms: int = 5_000
    """How long a task that is stopped waits for the call that is being worked on."""
    apart: bool = knob(True)
    """Each computation of each task runs in a process of its own; false: in the worker's, until one of the task's has ended it."""
    memory_bytes_max: int = knob(4 << 30)
    """The memory for data that such a process may take (RLIMIT_DATA), bytes."""
    build_ms_max: int = 45_000
    """How long loading a computation's class may take there."""
    call_ms_max: int = knob(600_000)
    """How long one batch, watermark or snapshot may take there."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that cannot work."""
        check_positive(self, "operator")


def operator_settings(settings: ProcessSettings) -> OperatorSettings:
    """From the process' settings. ProcessSettingsError."""
    return settings_of(settings.extra, OperatorSettings, "TIDEMARK_EXTRA", others=True)
