"""Settings of audits and redrives (TIDEMARK_AUDIT, JSON)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.shared.model.settings import check_positive, knob
from tidemark.shared.process.settings import read_table, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """The settings of one audit or redrive."""

    held_bytes_max: int = knob(4 * 1024 * 1024 * 1024)
    """Records of one topic that are held to compare them; beyond it the command ends and says so."""
    piece_records: int = 200_000
    """Records that are computed again at once; a job with more is audited in pieces, each of which goes on where the one before it ended.
    A record of 40 bytes takes about 1 KB with what comes out of it (measured: 1.5 million take 0.5 GB in pieces, and 1.6 GB as a whole)."""
    outage_ms_max: int = knob(30_000)
    """How long one reading waits out outages of the broker."""

    def __post_init__(self) -> None:
        """Raise ValueError for values that cannot work."""
        check_positive(self, "")


def audit_settings(environment: Mapping[str, str] | None = None) -> AuditSettings:
    """The settings of this process. ProcessSettingsError names the setting, the expected and the found value."""
    env = os.environ if environment is None else environment
    return settings_of(read_table(env, "AUDIT"), AuditSettings, "TIDEMARK_AUDIT")
