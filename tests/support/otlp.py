"""Spans as a collector got them by OTLP, read back and drawn as a tree.

Datadog's test agent tells them over HTTP, in the names of the protobuf messages; OpenTelemetry's own collector writes them into a
file with its exporter ``file``, a line for each batch, in the JSON of OTLP.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_STATUSES = ("UNSET", "OK", "ERROR")
_HEX_CHARS = (16, 32)
"""Of the ids of a span and of a trace; in Base64 they have 12 and 24 characters."""


@dataclass(frozen=True)
class Collected:
    """One span. ``links`` are the ids of spans; a root's ``parent`` is empty."""

    service: str
    trace: str
    id: str
    parent: str
    name: str
    kind: str
    status: str
    start_ns: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    events: tuple[str, ...]


def collected(address: str, trace: str, file: str = "") -> list[Collected]:
    """The spans of one trace that the collector has, the first to begin first.

    Args:
        address: of Datadog's test agent.
        trace: the id of the trace.
        file: what another collector writes; its lines are read instead, as far as they are whole.
    """
    if file:
        lines = Path(file).read_text().splitlines(keepends=True)
        requests = [_snake(json.loads(line)) for line in lines if line.endswith("\n")]
    else:
        with urllib.request.urlopen(f"{address}/test/session/traces", timeout=10) as answer:
            requests = json.load(answer)
    return sorted((one for one in _spans(requests) if one.trace == trace), key=lambda one: one.start_ns)


def _spans(requests: list[dict[str, Any]]) -> Iterator[Collected]:
    for request in requests:
        for resource in request["resource_spans"]:
            service = _attributes(resource["resource"])["service.name"]
            for scope in resource["scope_spans"]:
                for span in scope["spans"]:
                    yield Collected(
                        service=service,
                        trace=_hex(span["trace_id"]),
                        id=_hex(span["span_id"]),
                        parent=_hex(span.get("parent_span_id", "")),
                        name=span["name"],
                        kind=_name(span["kind"], _KINDS, "SPAN_KIND_"),
                        status=_name(span.get("status", {}).get("code", 0), _STATUSES, "STATUS_CODE_"),
                        start_ns=int(span["start_time_unix_nano"]),
                        attributes=_attributes(span),
                        links=tuple((_hex(one["trace_id"]), _hex(one["span_id"])) for one in span.get("links", ())),
                        events=tuple(one["name"] for one in span.get("events", ())),
                    )


def _snake(of: Any) -> Any:
    """With names such as ``resource_spans`` in place of ``resourceSpans``."""
    if isinstance(of, list):
        return [_snake(one) for one in of]
    if isinstance(of, dict):
        return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): _snake(one) for name, one in of.items()}
    return of


def _name(value: int | str, names: tuple[str, ...], prefix: str) -> str:
    return names[value] if isinstance(value, int) else value.removeprefix(prefix)


def _hex(id: str) -> str:
    return id if len(id) in _HEX_CHARS else base64.b64decode(id).hex()


def _attributes(of: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for one in of.get("attributes", ()):
        ((kind, value),) = one["value"].items()
        found[one["key"]] = int(value) if kind == "int_value" else value
    return found


def tree(spans: list[Collected]) -> str:
    """Each span below its parent, with its service, its attempt, its error and what it is linked with."""
    named = {one.id: f"{one.name} {_attempt(one)}".rstrip() for one in spans}
    lines: list[str] = []

    def draw(parent: str, depth: int) -> None:
        for one in spans:
            if one.parent == parent:
                said = [
                    one.service,
                    one.kind,
                    *([f"ERROR {one.attributes['error.type']}"] if one.status == "ERROR" else []),
                ]
                said += [f"linked with {', '.join(named.get(id, id) for _, id in one.links)}"] if one.links else []
                lines.append(f"{'  ' * depth + named[one.id]:<32}  {'; '.join(said)}")
                draw(one.id, depth + 1)

    draw("", 0)
    return "\n".join(lines)


def _attempt(one: Collected) -> str:
    attempt = one.attributes.get("ignis.message.attempt")
    return f"({attempt})" if attempt else ""
