"""The pages and the API's description: each made once, answered from memory with an ETag; and how many a connection gets."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

import msgspec

from ignis.console.openapi import document
from ignis.console.routes import ROUTES

__all__ = ["FILES", "Document", "Strangers", "api_document", "file_document"]

FILES = {
    "/": ("index.htm", "text/html; charset=utf-8"),
    "/assets/app.css": ("app.css", "text/css; charset=utf-8"),
    **{
        f"/assets/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in (
            "api",
            "app",
            "charts",
            "dom",
            "edit",
            "format",
            "messages",
            "overview",
            "parts",
            "queue",
            "schedules",
            "sideline",
            "system",
            "visible",
            "workers",
        )
    },
    "/assets/icon.svg": ("icon.svg", "image/svg+xml"),
}
_ROOTS_KEPT = 8
_MOST_ANSWERS = 100
_MOST_CONNECTIONS = 4_096


class Document(NamedTuple):
    """What is answered, and the tag by which a browser asks whether it has changed."""

    data: bytes
    etag: str


def _tagged(data: bytes) -> Document:
    return Document(data, f'"{hashlib.sha256(data).hexdigest()[:24]}"')


@lru_cache(maxsize=len(FILES))
def file_document(name: str) -> Document:
    """A file of the pages."""
    return _tagged(resources.files("ignis.console").joinpath("web").joinpath(name).read_bytes())


@lru_cache(maxsize=_ROOTS_KEPT)
def api_document(root: str) -> Document:
    """The description of the API below a root. Making it takes milliseconds, and anybody may ask for it."""
    return _tagged(msgspec.json.encode(document(ROUTES, root)) + b"\n")


class Strangers:
    """Counts what each connection was answered without saying who it is. After `_MOST_ANSWERS` it is closed, so that whoever
    sends requests behind each other without waiting gets no more than those. Belongs to the event loop. Bounded."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, int], int] = OrderedDict()

    def answered(self, connection: tuple[str, int] | None, known: bool) -> bool:
        """Counts an answer; returns whether the connection is to end with it. ``known``: it was to somebody with a name."""
        if connection is None:
            return False
        count = self._answers.pop(connection, 0) + 1
        if known or count >= _MOST_ANSWERS:
            return not known
        self._answers[connection] = count
        if len(self._answers) > _MOST_CONNECTIONS:
            self._answers.popitem(last=False)
        return False
