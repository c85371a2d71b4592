"""The producers' side of a relay, in the shape of a store: ``Ignis("relay:///dev/shm/ignis")``.

It takes messages in and nothing else. ``queue.publish`` returns when the relay has stored the message, as every store
promises; ``queue.publisher().send`` returns when the message is in the channel, after about a microsecond.
"""

from __future__ import annotations

import builtins
import errno
import itertools
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote

from ignis.config import PublisherSettings, RelaySettings, load_file, parse_bool, resolve
from ignis.errors import (
    ClosedError,
    ConfigError,
    DelayNotSupportedError,
    RegionIOError,
    RelayAbsentError,
    RelayRefusedError,
    StoreUnreachableError,
    WaitTimeoutError,
)
from ignis.later import due_time_ms
from ignis.log_format import event_text
from ignis.magazine import Magazine
from ignis.native import MAX_ENVELOPE_BYTES, MappedOutbox, PackedBatch, Record, process_alive
from ignis.process_hooks import on_fork
from ignis.relay.channel_label import DELAYED_VERSION, VERSION, Label, record_of, settings_of
from ignis.relay.directory import CHANNEL_SUFFIX, RelayDirectory
from ignis.relay.due_times import with_due
from ignis.relay.lost_channel import Loss, give_up
from ignis.relay.publish_only import NoArrays, NoLocks, NoReading, refuse
from ignis.relay.publisher import RelayPublisher
from ignis.storage.base import Fence, QueueRecord, QueueStore, Store
from ignis.storage.checks import check_dues
from ignis.urls import redacted

__all__ = ["RelayStore", "open_store"]

log = logging.getLogger("ignis.relay")

_LARGEST = 2
"""Messages of the largest kinds that a channel holds at least."""
_SMALL_BYTES = 1 << 15
"""Messages of up to this size, or an eighth of the byte ring, share its room; those above it have slots of their own."""
_IN_CHANNEL = "is not durable"
"""In the text of a channel's wait that ran out: the message was sent."""

_USUAL_BYTES = 1 << 20

_serial = itertools.count(1)
_stores: weakref.WeakSet[RelayStore] = weakref.WeakSet()


def open_store(parts: SplitResult, client_id: str, farm_id: str, options: dict[str, Any]) -> RelayStore:
    """Opens ``relay:///directory``; its query and ``options`` may have any of ``[relay]`` in ``docs/settings.md``."""
    merged: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    create = parse_bool(merged.pop("create", True), "create")
    path = unquote(parts.netloc + parts.path)
    if not path:
        raise ConfigError("a relay URL names a directory; write relay:///dev/shm/ignis")
    if not path.startswith("/") and "@" in parts.query + parts.fragment:  # a login, with a mark in its password
        raise ConfigError(f"a relay URL takes no login: {redacted(parts.geturl())}; write relay:///dev/shm/ignis")
    if not create and path.startswith("/") and not os.path.exists(path):
        raise StoreUnreachableError(f"no relay at {path}: there is no such directory")
    return RelayStore(path, resolve(RelaySettings, merged, load_file(None)), client_id=client_id, farm_id=farm_id)


class RelayStore(Store):
    """The store of a producer: it publishes through a relay and can do nothing else.

    Thread-safe. Usable in a child after ``fork``, which makes channels of its own.

    Args:
        path: the directory, made with mode 0700 when it is not there. No relay need run yet: channels wait for one.
        settings: ``[relay]``.
        client_id, farm_id: of the application; the relay serves one.

    Raises:
        ConfigError: the directory is not private, or the relay there serves another application.
        StoreUnreachableError.
    """

    def __init__(self, path: str, settings: RelaySettings, *, client_id: str = "ignis", farm_id: str = "local") -> None:
        made = not os.path.lexists(path)
        self.directory = RelayDirectory(path)
        if made:
            self._say_made()
        self.settings = settings
        self.client_id = client_id
        self.farm_id = farm_id
        self.url = f"relay://{path}"
        self.opening = threading.RLock()
        self._closed = False
        state = self.directory.read_state()
        # Of a relay that lives: the words of an earlier one stand there until the next has written its own. Should we
        # miss the difference here, the relay refuses the channel.
        if self._lives(state) and (state.get("client_id"), state.get("farm_id")) != (client_id, farm_id):
            raise ConfigError(
                f"the relay on {path} serves client_id={state.get('client_id')!r}, farm_id={state.get('farm_id')!r}, "
                f"not {client_id!r}, {farm_id!r}; every application needs a directory and a relay of its own"
            )
        self.queues: RelayQueues = RelayQueues(self)
        self.magazines: RelayMagazines = RelayMagazines(self)
        self.locks = NoLocks(self.url)
        self.arrays = NoArrays(self.url)
        on_fork(in_child=_in_child)
        _stores.add(self)

    def _say_made(self) -> None:
        """The path may be misspelt, and a publish says so only when it has waited."""
        log.warning(
            event_text("relay_directory_made", "relay directory %s was not there and is made; no relay runs on it yet"),
            self.directory.path,
        )

    # -- channels

    def new_outbox(self, queue: str, max_message_bytes: int, capacity: int, *, delayed: bool = False) -> MappedOutbox:
        """A channel for messages of this queue by this process: a file of its own. ``delayed``: each has a due time in its
        envelope, see `ignis.relay.due_times`.

        Raises:
            PublishOnlyError: not the main magazine of a queue. RegionIOError: no room for the file (ENOSPC). ConfigError,
            StoreUnreachableError: the directory was removed meanwhile, and what is there now is not private, or it cannot be
            made.
        """
        if self._closed:
            raise ClosedError(f"{self.url} is closed")
        record = self.queues.known(queue)
        if record is None:
            refuse(f"magazine {queue!r}, which is no queue,", self.url)
        label = Label(
            DELAYED_VERSION if delayed else VERSION,
            queue,
            record.codec,
            self.client_id,
            self.farm_id,
            settings_of(record, self.queues.chosen_of(queue)),
        )
        if self.directory.make():
            self._say_made()
        name = f"{queue}.{os.getpid()}-{next(_serial)}-{secrets.token_hex(4)}{CHANNEL_SUFFIX}"
        path = self.directory.channels / name
        capacity = min(self.settings.capacity, 1 << (capacity.bit_length() - 1))
        room = max(4_096, min(capacity * self.settings.bytes_per_message, 1 << 28))
        try:
            outbox = MappedOutbox(
                capacity=capacity,
                max_message_bytes=max_message_bytes,
                size_classes=_size_classes(room, max_message_bytes),
                bytering_bytes=room,
                small_message_bytes=min(_SMALL_BYTES, room // 8),
                path=path,
                label=label.encoded(),
                bell=self.directory.bell,
            )
        except RegionIOError as exc:
            if exc.errno != errno.ENOSPC:
                raise
            text = (
                f"no room in the file system for {capacity} messages that wait for the relay (relay.capacity), at "
                f"{self.settings.bytes_per_message} bytes each (relay.bytes_per_message)"
            )
            raise RegionIOError(exc.errno, text, str(self.directory.path)) from exc
        outbox.on_timeout = lambda what: self.timed_out(what, _IN_CHANNEL in what, path)
        outbox.on_refusal = lambda: RelayRefusedError(name, self.directory.refusal_of(path))
        outbox.on_loss = Loss(self.directory, path)
        return outbox

    def check_delays(self) -> None:
        """Raises DelayNotSupportedError: the relay that runs has a store that keeps none, or is of a version that knows none.
        Where none runs the next one decides, and refuses the channel if it has to."""
        state = self.directory.read_state()
        if not self._lives(state) or state.get("keeps_later") is True:
            return
        store = f"the store of the relay on {self.directory.path}"
        if "keeps_later" not in state:
            store = f"the relay on {self.directory.path}, which is of an earlier version,"
        raise DelayNotSupportedError(store)

    def due_ms(self, delay: Any, at: Any) -> int:
        """See `Channels.due_ms`."""
        return due_time_ms(self, delay, at)

    def _lives(self, state: dict[str, Any]) -> bool:
        return process_alive(_number(state.get("pid")), _number(state.get("start_time")))

    def timed_out(self, what: str, sent: bool = False, channel: Path | None = None) -> WaitTimeoutError:
        """The error for a wait that ran out: it says whether a relay was there to wait for. ``sent``: the message is in the
        channel, and is stored in the end; so nobody is to publish it again. ``channel``: its file, as far as that is known."""
        if sent and channel is not None and not os.path.lexists(channel):
            what += (
                f"; the channel {channel} was removed or moved, and only the relay that has it open stores what was sent: "
                "published again, it may be stored twice"
            )
        elif sent:
            what += "; what was sent stays in the channel and is stored by a relay later: published again, it is stored twice"
        if not self.directory.relay_present():
            return RelayAbsentError(str(self.directory.path), what, sent)
        error = WaitTimeoutError(f"{what}; a relay runs on {self.directory.path} and has not taken it")
        error.retryable = not sent
        return error

    def open_publisher(self, magazine: Magazine[Any], settings: PublisherSettings) -> RelayPublisher[Any]:
        """A publisher whose messages lie in the channel's file from the moment that `send` returns."""
        return RelayPublisher(magazine, settings, self)

    # -- the rest of a store

    @property
    def owner(self) -> str:
        return f"producer-{os.getpid()}"

    @property
    def local_dir(self) -> str | None:
        return str(self.directory.path)

    def check_consuming(self) -> None:
        refuse("running handlers", self.url)

    @property
    def queues_unknown(self) -> str:
        if self.directory.read_state():
            return ""
        path = self.directory.path
        return f"no relay has run on {path} yet, which knows them (start: ignis relay --dir {path} --url ...)"

    def stats(self) -> dict[str, int | float | str]:
        present = self.directory.relay_present()
        state = self.directory.read_state()
        pid = state.get("pid")
        return {
            "kind": "relay",
            "directory": str(self.directory.path),
            "relay": str(pid) if present else "absent" if state else "absent: none has run here yet",
            "channels": len(self.directory.channel_files()),
        }

    def close(self, timeout: float = 30.0) -> None:
        if not self._closed:
            self._closed = True
            self.magazines.close()

    def begin_in_child(self) -> None:
        """After ``fork``: nothing that another thread of the parent may have held is used again."""
        self.opening = threading.RLock()
        self.magazines.begin_in_child()


class RelayQueues(QueueStore):
    """The queues' settings: what the relay wrote down of them, and what this process was given."""

    def __init__(self, store: RelayStore) -> None:
        self._store = store
        self._given: dict[str, QueueRecord] = {}
        self._chosen: dict[str, set[str]] = {}

    tells_removed = False
    """A relay that has not seen a queue yet does not know it, and one that was removed it makes anew."""

    def get(self, name: str) -> QueueRecord | None:
        """As the relay last wrote it down; None when there is no such queue, or no relay ever ran here."""
        return record_of(name, self._store.directory.read_state())

    def put(self, record: QueueRecord) -> None:
        """Remembered here; the relay registers the queue when it finds the first channel of it."""
        self._given[record.name] = record

    def chosen(self, name: str, settings: set[str]) -> None:
        """Remembered here: the relay compares them with the queue's, should there be one."""
        self._chosen[name] = settings

    def chosen_of(self, name: str) -> set[str]:
        """What this process's own code chose of the queue's settings."""
        return self._chosen.get(name, set())

    def known(self, name: str) -> QueueRecord | None:
        """What this process was given, or what the relay wrote down."""
        return self._given.get(name) or self.get(name)

    def update(self, name: str, change: Callable[[QueueRecord], None], fence: Fence | None = None) -> QueueRecord:
        refuse("changing a queue", self._store.url)

    def list(self, active: bool | None = None) -> builtins.list[QueueRecord]:
        state = self._store.directory.read_state()
        names = state.get("queues")
        found = [record_of(name, state) for name in sorted(names)] if isinstance(names, dict) else []
        return [one for one in found if one is not None and active in (None, one.active)]

    def remove(self, name: str) -> bool:
        refuse("removing a queue", self._store.url)


class RelayMagazines(NoReading):
    """`load` for those who want to know that their message is stored: one channel per queue and process, made when needed."""

    def __init__(self, store: RelayStore) -> None:
        super().__init__(store.url)
        self._store = store
        self._outboxes: dict[tuple[str, int, bool], MappedOutbox] = {}
        self._lock = threading.Lock()

    @property
    def keeps_later(self) -> bool:  # type: ignore[override]
        """Whether the relay takes delayed messages; that of one that does not run yet is not known."""
        try:
            self._store.check_delays()
        except DelayNotSupportedError:
            return False
        return True

    def declare(self, magazine: str, shards: int, durability: str = "sync") -> None:
        """Nothing to do: the relay declares what it finds channels for."""

    def load(self, magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None) -> list[int]:
        """Sends the records to the relay and waits until it has stored them; durable on return as in the relay's store.

        The pointers are not known here: 0 for each. So is the shard: the relay routes by key, and spreads the rest.

        Raises:
            WaitTimeoutError, RelayAbsentError: not stored in ``relay.timeout_s``. What was sent stays in the channel and is
            stored later; then the error is not ``retryable``. RelayRefusedError. StoreUnreachableError: the channel was removed
            or moved meanwhile, see `Loss`.
        """
        self._send(magazine, [record for _, batch in batches for record in batch.records()], delayed=False)
        return [0] * len(batches)

    def load_later(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        dues_ms: Sequence[Sequence[int]],
        ttl_s: float | None,
    ) -> list[int]:
        """`load` with a due time, by the wall clock, for each record. Raises DelayNotSupportedError too."""
        check_dues(dues_ms, [batch.count for _, batch in batches])
        self._store.check_delays()
        records = []
        for (_, batch), dues in zip(batches, dues_ms, strict=True):
            for data, due_ms in zip(batch.records(), dues, strict=True):
                record = Record(bytes(data))
                records.append(record.replace(meta=with_due(record.meta, due_ms)))
        if records:
            self._send(magazine, records, delayed=True)
        return [0] * len(batches)

    def _send(self, magazine: str, records: Sequence[bytes], *, delayed: bool) -> None:
        timeout_s = self._store.settings.timeout_s
        outbox = self._outbox(magazine, max(map(len, records)), delayed)
        if outbox.look():
            outbox = self._outbox(magazine, max(map(len, records)), delayed)
        last = 0
        for number, record in enumerate(records):
            try:
                last = outbox.send_record(record, timeout_s)
            except ClosedError:
                if number or not outbox.lost:
                    raise
                # Another thread has found the channel lost, and given it up: nothing of these is in it.
                self._send(magazine, records, delayed=delayed)
                return
            except WaitTimeoutError as exc:
                if not number:
                    raise
                rest = (
                    f"the last {len(records) - number} of {len(records)} messages found no room within {timeout_s:g} s"
                )
                raise self._store.timed_out(f"{rest}, the others were sent", sent=True) from exc
        outbox.wait_settled(last, timeout_s)
        error = outbox.error_of(last)  # a channel that fails fails to its end
        if error is not None:
            raise error

    def names(self) -> list[str]:
        return [record.name for record in self._store.queues.list()]

    def _outbox(self, magazine: str, record_bytes: int, delayed: bool) -> MappedOutbox:
        """One for messages of up to 1 MiB, and one more for each power of two above that, should such a message come."""
        limit = max(_USUAL_BYTES, 1 << (record_bytes - 1).bit_length())
        found = self._outboxes.get((magazine, limit, delayed))
        if found is not None and not found.lost:
            return found
        with self._lock:
            lost = self._outboxes.get((magazine, limit, delayed))
            if lost is not None and not lost.lost:
                return lost
            found = self._store.new_outbox(magazine, limit, self._store.settings.capacity, delayed=delayed)
            self._outboxes[magazine, limit, delayed] = found
        if lost is not None:
            give_up(lost)
        return found

    def close(self) -> None:
        with self._lock:
            for outbox in self._outboxes.values():
                outbox.close()
            self._outboxes.clear()

    def begin_in_child(self) -> None:
        self._lock = threading.Lock()
        self._outboxes = {}


def _size_classes(room: int, max_message_bytes: int) -> list[tuple[int, int]]:
    """Slots for what is too large for the byte ring of ``room`` bytes: an eighth of its bytes for each size, in steps of
    eight, and two of the largest."""
    largest = (max_message_bytes + MAX_ENVELOPE_BYTES + 63) // 64 * 64
    classes = []
    size = min(_SMALL_BYTES, room // 8) * 4
    while size * 2 <= largest:
        classes.append((size, max(_LARGEST, room // 8 // size)))
        size *= 8
    return [*classes, (largest, _LARGEST)]


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _in_child() -> None:
    for store in list(_stores):
        store.begin_in_child()
