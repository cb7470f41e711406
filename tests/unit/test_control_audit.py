"""Who may ask control, and what is kept of what they did."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from tidemark.services.control.audit import Audit
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.process.settings import ProcessSettingsError
from tidemark.shared.process.users import Users


def test_a_deed_is_a_line_of_the_log_and_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown by REST is of one process; these last."""
    told: list[tuple[Any, ...]] = []
    log = CapturingLogger()
    monkeypatch.setattr("tidemark.services.control.audit._log", log)
    audit = Audit(SystemClock(), lambda *given, **facts: told.append((given[0], given[2], facts)))
    audit.note("ada", "operator", "POST /v1/processors/p/start", "p", status=200)
    facts = {"user": "ada", "role": "operator", "what": "POST /v1/processors/p/start", "status": 200}
    assert [(call.method_name, call.args, call.kwargs) for call in log.calls] == [
        ("info", ("control.audit",), {"processor": "p", **facts})
    ]
    assert told == [("audit", "p", facts)]


def test_a_file_of_users_that_cannot_be_read_ends_the_start_and_shows_no_token(tmp_path: Path) -> None:
    """The line is named; what stands there may be a token."""
    (tmp_path / "users").write_text("# ours\nada viewer a-token-of-ada\n")
    with pytest.raises(ProcessSettingsError, match="line 2: expected NAME") as raised:
        Users("a-token-of-the-service", str(tmp_path / "users"))
    assert "a-token-of-ada" not in str(raised.value)
    with pytest.raises(ProcessSettingsError, match="expected a file of users"):
        Users("a-token-of-the-service", str(tmp_path / "none"))
