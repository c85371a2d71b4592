"""The OpenAPI document: every route is in it, and what it refers to."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("starlette")

from ignis import Ignis
from ignis.console.openapi import document
from ignis.console.routes import PREFIX, ROUTES
from tests.support.console import Someone, a_console


def test_the_document_has_every_route_with_its_role() -> None:
    found = json.loads(json.dumps(document(ROUTES)))
    there = {
        (method.upper(), path): operation["x-ignis-role"]
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    }
    assert there == {(row.method, PREFIX + row.path): row.needs or "none" for row in ROUTES}
    names = [one["operationId"] for methods in found["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)
    for methods in found["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
            refs = json.dumps(operation).split('"$ref": "#/components/schemas/')[1:]
            assert {one.partition('"')[0] for one in refs} <= set(found["components"]["schemas"])


def test_the_document_is_served_to_everybody(memory_app: Ignis) -> None:
    with a_console(memory_app) as console:
        found = Someone(console).http.get(f"{PREFIX}/openapi.json")
        assert (found.status_code, found.json()["openapi"]) == (200, "3.1.0")
