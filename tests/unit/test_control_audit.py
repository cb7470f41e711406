"""Who may ask control, and what is kept of what they did."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import CapturingLogger

from tidemark.services.control.audit import Audit
from tidemark.services.control.events import Events
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.process.settings import ProcessSettingsError
from tidemark.shared.process.users import Users
from tidemark.shared.runtime.topics import Topics


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


def test_a_deed_is_small_whatever_was_asked_for() -> None:
    """A body's texts come back in findings: neither the list of deeds nor an event takes them whole, for an event must fit in a record."""
    told: list[dict[str, Any]] = []
    audit = Audit(SystemClock(), lambda *given, **facts: told.append({"processor": given[2], **facts}))
    long = "x" * 900_000
    audit.note("ada", "viewer", f"POST /{long}", long, status=404, finding=long, request=long)
    for deed in (*audit.deeds, *told):
        assert sum(len(str(value)) for value in deed.values()) < 10_000


def test_a_deed_whose_texts_are_no_text_is_noted() -> None:
    """Bytes of a header or a path that are no UTF-8 are shown escaped: an event is UTF-8, and a deed without one would be lost."""
    events = Events(MemoryLog(MemoryBroker(SystemClock())), Topics(), SystemClock(), ControlSettings())
    audit, odd = Audit(SystemClock(), events.tell), "a\udcffb"
    audit.note(odd, odd, odd, odd, status=500, finding=odd, address=odd, request=odd)
    [(key, event)] = events._waiting
    assert key == "a\\udcffb"
    told = msgspec.json.decode(event)
    texts = {name: told[name] for name in ("user", "role", "what", "processor", "finding", "address", "request")}
    assert set(texts.values()) == {key}
    assert texts.items() <= audit.deeds[0].items()


def test_rights_are_read_as_they_are_shown(tmp_path: Path) -> None:
    """A role alone is for everything; with namespaces for these; odd rights and names kept for others end the start."""
    digest = sha256(b"t").hexdigest()
    for rights in ("viewer", "operator@a", "admin@a,b-1", "viewer+operator@a", "viewer@b+admin@a"):
        (tmp_path / "users").write_text(f"ada {rights} {digest}\n")
        user = Users("own", str(tmp_path / "users")).of(b"t")
        assert user is not None
        assert (user.name, user.role, user.bound) == ("ada", rights, rights not in ("viewer", "viewer+operator@a"))
    odd = (
        "root",
        "viewer@",
        "viewer@a,",
        "viewer@a.b",
        "viewer@*",
        "viewer+",
        "+viewer",
        "viewer@a b",
        "viewer@é",
        "admin@a@b",
    )
    for line in (*(f"ada {rights} {digest}" for rights in odd), f"oidc:ada viewer {digest}"):
        (tmp_path / "users").write_text(f"{line}\n")
        with pytest.raises(ProcessSettingsError, match="line 1: expected"):
            Users("own", str(tmp_path / "users"))
