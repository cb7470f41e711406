"""A schema registry: the part of Confluent's REST that the product uses, over HTTP, in the test's own process.

Compatibility is of Avro records, backward: a field that the latest version lacks needs a default. It counts what it is asked.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aiohttp import web

from tests.harness.drawn_jobs.servers import Weather, failed
from tidemark.shared.language.avro import AvroSchemaError, parse_text, writer_of
from tidemark.shared.language.protobuf import ProtobufSchemaError as NoProtobuf
from tidemark.shared.model.schemas import SchemaReference
from tidemark.shared.ports.registry import (
    KnownSchema,
    RegistryDenied,
    RegistryUnavailable,
    SchemaRefused,
    SchemaType,
    SchemaUnknown,
)
from tidemark.shared.process.protobuf_compiler import compiled


@dataclass(slots=True)
class Registry:
    """Schemas by number; a subject is the list of its versions' numbers."""

    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    away: int = 0
    """So many requests are answered with 503."""
    weather: Weather | None = None
    """Which requests fail, and how."""
    user: str = ""
    """The Authorization header that requests must have."""
    runner: web.AppRunner | None = None
    url: str = ""

    def add(self, subject: str, schema: Any, kind: str = "AVRO", references: Any = ()) -> int:
        """Register a schema as a producer would; its number."""
        text = schema if kind == "PROTOBUF" else json.dumps(schema)
        body = {"schema": text, "schemaType": kind, "references": list(references)}
        number = next((n for n, known in self.schemas.items() if known == body), len(self.schemas) + 1)
        self.schemas[number] = body
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    async def start(self) -> "Registry":
        app = web.Application(middlewares=[self._counted])
        app.router.add_get("/schemas/ids/{number}", self._schema)
        app.router.add_get("/subjects/{subject}/versions/{version}", self._version)
        app.router.add_post("/subjects/{subject}/versions", self._register)
        app.router.add_post("/subjects/{subject}", self._look_up)
        app.router.add_post("/compatibility/subjects/{subject}/versions/latest", self._compatible)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()

    @web.middleware
    async def _counted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked[f"{request.method} {request.path}"] += 1
        if self.away > 0:
            self.away -= 1
            return _no(503, 50302, "starting")
        if self.weather is not None and (fault := self.weather.fault(request.path)):
            return await failed(request, fault)
        if self.user and request.headers.get("Authorization") != self.user:
            return _no(401, 401, "Unauthorized")
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _schema(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        return (
            web.json_response(self.schemas[number]) if number in self.schemas else _no(404, 40403, "Schema not found")
        )

    async def _version(self, request: web.Request) -> web.Response:
        versions = self.subjects.get(request.match_info["subject"], [])
        place = int(request.match_info["version"]) - 1
        return web.json_response(self.schemas[versions[place]]) if place < len(versions) else _no(404, 40402, "Version")

    async def _register(self, request: web.Request) -> web.Response:
        subject, body = request.match_info["subject"], await request.json()
        kind = body.get("schemaType", "AVRO")
        if why := self._no_schema(body, kind):
            return _no(422, 42201, why)
        if why := self._incompatible(subject, _tree(body["schema"], kind), kind):
            return _no(409, 409, why)
        number = self.add(subject, _tree(body["schema"], kind), kind, body.get("references", ()))
        return web.json_response({"id": number})

    async def _look_up(self, request: web.Request) -> web.Response:
        subject, body = request.match_info["subject"], await request.json()
        if subject not in self.subjects:
            return _no(404, 40401, "Subject not found")
        for number in self.subjects[subject]:
            kind = self.schemas[number]["schemaType"]
            if kind == body.get("schemaType", "AVRO") and _tree(self.schemas[number]["schema"], kind) == _tree(
                body["schema"], kind
            ):
                return web.json_response({"subject": subject, "id": number, "version": 1, "schema": body["schema"]})
        return _no(404, 40403, "Schema not found")

    async def _compatible(self, request: web.Request) -> web.Response:
        subject, body = request.match_info["subject"], await request.json()
        if why := self._no_schema(body, body.get("schemaType", "AVRO")):
            return _no(422, 42201, why)
        if subject not in self.subjects:
            return _no(404, 40401, "Subject not found")
        kind = body.get("schemaType", "AVRO")
        why = self._incompatible(subject, _tree(body["schema"], kind), kind)
        return web.json_response({"is_compatible": not why, "messages": [why] if why else []})

    def _incompatible(self, subject: str, schema: Any, kind: str) -> str:
        versions = self.subjects.get(subject, [])
        if not versions or kind != "AVRO":
            return ""
        latest = json.loads(self.schemas[versions[-1]]["schema"])
        if type(latest) is not dict or type(schema) is not dict:
            return "" if latest == schema else "TYPE_MISMATCH"
        known = {each["name"] for each in latest.get("fields", ())}
        lost = [
            each["name"] for each in schema.get("fields", ()) if each["name"] not in known and "default" not in each
        ]
        return f"READER_FIELD_MISSING_DEFAULT_VALUE: {lost[0]}" if lost else ""

    def _no_schema(self, body: Any, kind: str) -> str:
        try:
            tree = _tree(body["schema"], kind)
            if kind == "AVRO":
                writer_of(parse_text(body["schema"], self._imports(body.get("references", ())).values()))
            if kind == "PROTOBUF":
                compiled(tree, self._imports(body.get("references", ())))
        except (AvroSchemaError, NoProtobuf, ValueError) as error:
            return str(error)
        return ""

    def _imports(self, references: Any) -> dict[str, str]:
        """Texts by name of schemas that one refers to, and of those that they refer to. ValueError where one is not there."""
        found: dict[str, str] = {}
        for each in references:
            versions = self.subjects.get(each["subject"], [])
            if not 0 < each["version"] <= len(versions):
                raise ValueError(
                    f"No schema reference found for subject {each['subject']} and version {each['version']}"
                )
            known = self.schemas[versions[each["version"] - 1]]
            found |= {**self._imports(known["references"]), each["name"]: known["schema"]}
        return found


class MemoryRegistry:
    """`SchemaRegistry` on the same content, without HTTP, for tests of what asks it."""

    def __init__(self, content: Registry | None = None) -> None:
        self.content = content or Registry()
        self.denied = False

    def _asked(self, what: str) -> None:
        self.content.asked[what] += 1
        if self.denied:
            raise RegistryDenied("wrong password")
        if self.content.away > 0:
            self.content.away -= 1
            raise RegistryUnavailable("schema registry: away")

    async def schema(self, number: int) -> KnownSchema:
        self._asked(f"schema {number}")
        if number not in self.content.schemas:
            raise SchemaUnknown(f"no schema {number}")
        found = self.content.schemas[number]
        return KnownSchema(found["schemaType"], found["schema"])

    async def referenced(self, references: Sequence[SchemaReference]) -> tuple[KnownSchema, ...]:
        self._asked("references")
        texts = self.content._imports([asdict(each) for each in references])
        return tuple(KnownSchema("PROTOBUF", text, name=name) for name, text in texts.items())

    async def number(
        self, subject: str, kind: SchemaType, text: str, references: Sequence[SchemaReference] = (), *, register: bool
    ) -> int:
        self._asked(f"number of {subject}")
        if why := self.content._incompatible(subject, _tree(text, kind), kind):
            raise SchemaRefused(why)
        known = [self.content.schemas[n]["schema"] for n in self.content.subjects.get(subject, [])]
        tree = _tree(text, kind)
        if not register and (tree if kind == "PROTOBUF" else json.dumps(tree)) not in known:
            raise SchemaUnknown(f"no such schema under {subject}")
        return self.content.add(subject, tree, kind, [asdict(each) for each in references])

    async def refused(
        self, subject: str, kind: SchemaType, text: str, references: Sequence[SchemaReference] = ()
    ) -> str:
        return self.content._incompatible(subject, _tree(text, kind), kind)


def _tree(text: str, kind: str) -> Any:
    """A schema as it is compared: its JSON, and of Protobuf its text."""
    return text if kind == "PROTOBUF" else json.loads(text)


def _no(status: int, code: int, message: str) -> web.Response:
    return web.json_response({"error_code": code, "message": message}, status=status)
