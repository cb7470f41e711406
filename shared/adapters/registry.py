"""A registry of schemas by Confluent's REST. Schemas are asked for once and kept; redirects are not followed, answers are bounded.

Several addresses are one registry: where one is away, the next is asked.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from msgspec import Meta, Struct

from tidemark.shared.adapters.http import CheckAddress, CheckedConnector, anywhere
from tidemark.shared.model.failures import WrongSetup
from tidemark.shared.model.schemas import SchemaReference
from tidemark.shared.ports.registry import (
    KnownSchema,
    RegistryDenied,
    RegistryUnavailable,
    SchemaRefused,
    SchemaType,
    SchemaUnknown,
)

_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one answer: a schema, some of them of megabytes."""
_KEPT_MAX: Final = 10_000
"""Schemas and numbers that are kept; beyond it the oldest goes."""
_REFERENCES_MAX: Final = 100
"""Schemas that one schema refers to, and those that they refer to."""
_TIMEOUT_S: Final = 10
"""For one answer: longer, and the registry counts as away."""
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_LATER: Final = (408, 425, 429)
"""Statuses below 500 by which a server, or a proxy in front of it, says that the same request may do well later."""
_NOT_FOUND: Final = range(40_400, 40_500)
"""Codes by which a registry says what it does not have: a subject, a version, a schema. A path that it does not know has the code 404."""


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Addresses, and the user that asks."""

    urls: tuple[str, ...]
    username: str = ""
    password: str = ""


class _Reference(Struct, frozen=True):
    subject: str
    version: int
    name: str = ""


class _Schema(Struct, frozen=True):
    schema: str
    schemaType: SchemaType | None = None  # noqa: N815 - the registry's word
    references: list[_Reference] | None = None


class _Registered(Struct, frozen=True):
    id: Annotated[int, Meta(ge=0, lt=1 << 32)]


class _Compatibility(Struct, frozen=True):
    is_compatible: bool = True
    messages: list[Any] | None = None


_Form = TypeVar("_Form", bound=Struct)


@dataclass(frozen=True, slots=True)
class _RegistryAnswer:
    status: int
    body: Any
    """JSON; the text where it is none."""
    page: bool = False
    """It is none."""

    @property
    def reason(self) -> str:
        found = self.body.get("message", "") if isinstance(self.body, dict) else self.body
        return str(found)[:500]

    @property
    def is_of_others(self) -> bool:
        """Of a proxy or gateway, while the registry is away; it says nothing of a schema.

        Success that is no JSON, or "not found" without a registry's code.
        """
        if self.status == HTTPStatus.NOT_FOUND:
            return self.code not in _NOT_FOUND
        return self.status == HTTPStatus.OK and self.page

    @property
    def code(self) -> int:
        found = self.body.get("error_code") if isinstance(self.body, dict) else None
        return found if isinstance(found, int) else self.status


def answer_of(status: int, data: bytes) -> _RegistryAnswer:
    """An answer's body read, whatever it is."""
    try:
        return _RegistryAnswer(status, msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _RegistryAnswer(status, data[:500].decode(errors="replace"), page=True)


@dataclass(slots=True)
class _Trail:
    """The references that led to a schema, and how many more there may be of all."""

    left: list[int] = field(default_factory=lambda: [_REFERENCES_MAX])
    way: tuple[tuple[str, int], ...] = ()

    def further(self, reference: _Reference | SchemaReference) -> "_Trail":
        """Behind one more. SchemaUnknown where it has been on the way, or there are too many."""
        this = (reference.subject, reference.version)
        if this in self.way:
            names = " → ".join(f"{subject} version {version}" for subject, version in (*self.way, this))
            raise SchemaUnknown(f"schemas refer to one another in a circle: {names}")
        self.left[0] -= 1
        if self.left[0] < 0:
            raise SchemaUnknown(f"a schema refers to more than {_REFERENCES_MAX} others")
        return _Trail(self.left, (*self.way, this))


class RestRegistry:
    """`SchemaRegistry` over HTTP."""

    def __init__(self, settings: RegistrySettings, check: CheckAddress = anywhere) -> None:
        self._settings = settings
        self._check = check
        self._session: aiohttp.ClientSession | None = None
        self._schemas: dict[int, KnownSchema] = {}
        self._numbers: dict[tuple[str, SchemaType, str, tuple[SchemaReference, ...]], int] = {}

    @property
    def place(self) -> str:
        """The addresses, for messages; without secrets."""
        return ", ".join(urlsplit(url).netloc.rpartition("@")[2] or url for url in self._settings.urls)

    async def schema(self, number: int) -> KnownSchema:
        """See `SchemaRegistry.schema`."""
        if number not in self._schemas:
            answer = await self._ask("GET", f"schemas/ids/{number}")
            if answer.status == HTTPStatus.NOT_FOUND:
                raise SchemaUnknown(f"the schema registry {self.place} has no schema {number}: {answer.reason}")
            self._keep(self._schemas, number, await self._known(self._well(answer, _Schema), _Trail()))
        return self._schemas[number]

    async def referenced(self, references: Sequence[SchemaReference]) -> tuple[KnownSchema, ...]:
        """See `SchemaRegistry.referenced`."""
        return await self._referenced(references, _Trail())

    async def _known(self, found: _Schema, trail: _Trail) -> KnownSchema:
        """A schema with those that it refers to."""
        return KnownSchema(
            found.schemaType or "AVRO", found.schema, await self._referenced(found.references or (), trail)
        )

    async def _referenced(
        self, references: Sequence[_Reference | SchemaReference], trail: _Trail
    ) -> tuple[KnownSchema, ...]:
        """Schemas that one refers to, each behind those that it refers to."""
        found: list[KnownSchema] = []
        for each in references:
            inner = trail.further(each)
            place = f"subjects/{quote(each.subject, safe='')}/versions/{each.version}"
            answer = await self._ask("GET", place)
            if answer.status == HTTPStatus.NOT_FOUND:
                what = f"version {each.version} of {each.subject}, which a schema refers to as {each.name!r}"
                raise SchemaUnknown(f"the schema registry {self.place} does not have {what}: {answer.reason}")
            known = await self._known(self._well(answer, _Schema), inner)
            found += [*known.references, replace(known, name=each.name)]
        return tuple(dict.fromkeys(found))

    async def number(
        self, subject: str, kind: SchemaType, text: str, references: Sequence[SchemaReference] = (), *, register: bool
    ) -> int:
        """See `SchemaRegistry.number`."""
        key = (subject, kind, text, tuple(references))
        if key not in self._numbers:
            place = f"subjects/{quote(subject, safe='')}" + ("/versions" if register else "")
            answer = await self._ask("POST", place, _schema_body(kind, text, references))
            if not register and answer.status == HTTPStatus.NOT_FOUND:
                raise SchemaUnknown(
                    f"the schema registry {self.place} has no such schema under {subject}: {answer.reason}"
                )
            if answer.status in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY):
                raise SchemaRefused(
                    f"the schema registry {self.place} refuses the schema under {subject}: {answer.reason}"
                )
            self._keep(self._numbers, key, self._well(answer, _Registered).id)
        return self._numbers[key]

    async def refused(
        self, subject: str, kind: SchemaType, text: str, references: Sequence[SchemaReference] = ()
    ) -> str:
        """See `SchemaRegistry.refused`."""
        place = f"compatibility/subjects/{quote(subject, safe='')}/versions/latest?verbose=true"
        answer = await self._ask("POST", place, _schema_body(kind, text, references))
        if answer.status == HTTPStatus.NOT_FOUND:  # the subject's first schema
            return ""
        if answer.status == HTTPStatus.UNPROCESSABLE_ENTITY:  # no schema at all
            return answer.reason
        judged = self._well(answer, _Compatibility)
        if judged.is_compatible:
            return ""
        told = "; ".join(str(each) for each in judged.messages or ())
        return f"incompatible with the latest under {subject}" + (f": {told[:500]}" if told else "")

    async def _ask(self, method: str, place: str, body: Mapping[str, Any] | None = None) -> _RegistryAnswer:
        """The first address that answers."""
        failed = ""
        for url in self._settings.urls:
            try:
                answer = await self._answer(method, f"{url.rstrip('/')}/{place}", body)
            except aiohttp.ClientSSLError as error:
                raise RegistryDenied(
                    f"schema registry {self.place}: {error}; correct the url, or the certificates of the server or of this machine"
                ) from error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failed = f"{type(error).__name__}: {error}".replace(f"{urlsplit(url).netloc.rpartition('@')[0]}@", "")
                continue
            trouble = (
                answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status in _LATER or answer.is_of_others
            )
            if not trouble:
                return answer
            failed = f"expected an answer of a schema registry, found status {answer.status}: {answer.reason}"
        raise RegistryUnavailable(f"schema registry {self.place}: {failed}")

    async def _answer(self, method: str, url: str, body: Mapping[str, Any] | None) -> _RegistryAnswer:
        headers = {"Accept": f"{_JSON}, application/json"}
        if self._settings.username:
            user = b64encode(f"{self._settings.username}:{self._settings.password}".encode()).decode()
            headers["Authorization"] = f"Basic {user}"
        if body is not None:
            headers["Content-Type"] = _JSON
        data = None if body is None else json.dumps(body).encode()
        async with self._opened().request(
            method, url, data=data, headers=headers, allow_redirects=False, timeout=aiohttp.ClientTimeout(_TIMEOUT_S)
        ) as answer:
            found = await answer.content.read(_ANSWER_BYTES_MAX + 1)
            while len(found) <= _ANSWER_BYTES_MAX and not answer.content.at_eof():
                found += await answer.content.read(_ANSWER_BYTES_MAX + 1 - len(found))
            if len(found) > _ANSWER_BYTES_MAX:
                return _RegistryAnswer(413, f"an answer of more than {_ANSWER_BYTES_MAX} bytes")
            return answer_of(answer.status, found)

    def _well(self, answer: _RegistryAnswer, form: type[_Form]) -> _Form:
        """The body of an answer that is none of the foreseen refusals. RegistryDenied."""
        why = answer.reason
        if answer.status == HTTPStatus.OK:
            try:
                return msgspec.convert(answer.body, form)
            except msgspec.ValidationError as error:
                why = str(error)
        raise RegistryDenied(
            f"schema registry {self.place}: expected an answer of a schema registry, found status {answer.status}"
            f" (code {answer.code}): {why}; look at address, user and password of the connection"
        )

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=CheckedConnector(self._check), trust_env=False)
        return self._session

    @staticmethod
    def _keep(kept: dict[Any, Any], key: object, value: object) -> None:
        if len(kept) >= _KEPT_MAX:
            del kept[next(iter(kept))]
        kept[key] = value

    async def close(self) -> None:
        """Let go of the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _schema_body(kind: SchemaType, text: str, references: Sequence[SchemaReference]) -> dict[str, Any]:
    """A schema as the registry takes it; of Avro without its type, which older registries do not know."""
    body: dict[str, Any] = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
    if references:
        body["references"] = [asdict(each) for each in references]
    return body


def registry_settings(settings: Mapping[str, Any]) -> RegistrySettings:
    """Of a connection, its values put in. WrongSetup."""
    urls: Sequence[str] = settings["schemaRegistryUrls"]
    for url in urls:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise WrongSetup("schemaRegistryUrls: expected http://host:port or https://…, found another address")
    user = settings.get("schemaRegistryAuthentication", {})
    return RegistrySettings(tuple(urls), str(user.get("username", "")), str(user.get("password", "")))
