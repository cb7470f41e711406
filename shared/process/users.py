"""The users of a service that listens. Its own token is an admin's; a file names others, each with a role and their token's digest.

A line is `NAME ROLE DIGEST`, the SHA-256 of the token in hexadecimal (`printf %s TOKEN | sha256sum`): a reader of the file has no token. It
is read again when it has changed; if it cannot be read then, the known users stay and the log names it.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import structlog

from tidemark.shared.process.settings import ProcessSettingsError

_log = structlog.get_logger()
Role: TypeAlias = Literal["viewer", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""Each role may do all that those before it may, and more."""
OWN: Final = "installation"
"""The user's name for the service's own token."""
_LINE: Final = re.compile(r"(\S{1,128}) +(viewer|operator|admin) +([0-9a-f]{64})")
_FILE_BYTES_MAX: Final = 1 << 20
"""Some ten thousand users: the file is small, or none of ours."""


@dataclass(frozen=True, slots=True)
class User:
    """A user, by name and role."""

    name: str
    role: Role

    def may(self, least: Role) -> bool:
        """Whether the role is this one or above."""
        return ROLES.index(self.role) >= ROLES.index(least)


class Users:
    """All users."""

    def __init__(self, token: str, file: str = "") -> None:
        """`token`: the service's own. `file`: of the others; "": there are none. ProcessSettingsError."""
        self._own = {_digest(token.encode()): User(OWN, "admin")}
        self._file = Path(file) if file else None
        self._read_at: tuple[int, ...] = ()
        self._others: Mapping[str, User] = {}
        if self._file is not None:
            try:
                self._read(self._file)
            except OSError as error:
                raise ProcessSettingsError(f"{file}: expected a file of users ({error})") from error

    def of(self, secret: bytes) -> User | None:
        """The user of this token."""
        self._look()
        given = _digest(secret)
        found = None
        for digest, user in (*self._own.items(), *self._others.items()):
            if hmac.compare_digest(digest, given):
                found = found or user
        return found

    def _look(self) -> None:
        if self._file is None:
            return
        try:
            self._read(self._file)
        except (OSError, ProcessSettingsError) as error:
            _log.error("users.unreadable", reason=str(error), kept=len(self._others))

    def _read(self, file: Path) -> None:
        stat = file.stat()
        at = stat.st_mtime_ns, stat.st_size, stat.st_ino
        if at == self._read_at:
            return
        self._read_at = at
        if stat.st_size > _FILE_BYTES_MAX:
            raise ProcessSettingsError(f"{file}: expected at most {_FILE_BYTES_MAX} bytes, found {stat.st_size}")
        found: dict[str, User] = {}
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None:
                expected = f"NAME, one of {', '.join(ROLES)}, and the SHA-256 of a token in hexadecimal"
                raise ProcessSettingsError(
                    f"{file}, line {number}: expected {expected}"
                )  # the value found may be a token
            name, role, digest = match.groups()
            found[digest] = User(name, role)  # type: ignore[arg-type]
        self._others = found


def _digest(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()
