"""Where a stage works: a queue of a store, looked up once in the driver, opened once in each Python worker."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ignis.app import Ignis
from ignis.config import QueueSettings, SparkSettings, resolve
from ignis.deadlines import DROP, on_expiry_of
from ignis.errors import ConfigError, DelayNotSupportedError, IgnisError, QueueMismatchError, QueueNotFoundError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import BodyCodec
from ignis.near_names import meant
from ignis.process_hooks import at_exit, on_fork
from ignis.spark._pyspark import TaskContext
from ignis.storage import DEFAULT_CLIENT_ID, DEFAULT_FARM_ID, open_store
from ignis.storage.base import QueueRecord, Store
from ignis.urls import redacted

__all__ = ["Place", "close_stores", "find_place", "make_place", "must_have_shards", "must_keep_later", "split_options"]

_SPARK_NAMES = {spec.name for spec in dataclasses.fields(SparkSettings)}
_QUEUE_NAMES = {spec.name for spec in dataclasses.fields(QueueSettings)}
_CODECS: dict[str, Any] = {"raw": bytes, "json": None, "msgpack": None}

_SPARKS_OWN = ("checkpointlocation", "path", "queryname")
"""Options of a query that Spark hands on to the data source."""

_lock = threading.Lock()
_stores: dict[tuple[int, str, str, str], Store] = {}


@dataclass(frozen=True)
class Place:
    """A queue as a task needs it. Small, and pickled into every task."""

    url: str = dataclasses.field(repr=False)
    client_id: str
    farm_id: str
    queue: str
    shards: int
    ttl_s: float | None
    stuck_after_s: float
    codec: str
    max_message_bytes: int
    settings: SparkSettings
    drops: bool = True
    """Whether the queue drops what has expired."""
    traced: bool = False
    """What ``tracing.enabled`` says."""
    max_headers_bytes: int = 0

    @property
    def flags(self) -> int:
        """The codec as records name it."""
        return BodyCodec(_CODECS[self.codec], self.codec).flags

    @property
    def sideline(self) -> str:
        return self.queue + SIDELINE_SUFFIX

    def open(self) -> Store:
        """This process's handle of the store; opened at the first call, closed when the process ends.

        Python workers are forked from a daemon and used for many tasks: what another process has opened is not used.
        Thread-safe. Raises StoreUnreachableError and what else opening raises.
        """
        return _open(self.url, self.client_id, self.farm_id)


def _open(url: str, client_id: str, farm_id: str) -> Store:
    on_fork(before=_lock.acquire, in_parent=_lock.release, in_child=_lock.release)
    at_exit(close_stores)
    key = (os.getpid(), url, client_id, farm_id)
    with _lock:
        known = _stores.get(key)
        if known is None:
            if TaskContext.get() is not None:
                # A Python worker lives for many tasks, one at a time: what it had open was an earlier one's.
                _close_mine()
            known = open_store(url, client_id=client_id, farm_id=farm_id)
            if known.in_process:
                known.close()
                raise ConfigError(
                    f"store {redacted(url)}: Spark's tasks are other processes, which cannot see a store in memory"
                )
            _stores[key] = known
        return known


def close_stores() -> None:
    """Closes what this process has opened. Whoever needs a store later opens it again."""
    with _lock:
        _close_mine()


def _close_mine() -> None:
    for key in [key for key in _stores if key[0] == os.getpid()]:
        with suppress(IgnisError):
            _stores.pop(key).close(5)


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of Spark's stages, and those of the queue. Raises ConfigError for one that is neither."""
    spark: dict[str, Any] = {}
    queue: dict[str, Any] = {}
    for name, value in options.items():
        if name in _SPARK_NAMES or f"{name}_s" in _SPARK_NAMES:
            spark[name] = value
        elif name in _QUEUE_NAMES or f"{name}_s" in _QUEUE_NAMES:
            queue[name] = value
        else:
            known = _SPARK_NAMES | _QUEUE_NAMES
            raise ConfigError(f"unknown option {name!r}; {meant(name, known)}known: {', '.join(sorted(known))}")
    return spark, queue


def make_place(
    url: str,
    queue: str,
    options: Mapping[str, Any],
    *,
    codec: str,
    client_id: str = DEFAULT_CLIENT_ID,
    farm_id: str = DEFAULT_FARM_ID,
    config: str | os.PathLike[str] | None = None,
) -> Place:
    """The place of a queue that is published to: registered in the store if it was not there.

    Args:
        options: settings of ``[spark]`` and ``[queue]``; those of the queue count like arguments of ``app.queue``.
        codec: for a queue that is not there yet, unless the options name one.
        config: a settings file.

    Raises:
        ConfigError, InvalidNameError, QueueMismatchError (a stored queue has other settings than asked for),
        StoreUnreachableError.
    """
    spark, given = _split(options)
    asked = str(given.pop("codec", "auto"))
    store = _open(url, client_id, farm_id)
    stored = store.queues.get(queue)
    name = asked if asked != "auto" else codec if stored is None else stored.codec
    if name not in _CODECS:
        raise ConfigError(f"codec = {name!r} is not one of auto, {', '.join(_CODECS)}")
    must_have_shards(queue, stored, given)
    app = Ignis(url, client_id=client_id, farm_id=farm_id, config=config)
    try:
        app.queue(queue, _CODECS[name], codec=name, **given).open()
        return _place(app, store, queue, spark)
    finally:
        app.close()


def must_keep_later(place: Place) -> None:
    """Raises DelayNotSupportedError where the store keeps no delayed messages."""
    magazines = place.open().magazines
    if not magazines.keeps_later:
        raise DelayNotSupportedError(type(magazines).__name__)


def must_have_shards(queue: str, stored: QueueRecord | None, given: Mapping[str, Any]) -> None:
    """Raises QueueMismatchError when a queue that is there is asked for with another number of shards: messages in shards
    that its consumers do not know of would not be found."""
    wanted = given.get("shards")
    if stored is not None and wanted is not None and str(wanted) != str(stored.shards):
        raise QueueMismatchError(
            f"queue {queue!r} is stored with {stored.shards} shards, asked for {wanted}; leave it out"
        )


def find_place(
    url: str,
    queue: str,
    options: Mapping[str, Any],
    *,
    client_id: str = DEFAULT_CLIENT_ID,
    farm_id: str = DEFAULT_FARM_ID,
    config: str | os.PathLike[str] | None = None,
) -> Place:
    """The place of a queue that is read from.

    Raises:
        QueueNotFoundError: there is none of that name. ConfigError, StoreUnreachableError.
    """
    spark, given = _split(options)
    if given:
        raise ConfigError(
            f"option {min(given)!r} is a queue's: it is set where the queue is made, not where it is read"
        )
    store = _open(url, client_id, farm_id)
    if store.queues.get(queue) is None:
        raise QueueNotFoundError(f"queue {queue!r} is not in store {redacted(url)}")
    app = Ignis(url, client_id=client_id, farm_id=farm_id, config=config)
    try:
        app.queue(queue).open()
        return _place(app, store, queue, spark)
    finally:
        app.close()


def _place(app: Ignis, store: Store, queue: str, spark: Mapping[str, Any]) -> Place:
    settings = app.queue(queue).settings
    record = store.queues.get(queue)
    if record is None:
        raise QueueNotFoundError(f"queue {queue!r} was removed")
    return Place(
        url=app.url or "",
        client_id=app.client_id,
        farm_id=app.farm_id,
        queue=queue,
        shards=settings.shards,
        ttl_s=settings.message_expiry_s or None,
        stuck_after_s=settings.stuck_after_s,
        codec=record.codec,
        max_message_bytes=settings.max_message_bytes,
        settings=resolve(SparkSettings, spark, app.file),
        drops=on_expiry_of(record) == DROP,
        traced=app.tracing_settings.enabled,
        max_headers_bytes=settings.max_headers_bytes,
    )


def split_options(options: Mapping[str, str], *others: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a data source: those that name the queue, for `make_place` and `find_place`, and the settings.

    ``others`` are left out. Raises ConfigError when ``url`` or ``queue`` is missing.
    """
    for name in ("url", "queue"):
        if not options.get(name):
            raise ConfigError(f"option {name} is missing")
    names = {name: options[name] for name in ("url", "queue", "client_id", "farm_id", "config") if name in options}
    left_out = {*names, *others, *_SPARKS_OWN}
    return names, {name: value for name, value in options.items() if name.lower() not in left_out}
