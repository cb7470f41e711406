"""A schema registry's client, over HTTP, against a server of the registry's REST.

`TIDEMARK_TEST_REGISTRY` names another server, such as Confluent's, Apicurio (`/apis/ccompat/v7`) or Karapace: the tests of the contract run
on that one then.
"""

import os
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from itertools import product

import pytest
from aiohttp import web

from tests.harness.registry import Registry
from tidemark.shared.adapters.registry import RestRegistry, registry_settings
from tidemark.shared.model.failures import WrongSetup
from tidemark.shared.ports.registry import RegistryDenied, RegistryUnavailable, SchemaRefused, SchemaUnknown

ORDER = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
WITH_DEFAULT = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},'
    '{"name":"note","type":["null","string"],"default":null}]}'
)
WITHOUT_DEFAULT = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"price","type":"double"}]}'
)


@pytest.fixture
async def server() -> AsyncIterator[Registry]:
    made = await Registry().start()
    yield made
    await made.stop()


def client_of(*urls: str, **user: str) -> RestRegistry:
    settings = {"schemaRegistryUrls": urls, "schemaRegistryAuthentication": {"type": "USER_INFO", **user}}
    return RestRegistry(registry_settings(settings))


@pytest.fixture
async def client(server: Registry) -> AsyncIterator[RestRegistry]:
    made = client_of(os.environ.get("TIDEMARK_TEST_REGISTRY", server.url))
    yield made
    await made.close()


async def test_a_schema_has_one_number_for_ever(client: RestRegistry, unique_name: Callable[[str], str]) -> None:
    """Registering is idempotent, by whichever client; the number leads to the schema."""
    subject = unique_name("orders") + "-value"
    number = await client.number(subject, "AVRO", ORDER, register=True)
    other = client_of(*client._settings.urls)
    try:
        assert await other.number(subject, "AVRO", ORDER, register=True) == number
        assert await other.number(subject, "AVRO", ORDER, register=False) == number
        found = await other.schema(number)
    finally:
        await other.close()
    assert (found.type, found.text.replace(" ", "")) == ("AVRO", ORDER)


async def test_unknown_numbers_and_schemas_are_named(client: RestRegistry, unique_name: Callable[[str], str]) -> None:
    """A number or a schema that the registry does not have is no outage, and is said with its number or subject."""
    with pytest.raises(SchemaUnknown, match="2000000000"):
        await client.schema(2_000_000_000)
    subject = unique_name("orders") + "-value"
    with pytest.raises(SchemaUnknown, match=subject):
        await client.number(subject, "AVRO", ORDER, register=False)


async def test_a_schema_that_is_none_is_refused(client: RestRegistry, unique_name: Callable[[str], str]) -> None:
    """The registry's reason is told, and time does not mend it."""
    subject = unique_name("orders") + "-value"
    with pytest.raises(SchemaRefused, match=subject):
        await client.number(subject, "AVRO", '{"type":"record","name":"Order"}', register=True)


async def test_a_later_version_may_be_registered(client: RestRegistry, unique_name: Callable[[str], str]) -> None:
    """A version with a default is another number under the same subject; `refused` says so before."""
    subject = unique_name("orders") + "-value"
    assert await client.refused(subject, "AVRO", ORDER) == ""
    first = await client.number(subject, "AVRO", ORDER, register=True)
    assert await client.refused(subject, "AVRO", WITH_DEFAULT) == ""
    assert await client.number(subject, "AVRO", WITH_DEFAULT, register=True) != first


async def test_an_incompatible_version_is_refused(server: Registry, unique_name: Callable[[str], str]) -> None:
    """Under a subject that demands compatibility, a version without it is refused with the reason, also when only asked about."""
    subject, client = unique_name("orders") + "-value", client_of(server.url)
    try:
        await client.number(subject, "AVRO", ORDER, register=True)
        assert "price" in await client.refused(subject, "AVRO", WITHOUT_DEFAULT)
        with pytest.raises(SchemaRefused, match="price"):
            await client.number(subject, "AVRO", WITHOUT_DEFAULT, register=True)
    finally:
        await client.close()


async def test_json_schemas_keep_their_type(client: RestRegistry, unique_name: Callable[[str], str]) -> None:
    """A JSON Schema comes back as one."""
    text = '{"type":"object","title":"Order","properties":{"id":{"type":"integer"}}}'
    number = await client.number(unique_name("orders") + "-value", "JSON", text, register=True)
    assert (await client.schema(number)).type == "JSON"


async def test_each_schema_is_asked_for_once(server: Registry) -> None:
    """Whatever the number of records, the registry is asked once for a number, and once for a subject."""
    number, client = server.add("orders-value", {"type": "string"}), client_of(server.url)
    try:
        for _ in range(10):
            await client.schema(number)
            await client.number("orders-value", "AVRO", '{"type":"string"}', register=True)
    finally:
        await client.close()
    assert dict(server.asked) == {f"GET /schemas/ids/{number}": 1, "POST /subjects/orders-value/versions": 1}


async def test_references_come_with_the_schema(server: Registry) -> None:
    """Schemas that a schema refers to are fetched, those that they refer to first."""
    server.add("sku", {"type": "fixed", "name": "Sku", "size": 2})
    to_sku = {"name": "Sku", "subject": "sku", "version": 1}
    server.add(
        "item", {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "Sku"}]}, references=[to_sku]
    )
    to_item = {"name": "Item", "subject": "item", "version": 1}
    number = server.add("cart", {"type": "array", "items": "Item"}, references=[to_item])
    client = client_of(server.url)
    try:
        found = await client.schema(number)
    finally:
        await client.close()
    assert ["Sku" in each.text and "size" in each.text for each in found.references] == [True, False]


async def test_an_address_that_is_away_is_passed_over(server: Registry) -> None:
    """Of several addresses the next is asked; with none that answers it is an outage."""
    number = server.add("orders-value", {"type": "string"})
    both, gone = client_of("http://127.0.0.1:9", server.url), client_of("http://127.0.0.1:9")
    try:
        assert (await both.schema(number)).text == '{"type": "string"}'
        with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:9"):
            await gone.schema(number)
        server.away = 1
        with pytest.raises(RegistryUnavailable, match="503"):
            await both.schema(number + 1)
    finally:
        await both.close()
        await gone.close()


async def test_a_password_is_sent_and_never_shown(server: Registry) -> None:
    """A wrong user is told so, without the password; the right one is let in."""
    server.user = "Basic " + b64encode(b"me:open sesame").decode()
    number = server.add("orders-value", {"type": "string"})
    right, wrong = (client_of(server.url, username="me", password=word) for word in ("open sesame", "guessed"))
    try:
        assert (await right.schema(number)).type == "AVRO"
        with pytest.raises(RegistryDenied, match="Unauthorized") as told:
            await wrong.schema(number)
    finally:
        await right.close()
        await wrong.close()
    assert "guessed" not in str(told.value)


def test_an_address_of_another_kind_is_refused() -> None:
    """An address without http is a wrong setting, not an outage without end."""
    with pytest.raises(WrongSetup, match="http://host:port"):
        client_of("registry:8081")


DEEP = b"[" * 100_000
PAGES = (
    b"",
    DEEP,
    b"<html>",
    b'{"schema":' + DEEP,
    b'{"message": "\\ud800"}',
    b"\xff",
    b'{"schema": "x',
    b'{"id": ' + b"9" * 5_000 + b"}",
)
"""No JSON at all: of a proxy in front of a registry that is away."""
NOT_FOUND = (
    b'{"message": "no Route matched with those values"}',
    b'{"message": "Not Found"}',
    b'{"error_code": 404, "message": "HTTP 404 Not Found"}',
    b'{"error_code": "40403"}',
    b"{}",
    b"null",
)
"""JSON of a gateway in front of a registry that is away, and of a server at another path."""
ODD = (
    b"{}", b"[]", b"null", b"7", b'"x"', b'{"schema": 7}', b'{"schema": "x", "references": 5}',
    b'{"schema": "x", "references": [1]}', b'{"schema": "x", "references": [{"subject": "s"}]}', b'{"schema": "x", "schemaType": []}',
    b'{"schema": "x", "references": [{"subject": "s", "version": "v"}]}', b'{"id": -1}', b'{"id": "x"}', b'{"id": 4294967296}',
    b'{"is_compatible": "no"}', b'{"is_compatible": false, "messages": 7}',
)  # fmt: skip


async def test_an_answer_that_is_none_is_named() -> None:
    """Whatever a server says instead: the registry refuses, or is away; a schema is never unknown by the word of a proxy or gateway."""
    said, status = [b""], [200]

    async def answered(_: web.Request) -> web.Response:
        return web.Response(body=said[0], status=status[0])

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answered)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = client_of(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        for said[0] in ODD:
            for asked in (client.schema(7), client.number("s", "AVRO", ORDER, register=True)):
                with pytest.raises(RegistryDenied, match="expected an answer of a schema registry"):
                    await asked
        for status[0] in (200, 404):
            for said[0] in (*PAGES, *(NOT_FOUND if status[0] == 404 else ())):
                for page in (
                    client.schema(7),
                    client.number("s", "AVRO", ORDER, register=False),
                    client.refused("s", "AVRO", ORDER),
                ):
                    with pytest.raises(RegistryUnavailable, match="expected an answer of a schema registry"):
                        await page
        for status[0], said[0] in product((408, 425, 429, 500), (b"{}", b"<html>")):
            with pytest.raises(RegistryUnavailable, match=f"found status {status[0]}"):
                await client.number("s", "AVRO", ORDER, register=True)
        status[0] = 200
        for said[0] in (b"[]", b'{"is_compatible": "no"}', b'{"is_compatible": false, "messages": 7}'):
            with pytest.raises(RegistryDenied):
                await client.refused("s", "AVRO", ORDER)
    finally:
        await client.close()
        await runner.cleanup()
