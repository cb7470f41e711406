"""Users whose rights change while they ask: in the file of users, and at a provider at which they log in by command."""

import hashlib
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.harness.issuer import AUDIENCE
from tests.harness.operated.asking import RIGHTS, path_of, token_of
from tests.harness.provider import COMMAND, Provider

if TYPE_CHECKING:
    from tests.harness.operated.story import Story

ROLES: Final = ("viewer", "operator", "admin")
CHOICES: Final = (
    "viewer",
    "operator",
    "viewer@a",
    "operator@a",
    "admin@a",
    "admin@b",
    "operator@b",
    "viewer@a+operator@b",
    "viewer@a,b",
    "",
)
"""Rights that a user may have next; "": none, the user is not in the file. Nobody becomes admin of everything: such acts would be done."""
SHORT_S: Final = 30
"""Of a token at the provider: so each command gets itself a new one, with the rights of now."""


def may(rights: str, least: str, name: str) -> bool:
    """Whether these rights are this role or above, for a processor or connection of this name."""
    namespace = name.partition(".")[0] if "." in name else ""
    for part in filter(None, rights.split("+")):
        role, _, bound = part.partition("@")
        if ROLES.index(role) >= ROLES.index(least) and (not bound or namespace in bound.split(",")):
            return True
    return False


@dataclass(slots=True)
class People:
    """The users of one installation."""

    story: "Story"
    rng: random.Random
    rights: dict[str, str] = field(default_factory=lambda: dict(RIGHTS))
    provider: Provider | None = None

    @property
    def file(self) -> Path:
        """Of users."""
        return self.story.folder / "users"

    def settings(self) -> dict[str, Any]:
        """Of the control service."""
        assert self.provider is not None
        named = {
            "issuer": self.provider.url,
            "audience": AUDIENCE,
            "rights_claim": "rights",
            "device_client_id": COMMAND,
        }
        return {"users_file": str(self.file), "oidc": named}

    def write(self, more: str = "") -> None:
        """The file, whole at each moment: who reads it half would keep that beside a wrong line."""
        known = {user: rights for user, rights in self.rights.items() if rights}
        lines = [
            f"{user} {rights} {hashlib.sha256(token_of(user).encode()).hexdigest()}\n" for user, rights in known.items()
        ]
        fresh = self.file.with_name("users-next")
        fresh.write_text("".join(lines) + more)
        fresh.replace(self.file)

    def _wrong(self, what: str, outcome: str, *allowed: str) -> None:
        if outcome not in (*allowed, "away"):
            self.story.asker.fault(f"outcome: {what}: {outcome}, not {allowed}")

    # --- the file ---------------------------------------------------------------------------------------------------------

    async def change(self) -> None:
        """A user has other rights from the next request on; a file with a wrong line changes nothing."""
        user = self.rng.choice(sorted(self.rights))
        if self.rng.random() < 0.25:
            self.write("somebody owner nothing\n")
            await self._is_known(user)
            self.write()
        self.rights[user] = self.rng.choice(CHOICES)
        self.write()
        await self._is_known(user)

    async def _is_known(self, user: str) -> None:
        rights, found = self.rights[user], await self.story.asker.rest("GET", "/v1/user", token=token_of(user))
        self._wrong(f"{user} with rights {rights!r}", found.outcome, "done" if rights else "denied")
        if found.outcome == "done" and found.value != {"name": user, "role": rights}:
            self.story.asker.fault(f"rights: {user} is {found.value}, not {rights}")

    async def ask(self) -> None:
        """Each asks for what their rights do not give, and for what they do."""
        user, asker = self.rng.choice([*sorted(self.rights), "nobody"]), self.story.asker
        name, rights, token = self.rng.choice(self.story.walkers).flow.name, self.rights.get(user, ""), token_of(user)
        no = "denied" if may(rights, "viewer", name) or not rights else "absent"
        told = f"{user} ({rights}), {name}"
        found = await asker.rest("GET", path_of(name), token=token)
        self._wrong(f"look: {told}", found.outcome, *(["done", "absent"] if may(rights, "viewer", name) else [no]))
        if not may(rights, "operator", name):
            found = await asker.rest("POST", path_of(name, self.rng.choice(["start", "stop"])), {}, token=token)
            self._wrong(f"change: {told}", found.outcome, no)
        if not may(rights, "admin", name):
            found = await asker.rest("DELETE", path_of(name), token=token)
            self._wrong(f"drop: {told}", found.outcome, no)
        connection = "b.odd" if not may(rights, "admin", "b.odd") else "odd"
        found = await asker.rest("PUT", f"/v1/connections/{connection}", {"type": "nothing"}, token=token)
        self._wrong(f"connection {connection}: {told}", found.outcome, "denied", "absent")
        found = await asker.rest("GET", "/v1/processors", token=token)
        if found.outcome == "done":
            self._only(f"{told}", rights, found.value)

    def _only(self, told: str, rights: str, value: Any) -> None:
        if seen := [each["name"] for each in value["processors"] if not may(rights, "viewer", each["name"])]:
            self.story.asker.fault(f"namespace: {told} sees {seen}")

    # --- the provider -----------------------------------------------------------------------------------------------------

    async def log_in(self) -> None:
        """By command, with rights that change at the provider while the login lasts; then they log out."""
        asker, provider, kept = self.story.asker, self.provider, self.story.folder / "settings" / "logins.json"
        assert provider is not None
        try:
            address, _ = asker.address()
        except (OSError, ValueError):
            return  # the service begins
        here = {"TIDEMARK_CONTROL": address, "TIDEMARK_CLI": json.dumps({"logins_file": str(kept)})}
        provider.life_s, provider.changed = SHORT_S, {"rights": self.rng.choice(CHOICES[:-1]), "sub": "ada"}
        provider.device_answers = self.rng.choice([(), ("authorization_pending",), ("access_denied",)])
        denied = "access_denied" in provider.device_answers
        found = await asker.cli("login", environment=here)
        self._wrong(f"login, refused={denied}", found.outcome, "refused" if denied else "done")
        if found.outcome != "done":
            await self._logged_out(here)
            return
        for _ in range(2):
            rights, name = str(provider.changed["rights"]), self.rng.choice(self.story.walkers).flow.name
            if rights not in found.value and found.value.startswith("oidc:"):
                asker.fault(f"login: {found.value!r}, not {rights}")
            listed = await asker.cli("processors", "--json", environment=here)
            self._wrong("processors of who logged in", listed.outcome, "done")
            if listed.outcome == "done":
                self._only(f"ada ({rights})", rights, listed.value)
            if not may(rights, "operator", name):
                refused = await asker.cli(self.rng.choice(["start", "stop"]), name, environment=here)
                self._wrong(f"ada ({rights}) changes {name}", refused.outcome, "absent", "refused")
            provider.changed = {**provider.changed, "rights": self.rng.choice(CHOICES[:-1])}
            found = (
                await asker.cli("login", environment=here)
                if self.rng.random() < 0.3
                else found.__class__("done", "", "")
            )
        self._wrong("logout", (await asker.cli("logout", environment=here)).outcome, "done")
        await self._logged_out(here)

    async def _logged_out(self, here: dict[str, str]) -> None:
        found = await self.story.asker.cli("processors", environment=here)
        self._wrong("processors without a login", found.outcome, "refused")
        if found.outcome == "refused" and "`tidemark login`" not in found.text:
            self.story.asker.fault(f"says no remedy: {found.text}")
