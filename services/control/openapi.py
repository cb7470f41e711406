"""The OpenAPI document, from the routes' declarations."""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tidemark.services.control.routes import JOB_HEADER, REPLACES_HEADER, Route
from tidemark.shared.process.web import BAD_REQUEST

_HEADERS: Final = {
    JOB_HEADER: (
        "/v1/processors/{name}",
        "The `job` that you have seen: refused where the processor of this name has another one by now",
    ),
    REPLACES_HEADER: (
        "/v1/connections/{name}",
        "The digest (`digests` of /v1/connections) of the connection that is changed, or `none`: refused where another is there",
    ),
}
"""By name: the paths whose changes take it, and what it says."""
_PARAMETER = re.compile(r"\{(\w+)\}")
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["place", "expectation", "finding"],
            "properties": {
                "place": {"type": "string"},
                "expectation": {"type": "string"},
                "finding": {"type": "string"},
                "remedy": {"type": "string"},
                "errors": {"type": "array", "items": {"type": "object"}},
            },
        }
    },
}


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes."""
    bodies = [route.body for route in routes if route.body is not None]
    schemas, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    by_route = dict(zip((id(r) for r in routes if r.body is not None), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_route.get(id(route)))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidemark control", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "page": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "Any name, the token as password; changes with header Tidemark-Console alone",
                },
            },
        },
    }


def _operation(route: Route, body: object) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += [
        {"name": q.name, "in": "query", "description": q.text, "schema": {"type": q.type, "default": q.default}}
        for q in route.query
    ]
    if route.method != "GET":
        text = "Id of the request: a repeat is answered as before and not carried out again"
        parameters.append(
            {"name": "Idempotency-Key", "in": "header", "description": text, "schema": {"type": "string"}}
        )
    for header, (paths, text) in _HEADERS.items():
        if route.method not in ("GET", "POST" if header == REPLACES_HEADER else "GET") and route.path.startswith(paths):
            parameters.append({"name": header, "in": "header", "description": text, "schema": {"type": "string"}})
    found: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.summary,
        "parameters": parameters,
        "responses": {str(status): _answer(route, status, text) for status, text in _answers(route).items()},
        **({} if route.open else {"x-role": route.role}),
        "security": [] if route.open else [{"token": []}, {"page": []}],
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


def _answers(route: Route) -> dict[int, str]:
    """Every status that the route may answer with, but a fault's."""
    if route.open:
        return route.answers
    common = {401: "no token, or another", 429: "too many at a time", 503: "Kafka does not answer, and why"}
    if route.body is not None or route.query or route.method != "GET":
        common[400] = "the body, a parameter or the name is not as described"
    if "{name}" in route.path:
        common[404] = "there is none of this name"
    if route.body is not None:
        common |= {
            408: "the body did not come in time",
            413: "the body is too large",
            415: "the body's Content-Encoding is not read here",
        }
    if route.role != "viewer":
        common[403] = f"the token of a user below {route.role}"
    if route.method != "GET":
        common |= {
            403: f"the token of a user below {route.role}, or as a password without header Tidemark-Console",
            409: "refused, with the reason",
            504: "the coordinator has not answered: ask again with the same id",
        }
    return dict(sorted({**common, **route.answers}.items()))


def _answer(route: Route, status: int, text: str) -> dict[str, Any]:
    if status >= BAD_REQUEST:
        error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        # A page says in words what its handler finds; what is refused before it is JSON.
        page: dict[str, Any] = {route.content: {}} if route.content == "text/html" else {}
        return {"description": text, "content": {**error, **page}}
    return {"description": text, "content": {route.content: {}}}
