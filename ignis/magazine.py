"""Magazines: sharded, persistent sequences of messages with load, fire, reload, delete and peek.

They are the raw layer under queues, for users who decide themselves when a message leaves the store. A queue is two
magazines: the main one and its sideline.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

from ignis.config import MAX_EXPIRY_S, check_number, check_queue_name, check_whole, shown
from ignis.deadlines import Deadline, check_deadline
from ignis.errors import (
    ConfigError,
    IgnisError,
    InvalidMessageError,
    InvalidNameError,
    MessageTooLargeError,
    PublishOnlyError,
    QueueMismatchError,
    QueueNotFoundError,
    StoreUnreachableError,
    UnreadableMessageError,
)
from ignis.log_format import event_text
from ignis.message import MAX_HEADERS_BYTES, BodyCodec, Message, encode_key, encode_meta
from ignis.message_parts import encoded_parts, source_of, stops
from ignis.native import PackedBatch, Record, id_text
from ignis.native.wire import route_batch
from ignis.registration import Registration
from ignis.storage.base import MOST_FRUITLESS, MagazineStore, ShardState, Store
from ignis.storage.later import LATER_SUFFIX
from ignis.storage.pending_load import PendingLoad
from ignis.storage.records import group_pointers

__all__ = ["Fired", "Magazine", "MagazineManager", "MessageIds", "Published", "queue_of", "route_with_dues"]

M = TypeVar("M")
T = TypeVar("T")

ID_BYTES = 16

log = logging.getLogger("ignis.magazine")

SIDELINE_SUFFIX = "_SIDELINE"
"""The name of a queue's sideline magazine is the queue's name with this behind it."""

MAX_SHARDS = 65_535
MAX_MESSAGE_BYTES = 16 << 20

_row = tuple.__new__
"""Makes a named tuple without the function of Python's that its class makes one with."""

_ENVELOPE_BYTES = 128
"""At most what a record has besides its body, key and headers."""


def route_with_dues(
    batches: Sequence[tuple[int, PackedBatch]], dues_ms: Sequence[Sequence[int]], shards: int
) -> tuple[list[tuple[int, PackedBatch]], list[Sequence[int]]]:
    """Batches by the keys of their records, each record with its due time: see `Magazine.routed`."""
    routed: list[tuple[int, PackedBatch]] = []
    times: list[Sequence[int]] = []
    for (shard, batch), dues in zip(batches, dues_ms, strict=True):
        beside = struct.pack(f">{len(dues)}q", *dues)  # they go where their records go
        for to, part, theirs in route_batch(batch, shards, shard % shards, beside):
            assert theirs is not None
            routed.append((to, part))
            times.append(struct.unpack(f">{part.count}q", theirs))
    return routed, times


def queue_of(magazine: str) -> str:
    """The queue that a magazine belongs to: its main one, its sideline, or the one in which its delayed messages wait."""
    return magazine.removesuffix(SIDELINE_SUFFIX).removesuffix(LATER_SUFFIX)


class Published(NamedTuple):
    """The id and the place of a published message. The message is as durable as the magazine's ``durability`` promises.

    ``shard`` is -1 and ``pointer`` 0 when the place is not known: the message is delayed, or a relay has stored it.
    """

    id: str
    shard: int
    pointer: int


class MessageIds(Sequence[str]):
    """A sequence of the ids of published messages, in order. It keeps bytes, and makes the text of an id when it is read.

    Immutable."""

    __slots__ = ("_ids",)

    def __init__(self, ids: bytes) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids) // ID_BYTES

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        places = range(len(self))[index]  # raises IndexError
        if isinstance(places, range):
            return [self[place] for place in places]
        return id_text(self._ids[places * ID_BYTES : (places + 1) * ID_BYTES])

    def __repr__(self) -> str:
        return f"<{len(self)} message ids>"


class Fired(Generic[M]):
    """A claimed message with its place. `message` decodes it at each use; a `corrupt` one has no readable record. Nothing in it
    is changed later."""

    __slots__ = ("_codec", "pointer", "record", "shard")

    def __init__(self, shard: int, pointer: int, record: bytes | None, codec: BodyCodec[M]) -> None:
        self.shard = shard
        self.pointer = pointer
        self.record = record
        self._codec = codec

    @property
    def corrupt(self) -> bool:
        """Whether its bytes did not match their checksum, so that there is no message to read."""
        return self.record is None

    @property
    def envelope(self) -> Message:
        """The message's id, headers and body in bytes. Raises UnreadableMessageError."""
        if self.record is None:
            raise UnreadableMessageError(f"record at shard {self.shard}, pointer {self.pointer} is corrupt")
        return Message(Record(self.record))

    @property
    def message(self) -> M:
        """The decoded body. Raises UnreadableMessageError."""
        return cast(M, self._codec.decode_checked(self.envelope.body))

    def __repr__(self) -> str:
        return f"<Fired shard={self.shard} pointer={self.pointer}>"


def _unsure(name: str) -> StoreUnreachableError:
    """The error of a load that had begun when there was no memory left."""
    return StoreUnreachableError(f"{name}: no memory is left; whether the message is stored is not known")


class Magazine(Generic[M]):
    """An append-only log of messages, without handlers. Queues are made of magazines.

    It has shards, which elsewhere are partitions. A message's place in its shard is a pointer, elsewhere an offset. To load
    is to append, to fire is to claim, to delete is to acknowledge, to reload is to requeue at the tail, and to peek is to
    browse without claiming.

    >>> from ignis import Ignis
    >>> with Ignis("memory://") as app:
    ...     jobs = app.magazine("jobs", str, shards=1)
    ...     published = jobs.load("first")
    ...     claimed = jobs.fire(10)
    ...     claimed[0].message, jobs.delete(claimed), jobs.pending()
    ('first', 1, 0)

    Thread-safe. In a child after ``fork`` the store raises ForkedHandleError.

    Made by `MagazineManager.get` (``app.magazine``), which declares it in the store.
    """

    def __init__(
        self, store: Store, name: str, codec: BodyCodec[M], shards: int, ttl_s: float | None, durability: str,
        max_message_bytes: int, max_headers_bytes: int = MAX_HEADERS_BYTES,
    ) -> None:  # fmt: skip
        self.name = name
        self.codec = codec
        self.shards = shards
        """The number of shards by which messages are routed here. It follows the store, see `load_batches`."""
        self._asked_shards = shards
        self.ttl_s = ttl_s
        self.durability = durability
        self.max_message_bytes = max_message_bytes
        self.max_headers_bytes = max_headers_bytes
        self._store = store
        self._magazines: MagazineStore = store.magazines
        self._next_shard = itertools.count()
        self._shards_lock = threading.Lock()
        self.registration: Registration | None = None
        """The registration of the queue whose main magazine this is; None without a queue."""

    @property
    def store(self) -> MagazineStore:
        """The store's magazines, this one among them."""
        return self._magazines

    @property
    def asked_for(self) -> tuple[BodyCodec[M], int, float | None, str, int, int]:
        """The settings that it was made with."""
        return (
            self.codec, self._asked_shards, self.ttl_s, self.durability, self.max_message_bytes, self.max_headers_bytes,
        )  # fmt: skip

    def load(
        self,
        message: M,
        *,
        key: str | bytes | None = None,
        headers: dict[str, Any] | None = None,
        deadline: Deadline | None = None,
    ) -> Published:
        """Appends one message. On return it is durable as the magazine's ``durability`` promises.

        Args:
            message: of the magazine's type.
            key: messages of one key go to one shard and keep their order there; None spreads them.
            headers: a small map of your own, kept in the envelope.
            deadline: of a queue's message, see `ignis.deadlines`.

        Raises:
            InvalidMessageError, MessageTooLargeError, StoreFullError, StoreFailedError, QueueRemovedError.
        """
        self._magazines.forewarn(self.name)  # a sleeping consumer takes as long to wake up as this message to be stored
        body = self.codec.encode_checked(message)
        if len(body) > self.max_message_bytes:
            raise MessageTooLargeError(len(body), self.max_message_bytes, "queue.max_message_bytes")
        if headers is None and deadline is None:  # most have neither
            if key is None and self._magazines.takes_bodies:
                loaded = self._load_body(body)
                if loaded is not None:
                    return _row(Published, loaded)
            meta = b""
        else:
            meta = encode_meta(headers, self.max_headers_bytes, check_deadline(deadline))
        shards = self.shards
        batches, ids = PackedBatch.pack_bodies(
            [body],
            flags=self.codec.flags,
            keys=None if key is None else [encode_key(key)],
            shards=shards,
            any_shard=next(self._next_shard) % shards,
            metas=[meta] if meta else None,
        )
        try:
            placed, (pointer,) = self.load_batches(batches, shards, None, deadline)
            return _row(Published, (id_text(ids), placed[0][0] if pointer else -1, pointer))
        except MemoryError as exc:
            raise _unsure(self.name) from exc

    def _load_body(self, body: bytes) -> tuple[str, int, int] | None:
        """`load` of a message that has a body alone, where the store takes it so; None when nothing was done."""
        registration, shards = self.registration, self.shards
        if registration is not None and (registration.removed or monotonic() >= registration.due_s):
            return None
        try:
            return self._magazines.load_body(
                self.name, next(self._next_shard) % shards, body, self.codec.flags, self.ttl_s
            )
        except (ConfigError, QueueNotFoundError) as exc:
            self._look_again(exc, shards)
            return None
        except MemoryError as exc:
            raise _unsure(self.name) from exc

    def load_many(
        self,
        messages: Iterable[M],
        *,
        keys: Sequence[str | bytes | None] | None = None,
        headers: dict[str, Any] | None = None,
        due_ms: int | None = None,
        deadline: Deadline | None = None,
    ) -> MessageIds:
        """Appends messages, 8,192 or 64 MiB in each transaction. On return all are durable, as the magazine's
        ``durability`` promises, and in order in each shard. Returns their ids in order, which take 16 bytes each.

        What is no list or tuple is read as it is stored: those of the next transaction when the last are durable.

        When a transaction fails, one of its messages cannot be encoded or is too large, or the generator that gives them raises,
        the earlier transactions stay stored. The error says how many messages that are, and has them as ``stored_messages``.

        Args:
            messages: of the magazine's type.
            keys: one key for each message; None = no keys.
            headers: given to each.
            due_ms: the messages come to the tail at this time, by the store's clock; None = at once.
            deadline: of each message, see `ignis.deadlines`.

        Raises what `load` raises.
        """
        return MessageIds(
            b"".join(self.load_parts(messages, keys=keys, headers=headers, due_ms=due_ms, deadline=deadline))
        )

    def load_parts(
        self,
        messages: Iterable[M],
        *,
        key: Callable[[M], str | bytes | None] | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        headers: dict[str, Any] | None = None,
        due_ms: int | None = None,
        deadline: Deadline | None = None,
    ) -> Iterator[bytes]:
        """`load_many` step by step: gives the ids of each transaction, 16 bytes each, when it is durable.

        ``key`` computes a message's key when the message is read. Other arguments and errors are those of `load_many`.
        """
        encode_all = self.codec.encode_all
        meta = encode_meta(headers, self.max_headers_bytes, check_deadline(deadline))
        beside_bytes, most_bytes = len(meta) + _ENVELOPE_BYTES, self._magazines.most_load_bytes
        there = self.codec.takes_any and isinstance(messages, (list, tuple))
        todo = encoded_parts(source_of(messages, key, keys), encode_all, beside_bytes, most_bytes, there=there)
        start = 0
        while True:
            try:
                part, part_keys, bodies, nbytes = next(todo)
            except StopIteration:
                return
            except Exception as exc:  # of the generator that gives the messages, or of `key`
                if start:
                    _tell_stored(exc, start)
                raise
            begin = start
            try:
                shards = self.shards
                if bodies is None:  # one of them cannot be encoded, which is said here
                    bodies = encode_all(part)
                raw_keys = None if part_keys is None else [encode_key(one) for one in part_keys]
                at = 0
                for stop in stops(bodies, raw_keys, nbytes, beside_bytes, most_bytes):
                    batches, ids = PackedBatch.pack_bodies(
                        bodies if stop - at == len(bodies) else bodies[at:stop],
                        flags=self.codec.flags,
                        keys=None if raw_keys is None else raw_keys[at:stop],
                        shards=shards,
                        any_shard=next(self._next_shard) % shards,
                        metas=[meta] * (stop - at) if meta else None,
                        max_body_bytes=self.max_message_bytes,
                    )
                    dues_ms = None if due_ms is None else [[due_ms] * batch.count for _, batch in batches]
                    try:
                        self.load_batches(batches, shards, dues_ms, deadline)
                    except MemoryError as exc:
                        raise _unsure(self.name) from exc
                    start, at = begin + stop, stop
                    yield ids
                    shards = self.shards
            except IgnisError as exc:
                if start or len(part) > 1:
                    refused = isinstance(exc, (InvalidMessageError, MessageTooLargeError, ConfigError))
                    bad = self._first_bad(part, part_keys) if refused else None
                    exc.tell_of_many(None if bad is None else begin + bad, start)
                raise
            del batches, bodies, raw_keys, part, part_keys  # the next are read before they would be let go

    def _first_bad(self, messages: Sequence[Any], keys: Sequence[Any] | None) -> int | None:
        """The first message of a part that is refused, or whose key is."""
        for index, message in enumerate(messages):
            try:
                if len(self.codec.encode_checked(message)) > self.max_message_bytes:
                    return index
                if keys is not None:
                    encode_key(keys[index])
            except IgnisError:
                return index
        return None

    def load_batches(
        self,
        batches: Sequence[tuple[int, PackedBatch]],
        shards: int | None = None,
        dues_ms: Sequence[Sequence[int]] | None = None,
        deadline: Deadline | None = None,
    ) -> tuple[Sequence[tuple[int, PackedBatch]], list[int]]:
        """Appends packed batches in one transaction. Returns them as they were stored, and the first pointer of each.

        Another process may have given the magazine more shards or fewer. When the store refuses a shard, or the registration
        has seen the change, the messages are routed anew, by their keys and the new number.

        Args:
            batches: (shard, batch).
            shards: the number that they were routed by; None = `shards`.
            dues_ms: a due time for each record of each batch: they wait for it, see `load_many`.
            deadline: as for `load_many`.

        Raises QueueRemovedError and what the store raises.
        """
        registration = self.registration
        if registration is not None and (registration.removed or monotonic() >= registration.due_s):
            registration.check()
        ttl_s = self.ttl_s if deadline is None else deadline.ttl_within(self.ttl_s)
        if shards is None or shards == self.shards:
            try:
                if dues_ms is None:  # the way of most, without a call more
                    return batches, self._magazines.load(self.name, batches, ttl_s)
                return batches, self._load(batches, dues_ms, ttl_s)
            except (ConfigError, QueueNotFoundError) as exc:
                self._look_again(exc, self.shards if shards is None else shards)
        if dues_ms is None:
            batches = self.routed(batches)
        else:
            batches, dues_ms = route_with_dues(batches, dues_ms, self.shards)
        try:
            return batches, self._load(batches, dues_ms, ttl_s)
        except QueueNotFoundError as exc:
            raise self._explained(exc) from exc

    def _load(
        self, batches: Sequence[tuple[int, PackedBatch]], dues_ms: Sequence[Sequence[int]] | None, ttl_s: float | None
    ) -> list[int]:
        if dues_ms is None:
            return self._magazines.load(self.name, batches, ttl_s)
        return self._magazines.load_later(self.name, batches, dues_ms, ttl_s)

    def _look_again(self, exc: ConfigError | QueueNotFoundError, shards: int) -> None:
        """Raises the error of a refused load, unless the magazine has another number of shards by now."""
        if isinstance(exc, QueueNotFoundError):
            raise self._explained(exc) from exc
        if not self.follow_shards() and self.shards == shards:
            raise exc
        log.debug(event_text("magazine_routed", "%s: %s"), self.name, exc)

    def _explained(self, exc: QueueNotFoundError) -> BaseException:
        return exc if self.registration is None else self.registration.explain(exc)

    def follow_shards(self) -> bool:
        """Takes over the number of shards that the magazine has in the store. Returns whether it has changed; False when the
        store cannot be asked."""
        try:
            with self._shards_lock:
                before, now = self.shards, len(self._magazines.metadata(self.name))
                self.shards = now
        except IgnisError:
            return False
        if now == before:
            return False
        log.warning(
            event_text(
                "shards_changed",
                "%s has %d shards by now, it had %d: its messages are routed anew, so a key may have gone to another shard"),
            self.name, now, before,
        )  # fmt: skip
        return True

    def routed(self, batches: Sequence[tuple[int, PackedBatch]]) -> list[tuple[int, PackedBatch]]:
        """Routes batches that were packed for another number of shards anew, by their keys. Their order is kept."""
        shards = self.shards
        return [(to, part) for shard, batch in batches for to, part, _ in route_batch(batch, shards, shard % shards)]

    def begin_load(
        self, batches: Sequence[tuple[int, PackedBatch]], shards: int, after: PendingLoad | None = None
    ) -> tuple[Sequence[tuple[int, PackedBatch]], PendingLoad] | None:
        """Begins a load, see `BeginsLoads.begin_load`. ``shards``: as for `load_batches`. Also returns the batches as they are
        stored."""
        if self.registration is not None:
            self.registration.check()
        if shards != self.shards:
            batches = self.routed(batches)
        loading = self._magazines.begin_load(self.name, batches, self.ttl_s, after)
        return None if loading is None else (batches, loading)

    def fire(self, limit: int = 1) -> list[Fired[M]]:
        """Claims up to ``limit`` messages; ``[]`` when none is pending. The caller must `delete` or `reload` each one; else the
        sweeper takes it.

        Raises ConfigError, QueueNotFoundError, StoreError."""
        if type(limit) is not int or limit < 1:
            limit = check_whole(limit, "limit", 1)
        result = self._magazines.fire(self.name, limit, self._store.owner)
        for _ in range(MOST_FRUITLESS):
            if result.claims or not result.more:
                break
            # Nothing claimed, though there may be messages: many in a row had expired, or others were quicker.
            result = self._magazines.fire(self.name, limit, self._store.owner)
        fired: list[Fired[M]] = []
        codec, take = self.codec, fired.append
        try:
            for shard, pointers, records in result.claims:
                for pointer, record in zip(pointers, records, strict=True):
                    take(Fired(shard, pointer, record, codec))
            return fired
        except MemoryError as exc:
            with contextlib.suppress(IgnisError, MemoryError):
                for claim in result.claims:
                    self._magazines.reload(self.name, {claim.shard: claim.pointers})
            raise StoreUnreachableError(f"{self.name}: no memory is left; what was claimed is given back") from exc

    def reload(self, fired: Iterable[Fired[M]]) -> int:
        """Puts claimed messages back at their shards' tails. Returns how many were still there."""
        return self._magazines.reload(self.name, _pointers(fired))

    def delete(self, fired: Iterable[Fired[M]]) -> int:
        """Removes claimed messages for good. Returns how many were still there. Idempotent."""
        return self._magazines.delete(self.name, _pointers(fired))

    def renew(self, fired: Iterable[Fired[M]]) -> list[Fired[M]]:
        """Starts the stuck time of claimed messages anew, for work that takes longer than the queue's ``stuck_after``. Call it
        a few times within that time, for all messages that are still being handled.

        Returns those that are not held any more: they are finished, swept, or another owner's. Thread-safe. Raises StoreError.
        """
        try:
            many = list(fired)
        except TypeError:
            raise ConfigError(f"{shown(fired)} is not a list of what fire() has returned") from None
        pointers = _pointers(many)
        lost = self._magazines.renew_claims(self.name, pointers, self._store.owner)
        gone = {(shard, pointer) for shard, some in lost.items() for pointer in some}
        return [one for one in many if (one.shard, one.pointer) in gone]

    def peek(self, limit: int = 10, *, pending_only: bool = True) -> list[Fired[M]]:
        """Reads up to ``limit`` messages, in shard and pointer order, without claiming them. ``pending_only``: leave out claimed
        ones. Raises as `fire` does."""
        limit = check_whole(limit, "limit", 1)
        rows = self._magazines.scan(self.name, limit=limit, pending_only=pending_only)
        return [Fired(shard, pointer, record, self.codec) for shard, pointer, record in rows]

    def metadata(self) -> list[ShardState]:
        """Returns the pointers and counters of each shard."""
        return self._magazines.metadata(self.name)

    def pending(self) -> int:
        """Returns how many messages are loaded and not claimed."""
        return sum(state.pending for state in self.metadata())

    def in_flight(self) -> int:
        """Returns how many messages are claimed and not finished."""
        return sum(state.in_flight for state in self.metadata())


class _Sideline(Magazine[M]):
    """A queue's sideline. It refuses loads by hand: each message in it has a reason, which its queue gives."""

    def load(
        self,
        message: M,
        *,
        key: str | bytes | None = None,
        headers: dict[str, Any] | None = None,
        deadline: Deadline | None = None,
    ) -> Published:
        """Refused. Raises ConfigError."""
        raise self._refused()

    def load_parts(
        self,
        messages: Iterable[M],
        *,
        key: Callable[[M], str | bytes | None] | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        headers: dict[str, Any] | None = None,
        due_ms: int | None = None,
        deadline: Deadline | None = None,
    ) -> Iterator[bytes]:
        """Refused, and `load_many` with it. Raises ConfigError."""
        raise self._refused()

    def _refused(self) -> ConfigError:
        return ConfigError(
            f"{self.name!r} is a sideline: what is there has failed, and its reason is with it. Publish to queue "
            f"{self.name.removesuffix(SIDELINE_SUFFIX)!r}"
        )


class MagazineManager:
    """Declares and remembers the magazines of one store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[str, Magazine[Any]] = {}

    def get(
        self,
        name: str,
        codec: BodyCodec[M],
        *,
        shards: int = 32,
        ttl_s: float | None = None,
        durability: str = "sync",
        max_message_bytes: int = 1 << 20,
        max_headers_bytes: int = MAX_HEADERS_BYTES,
        may_grow: bool = False,
    ) -> Magazine[M]:
        """Returns the magazine of that name, and declares it in the store if it is not there.

        Args:
            may_grow: whether a magazine that exists with fewer shards gets more; else that is an error.

        Raises ConfigError, InvalidNameError, QueueMismatchError when it exists with other settings; nothing has changed then.
        """
        if not isinstance(name, str):
            raise InvalidNameError(f"magazine name {shown(name)} is not text")
        check_queue_name(name.removesuffix(SIDELINE_SUFFIX), "magazine")
        shards = check_whole(shards, "shards", 1, MAX_SHARDS)
        ttl_s = None if ttl_s is None else check_number(ttl_s, "ttl_s", 0, MAX_EXPIRY_S, above=True)
        max_message_bytes = check_whole(max_message_bytes, "max_message_bytes", 1, MAX_MESSAGE_BYTES)
        max_headers_bytes = check_whole(max_headers_bytes, "max_headers_bytes", 0, 64 << 10)
        if not isinstance(durability, str):
            raise ConfigError(f"durability = {shown(durability)} is not text")
        asked = (codec, shards, ttl_s, durability, max_message_bytes, max_headers_bytes)
        with self._lock:
            known = self._known.get(name)
            if known is None or known.asked_for != asked:
                if not may_grow and (known is None or known.shards != shards):
                    self._check_shards(name, shards)
                self._store.magazines.declare(name, shards, durability)
                kind: Callable[..., Magazine[M]] = _Sideline if name.endswith(SIDELINE_SUFFIX) else Magazine
                known = kind(self._store, name, codec, shards, ttl_s, durability, max_message_bytes, max_headers_bytes)
                self._known[name] = known
            return known

    def stored_shards(self, name: str) -> int | None:
        """Returns how many shards the magazine has in the store; None when it is not there or cannot be looked at from here."""
        try:
            return len(self._store.magazines.metadata(name))
        except (QueueNotFoundError, PublishOnlyError):
            return None

    def _check_shards(self, name: str, shards: int) -> None:
        """Raises QueueMismatchError when the stored magazine has another number of shards, with which others go on."""
        stored = self.stored_shards(name)
        if stored is not None and stored != shards:
            raise QueueMismatchError(
                f"magazine {name!r} has {stored} shards, asked for {shards}; leave shards out to take it as it is. "
                f"A queue gets more with app.queue(name, shards={shards}), a magazine without a queue with "
                f"app.store.magazines.declare(name, {shards}, durability)"
            )

    def forget(self, name: str) -> None:
        """Forgets a magazine that may have been removed: the next `get` declares it again."""
        with self._lock:
            self._known.pop(name, None)


def _tell_stored(exc: Exception, stored: int) -> None:
    """Adds to the error of somebody else's code how many of the first messages are stored. It stays the error that it is."""
    if isinstance(exc, IgnisError):
        exc.tell_of_many(None, stored)
        return
    with contextlib.suppress(Exception):  # some errors take no attributes
        exc.stored_messages = stored  # type: ignore[attr-defined]
        if hasattr(exc, "add_note"):  # from Python 3.11 on
            exc.add_note(f"the first {stored:,} messages of the call are stored")


def _pointers(fired: Any) -> dict[int, list[int]]:
    try:
        return group_pointers((one.shard, one.pointer) for one in fired)
    except (AttributeError, TypeError):
        raise ConfigError(f"{shown(fired)} is not a list of what fire() has returned") from None
