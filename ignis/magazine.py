"""Magazines: a sharded, persistent sequence of messages with load, fire, reload, delete and peek.

The raw layer under queues, for users who want to decide themselves when a message leaves the store. A queue is two of
these: the main one and its sideline.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload
from uuid import UUID

from ignis.config import check_name
from ignis.errors import ConfigError, MessageTooLargeError, UnreadableMessageError
from ignis.message import BodyCodec, Message, encode_key, encode_meta
from ignis.native import PackedBatch, Record
from ignis.storage.base import MagazineStore, ShardState, Store, group_pointers
from ignis.storage.underway import Loading

__all__ = ["Fired", "Magazine", "MagazineManager", "MessageIds", "Published"]

M = TypeVar("M")

SIDELINE_SUFFIX = "_SIDELINE"
"""A queue's sideline is the magazine of the queue's name with this behind it."""

_CHUNK_BODIES = 8_192
"""Messages encoded before they are handed to the store in one transaction by `Magazine.load_many`."""


class Published(NamedTuple):
    """Where a message went. Durable, as the magazine's setting promises, when this exists.

    ``shard`` -1 and ``pointer`` 0: another process stored it (a relay), and only that one knows where.
    """

    id: str
    shard: int
    pointer: int


class MessageIds(Sequence[str]):
    """The ids of many published messages, in order; made into text when looked at."""

    __slots__ = ("_ids",)

    def __init__(self, ids: list[bytes]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [str(UUID(bytes=one)) for one in self._ids[index]]
        return str(UUID(bytes=self._ids[index]))

    def __repr__(self) -> str:
        return f"<{len(self._ids)} message ids>"


class Fired(Generic[M]):
    """A claimed message. ``message`` is decoded on first use; ``corrupt`` ones have no readable record."""

    __slots__ = ("_codec", "pointer", "record", "shard")

    def __init__(self, shard: int, pointer: int, record: bytes | None, codec: BodyCodec[M]) -> None:
        self.shard = shard
        self.pointer = pointer
        self.record = record
        self._codec = codec

    @property
    def corrupt(self) -> bool:
        return self.record is None

    @property
    def envelope(self) -> Message:
        """Raises UnreadableMessageError."""
        if self.record is None:
            raise UnreadableMessageError(f"record at shard {self.shard}, pointer {self.pointer} is corrupt")
        return Message(Record(self.record))

    @property
    def message(self) -> M:
        """The decoded body. Raises UnreadableMessageError."""
        return cast(M, self._codec.decode_checked(self.envelope.body))

    def __repr__(self) -> str:
        return f"<Fired shard={self.shard} pointer={self.pointer}>"


class Magazine(Generic[M]):
    """One magazine. Thread-safe. Not usable in a child after ``fork`` (ForkedHandleError from the store).

    Made by `MagazineManager.get` (``app.magazine``), which declares it in the store.
    """

    def __init__(
        self, store: Store, name: str, codec: BodyCodec[M], shards: int, ttl_s: float | None, durability: str,
        max_message_bytes: int,
    ) -> None:  # fmt: skip
        self.name = name
        self.codec = codec
        self.shards = shards
        self.ttl_s = ttl_s
        self.durability = durability
        self.max_message_bytes = max_message_bytes
        self._store = store
        self._magazines: MagazineStore = store.magazines
        self._next_shard = itertools.count()

    @property
    def store(self) -> MagazineStore:
        """The store's side of it."""
        return self._magazines

    @property
    def asked_for(self) -> tuple[BodyCodec[M], int, float | None, str, int]:
        """What it was made with."""
        return self.codec, self.shards, self.ttl_s, self.durability, self.max_message_bytes

    def load(self, message: M, *, key: str | bytes | None = None, headers: dict[str, Any] | None = None) -> Published:
        """Appends one message; durable on return.

        Args:
            message: of the magazine's type.
            key: messages of one key go to one shard and keep their order there; None spreads them.
            headers: a small map of your own, kept in the envelope.

        Raises:
            InvalidMessageError, MessageTooLargeError, StoreFullError, StoreFailedError.
        """
        body = self.codec.encode_checked(message)
        if len(body) > self.max_message_bytes:
            raise MessageTooLargeError(len(body), self.max_message_bytes, "queue.max_message_bytes")
        meta = encode_meta(headers)
        batches, ids = PackedBatch.pack_bodies(
            [body],
            flags=self.codec.flags,
            keys=None if key is None else [encode_key(key)],
            shards=self.shards,
            any_shard=next(self._next_shard) % self.shards,
            metas=[meta] if meta else None,
        )
        pointer = self._magazines.load(self.name, batches, self.ttl_s)[0]
        return Published(str(UUID(bytes=ids[0])), batches[0][0] if pointer else -1, pointer)

    def load_many(
        self,
        messages: Iterable[M],
        *,
        keys: Sequence[str | bytes | None] | None = None,
        headers: dict[str, Any] | None = None,
    ) -> MessageIds:
        """Appends messages in one transaction per 8,192; all of them durable on return, in order per shard.

        Returns their ids in order. When a later transaction fails, the earlier ones stay stored.
        Raises what `load` raises; a message that cannot be encoded or is too large stops before its transaction.
        """
        todo = messages if isinstance(messages, (list, tuple)) else list(messages)
        if keys is not None and len(keys) != len(todo):
            raise ConfigError(f"{len(keys)} keys were given for {len(todo)} messages")
        encode, limit = self.codec.encode_checked, self.max_message_bytes
        meta = encode_meta(headers)
        ids: list[bytes] = []
        for start in range(0, len(todo), _CHUNK_BODIES):
            part = todo[start : start + _CHUNK_BODIES]
            bodies = [encode(message) for message in part]
            largest = max(map(len, bodies))
            if largest > limit:
                raise MessageTooLargeError(largest, limit, "queue.max_message_bytes")
            batches, part_ids = PackedBatch.pack_bodies(
                bodies,
                flags=self.codec.flags,
                keys=None if keys is None else [encode_key(key) for key in keys[start : start + _CHUNK_BODIES]],
                shards=self.shards,
                any_shard=next(self._next_shard) % self.shards,
                metas=[meta] * len(part) if meta else None,
            )
            self._magazines.load(self.name, batches, self.ttl_s)
            ids += part_ids
        return MessageIds(ids)

    def load_batches(self, batches: Sequence[tuple[int, PackedBatch]]) -> list[int]:
        """Packed batches in one transaction; returns the first pointer of each."""
        return self._magazines.load(self.name, batches, self.ttl_s)

    def begin_load(self, batches: Sequence[tuple[int, PackedBatch]], after: Loading | None = None) -> Loading | None:
        """See `BeginsLoads.begin_load`."""
        return self._magazines.begin_load(self.name, batches, self.ttl_s, after)

    def fire(self, limit: int = 1) -> list[Fired[M]]:
        """Claims up to ``limit`` messages; ``[]`` when nothing is pending. The caller now owes each a `delete`,
        `reload`, or leaves it to the sweeper."""
        if limit < 1:
            raise ConfigError(f"limit = {limit} is below 1")
        result = self._magazines.fire(self.name, limit, self._store.owner)
        return [
            Fired(claim.shard, pointer, record, self.codec)
            for claim in result.claims
            for pointer, record in zip(claim.pointers, claim.records, strict=True)
        ]

    def reload(self, fired: Iterable[Fired[M]]) -> int:
        """Puts claimed messages back at their shards' tails; returns how many were still there."""
        return self._magazines.reload(self.name, group_pointers((one.shard, one.pointer) for one in fired))

    def delete(self, fired: Iterable[Fired[M]]) -> int:
        """Retires claimed messages; returns how many were still there. Idempotent."""
        return self._magazines.delete(self.name, group_pointers((one.shard, one.pointer) for one in fired))

    def peek(self, limit: int = 10, *, pending_only: bool = True) -> list[Fired[M]]:
        """The oldest messages per shard, without claiming them."""
        rows = self._magazines.scan(self.name, limit=limit, pending_only=pending_only)
        return [Fired(shard, pointer, record, self.codec) for shard, pointer, record in rows]

    def metadata(self) -> list[ShardState]:
        """Pointers and counters per shard."""
        return self._magazines.metadata(self.name)

    def pending(self) -> int:
        """Messages loaded and not fired."""
        return sum(state.pending for state in self.metadata())

    def in_flight(self) -> int:
        """Messages fired and not finished."""
        return sum(state.in_flight for state in self.metadata())


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
        ttl_s: float | None = 172_800,
        durability: str = "sync",
        max_message_bytes: int = 1 << 20,
    ) -> Magazine[M]:
        """The magazine of that name, declared in the store when it was not. Raises QueueMismatchError when it exists
        with other settings, InvalidNameError."""
        check_name(name.removesuffix(SIDELINE_SUFFIX), "magazine")
        with self._lock:
            known = self._known.get(name)
            if known is None or known.asked_for != (codec, shards, ttl_s, durability, max_message_bytes):
                self._store.magazines.declare(name, shards, durability)
                known = Magazine(self._store, name, codec, shards, ttl_s, durability, max_message_bytes)
                self._known[name] = known
            return known

    def forget(self, name: str) -> None:
        """The next `get` declares it again: somebody may have removed it."""
        with self._lock:
            self._known.pop(name, None)
