"""Magazines by name, as ``app.magazine`` gives them out: checked against the queue that they belong to."""

from __future__ import annotations

import threading
from typing import Any, Literal

from ignis.config import QueueSettings, check_queue_name, check_whole, resolve, shown
from ignis.context import AppContext
from ignis.errors import InvalidNameError, QueueMismatchError, QueueNotFoundError
from ignis.magazine import SIDELINE_SUFFIX, Magazine
from ignis.message import MAX_HEADERS_BYTES, BodyCodec
from ignis.queue_table import QueueTable
from ignis.storage.base import QueueRecord

__all__ = ["RawMagazines"]


class RawMagazines:
    """Gives magazines out by name. Thread-safe.

    Args:
        app: its store and settings file.
        table: its queues.
    """

    def __init__(self, app: AppContext, table: QueueTable) -> None:
        self._app = app
        self._table = table
        self._lock = threading.Lock()
        self._codecs: dict[tuple[Any, str, bool], BodyCodec[Any]] = {}

    def get(
        self,
        name: str,
        type: Any,
        *,
        shards: int | None,
        ttl_s: float | Literal["queue"] | None,
        durability: str | None,
        codec: str,
        max_message_bytes: int | None,
        max_headers_bytes: int | None,
        strict: bool,
    ) -> Magazine[Any]:
        """See ``app.magazine``."""
        if not isinstance(name, str):
            raise InvalidNameError(f"magazine name {shown(name)} is not text")
        name = str.__str__(name)
        of = check_queue_name(name.removesuffix(SIDELINE_SUFFIX), "magazine")
        body_codec = self._codec_of(type, codec, strict)
        store, magazines = self._app.store(), self._app.magazines()
        record = store.queues.get(of)
        if record is None and of != name:
            raise QueueNotFoundError(
                f"magazine {name!r} is the sideline of queue {of!r}, which is not there: app.queue({of!r}) makes both"
            )
        most_bytes, most_headers_bytes = 1 << 20, MAX_HEADERS_BYTES
        if record is not None:
            queue = self._table.find(of)
            settings = queue.settings if queue is not None else resolve(QueueSettings, {}, self._app.file, name=of)
            most_bytes, most_headers_bytes = settings.max_message_bytes, settings.max_headers_bytes
            _same(of, "durability", record.durability, durability)
            _within(of, "max_message_bytes", most_bytes, max_message_bytes)
            _within(of, "max_headers_bytes", most_headers_bytes, max_headers_bytes)
            body_codec = self._stored_codec(record, type, codec, strict, body_codec.name)
        if shards is None:
            shards = magazines.stored_shards(name) or (record.shards if record is not None else 32)
        if ttl_s == "queue":
            ttl_s = (store.message_expiry_s if record is None else record.message_expiry_s) or None
        if durability is None:
            durability = record.durability if record is not None else "sync"
        return magazines.get(
            name, body_codec, shards=shards, ttl_s=ttl_s, durability=durability,
            max_message_bytes=most_bytes if max_message_bytes is None else max_message_bytes,
            max_headers_bytes=most_headers_bytes if max_headers_bytes is None else max_headers_bytes,
        )  # fmt: skip

    def _stored_codec(self, record: QueueRecord, type: Any, codec: str, strict: bool, fitting: str) -> BodyCodec[Any]:
        """The codec of a stored queue. ``fitting``: that of the type. Raises QueueMismatchError where another was asked for."""
        of = record.name
        queue = self._table.find(of)
        if queue is not None and queue.type is not None:
            if type is not None and type is not queue.type:
                raise QueueMismatchError(f"queue {of!r} has messages of {queue.type!r} here, asked for {shown(type)}")
            type = queue.type
        asked = codec if codec != "auto" else fitting if type is not None else record.codec
        if (asked == "raw") != (record.codec == "raw") or codec != "auto":
            _same(of, "codec", record.codec, asked)
        return self._codec_of(bytes if type is None and record.codec == "raw" else type, record.codec, strict)

    def _codec_of(self, type: Any, codec: str, strict: bool) -> BodyCodec[Any]:
        """The same object for the same arguments: a magazine is known by it."""
        fresh: BodyCodec[Any] = BodyCodec(type, codec, strict)
        try:
            hash(type)
        except TypeError:
            return fresh
        with self._lock:
            return self._codecs.setdefault((type, codec, strict), fresh)


def _same(queue: str, setting: str, stored: str, asked: object) -> None:
    if asked is not None and asked != stored:
        raise QueueMismatchError(f"queue {queue!r} is stored with {setting} {stored!r}, asked for {shown(asked)}")


def _within(queue: str, setting: str, most: int, asked: object) -> None:
    if asked is not None and check_whole(asked, setting, 0) > most:
        raise QueueMismatchError(f"queue {queue!r} has {setting} = {most}, asked for {shown(asked)}")
