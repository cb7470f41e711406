"""The users of a service that listens. Its own token is an admin's; a file names others, each with rights and their token's digest.

A line is `NAME RIGHTS DIGEST`, the SHA-256 of the token in hexadecimal (`printf %s TOKEN | sha256sum`): a reader of the file has no token.
The file is read again when it has changed; if it cannot be read then, the known users stay and the log names it.

Its own token comes from a file that is its owner's alone, or from the environment.

Rights are a role, for everything, or `ROLE@NAMESPACE,NAMESPACE`, for what is in these namespaces alone; several are joined by `+`.
"""

import hashlib
import hmac
import math
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import structlog

from tidemark.shared.model.ids import namespace_of
from tidemark.shared.process.settings import ProcessSettingsError

_log = structlog.get_logger()
Role: TypeAlias = Literal["viewer", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""Each role may do all that those before it may, and more."""
OWN: Final = "installation"
"""The user's name for the service's own token."""
SIGNED: Final = "oidc:"
"""How names of users begin that an OpenID provider vouches for: no line of a file can take one."""
_NAMESPACE: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,126}"
_GRANT: Final = re.compile(rf"(viewer|operator|admin)(?:@({_NAMESPACE}(?:,{_NAMESPACE})*))?")
_LINE: Final = re.compile(r"(\S{1,128}) +(\S+) +([0-9a-f]{64})")
_FILE_BYTES_MAX: Final = 1 << 20
"""Some ten thousand users: the file is small, or none of ours."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A role, in these namespaces or, with None, everywhere."""

    role: Role
    namespaces: frozenset[str] | None = None

    def __str__(self) -> str:
        """The grant as a file of users writes it."""
        return self.role if self.namespaces is None else f"{self.role}@{','.join(sorted(self.namespaces))}"


def read_rights(text: str) -> tuple[Grant, ...]:
    """`viewer`, `operator@a,b` or several, joined by `+`. ValueError, without the text: it may be a token in the wrong place."""
    found = []
    for part in text.split("+"):
        match = _GRANT.fullmatch(part)
        if match is None:
            raise ValueError(f"one of {', '.join(ROLES)}, alone or as ROLE@NAMESPACE,NAMESPACE; several joined by +")
        namespaces = None if match[2] is None else frozenset(match[2].split(","))
        found.append(Grant(match[1], namespaces))  # type: ignore[arg-type]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class User:
    """A user, by name and rights."""

    name: str
    rights: tuple[Grant, ...]
    until_ms: float = field(default=math.inf, compare=False)
    """Until when the token counts, by the wall clock."""

    @property
    def role(self) -> str:
        """The rights, as a file of users has them."""
        return "+".join(map(str, self.rights))

    @property
    def bound(self) -> bool:
        """Whether there is no right but to namespaces."""
        return all(grant.namespaces is not None for grant in self.rights)

    def may(self, least: Role, name: str | None = None) -> bool:
        """Whether the role is this one or above: for the processor or connection `name`; with None, for any."""
        return any(
            ROLES.index(grant.role) >= ROLES.index(least)
            and (name is None or grant.namespaces is None or namespace_of(name) in grant.namespaces)
            for grant in self.rights
        )

    def sees(self, name: str) -> bool:
        """Whether there is such a processor for the user."""
        return self.may("viewer", name)

    def sees_connection(self, name: str) -> bool:
        """Whether there is such a connection for the user: those without a namespace are for everybody."""
        return not namespace_of(name) or self.sees(name)


ADMIN: Final = User(OWN, (Grant("admin"),))
"""The user with the service's own token."""


class Users:
    """The users that an installation knows."""

    def __init__(self, token: str, file: str = "") -> None:
        """`token`: the service's own. `file`: of the others; "": there are none. ProcessSettingsError."""
        self._own = {_digest(token.encode()): ADMIN}
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
            if match is None or match[1].startswith(SIGNED):  # the value found may be a token
                expected = f"NAME, not beginning with {SIGNED!r}, RIGHTS, and the SHA-256 of a token in hexadecimal"
                raise ProcessSettingsError(f"{file}, line {number}: expected {expected}")
            try:
                found[match[3]] = User(match[1], read_rights(match[2]))
            except ValueError as error:
                raise ProcessSettingsError(f"{file}, line {number}: expected as RIGHTS {error}") from None
        self._others = found


def _digest(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


TOKEN_CHARACTERS_MIN = 16


def read_token(token_file: str) -> str:
    """The token; one is made where its file is not there. ProcessSettingsError where there is none, or a short one."""
    if not token_file:
        token = os.environ.get("TIDEMARK_TOKEN", "")
        place = "TIDEMARK_TOKEN"
    else:
        path = Path(token_file)
        place = str(path)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            token = path.read_text().strip()
        else:
            token = secrets.token_urlsafe(32)
            with os.fdopen(handle, "w") as out:
                out.write(token + "\n")
    if len(token) < TOKEN_CHARACTERS_MIN:
        message = f"{place}: expected a token of at least {TOKEN_CHARACTERS_MIN} characters, found {len(token)}"
        raise ProcessSettingsError(message)
    return token
