"""The OpenAPI document of the HTTP API, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ignis._version import __version__
from ignis.console.access import COOKIE, CSRF_HEADER
from ignis.console.refusals import STATUS
from ignis.console.roles import NONE
from ignis.console.routes import PREFIX, ApiRoute
from ignis.console.snapshot import FIGURES

__all__ = ["document"]

_REF = "#/components/schemas/{name}"
_PATH_PARTS: dict[str, dict[str, Any]] = {
    "queue": {"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,128}$", "description": "The queue's name."},
    "schedule": {"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,128}$", "description": "The schedule's name."},
    "job": {"type": "string", "minLength": 1, "maxLength": 64, "description": "The job, as its start answered."},
    "shard": {"type": "integer", "minimum": 0, "maximum": 65_535, "description": "From a list of messages."},
    "pointer": {"type": "integer", "minimum": 0, "maximum": 1 << 62, "description": "From a list of messages."},
}


def document(routes: Iterable[ApiRoute], server: str = "/") -> dict[str, Any]:
    """The document, as JSON values. ``server``: below what the API lies."""
    rows = list(routes)
    structs = [one for row in rows for one in (row.query, row.body) if one is not None]
    kinds = list(dict.fromkeys(structs))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    components = {**components, "Error": _ERROR}
    by_kind = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        paths.setdefault(PREFIX + row.path, {})[row.method.lower()] = _operation(row, by_kind, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ignis", "version": __version__, "description": "Queues, looked at, operated and used."},
        "servers": [{"url": server}],
        "paths": paths,
        "x-ignis-figures": FIGURES,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of the users file."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": f"{COOKIE}_9711",
                    "description": "With the port of the console in its name, and with __Host- before it by TLS.",
                },
                "csrf": {
                    "type": "apiKey",
                    "in": "header",
                    "name": CSRF_HEADER,
                    "description": "What the login answered.",
                },
            },
        },
    }


def _operation(
    row: ApiRoute, by_kind: dict[type[msgspec.Struct], dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _PATH_PARTS[name]}
        for name in re.findall(r"\{(\w+)\}", row.path)
    ]
    if row.query is not None:
        shape = components[by_kind[row.query]["$ref"].rpartition("/")[2]]
        parameters += [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in shape["properties"].items()
        ]
    found: dict[str, Any] = {
        "operationId": row.handler.__name__,
        "summary": row.summary,
        "tags": [row.group],
        "parameters": parameters,
        "responses": {"200": _answer("Done."), "default": _answer("Refused, with a code.", "Error")},
        "x-ignis-role": row.needs or "none",
    }
    if row.waits:
        found["responses"]["202"] = _answer("Not ended yet: ask for the job.")
    for status in sorted(set(STATUS.values())):
        found["responses"][str(status)] = _answer("Refused, with a code.", "Error")
    if row.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": by_kind[row.body]}}}
    if row.needs != NONE:
        found["security"] = [{"token": []}, {"session": [], "csrf": []}]
    return found


def _answer(says: str, kind: str | None = None) -> dict[str, Any]:
    schema = {"type": "object"} if kind is None else {"$ref": _REF.format(name=kind)}
    return {"description": says, "content": {"application/json": {"schema": schema}}}


_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "retryable"],
            "properties": {
                "code": {"type": "string", "description": "Stable: programs may go by it."},
                "message": {"type": "string", "description": "For people."},
                "retryable": {"type": "boolean", "description": "Whether the same request may succeed later."},
            },
        }
    },
}
