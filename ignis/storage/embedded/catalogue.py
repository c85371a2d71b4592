"""Names and what they stand for: magazines, in the ``sync`` environment. Keys:

* ``M | farm NUL client NUL name`` -> a magazine: id, shards, durability
* ``N`` -> the next magazine id. Ids are never used twice.
* ``G | id u32`` -> a dropped magazine whose records are still to be removed
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import msgspec

from ignis.errors import QueueNotFoundError, StoreFormatError
from ignis.storage.embedded.environment import Environment, Txn

__all__ = ["Catalogue", "MagazineInfo", "Scope"]

_U32 = struct.Struct(">I")
_LAST_ID = 0xFFFF_FFF0


class MagazineInfo(msgspec.Struct, frozen=True):
    """One declared magazine."""

    id: int
    name: str
    shards: int
    durability: str


class Scope:
    """The part of the catalogue that one application of one deployment sees."""

    __slots__ = ("_prefix",)

    def __init__(self, farm_id: str, client_id: str) -> None:
        self._prefix = f"{farm_id}\0{client_id}\0".encode()

    def key(self, kind: bytes, name: str) -> bytes:
        return kind + self._prefix + name.encode()

    def prefix(self, kind: bytes) -> bytes:
        return kind + self._prefix


def items(txn: Txn, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys with this prefix and their values, in order."""
    cursor = txn.cursor()
    more = cursor.set_range(prefix)
    while more:
        key = bytes(cursor.key())
        if not key.startswith(prefix):
            return
        yield key, bytes(cursor.value())
        more = cursor.next()


def decode_info(value: bytes | memoryview) -> MagazineInfo:
    try:
        return msgspec.msgpack.decode(value, type=MagazineInfo)
    except msgspec.MsgspecError as exc:
        raise StoreFormatError(f"store: a magazine's catalogue entry is damaged: {exc}") from exc


def get(txn: Txn, scope: Scope, name: str) -> MagazineInfo | None:
    value = txn.get(scope.key(b"M", name))
    return None if value is None else decode_info(value)


def put(txn: Txn, scope: Scope, info: MagazineInfo) -> None:
    txn.put(scope.key(b"M", info.name), msgspec.msgpack.encode(info))


def next_id(txn: Txn) -> int:
    value = txn.get(b"N")
    number: int = 1 if value is None else _U32.unpack(value)[0]
    if number >= _LAST_ID:
        raise StoreFormatError("store: all magazine ids are used up")
    txn.put(b"N", _U32.pack(number + 1))
    return number


def drop(txn: Txn, scope: Scope, name: str) -> MagazineInfo | None:
    """Takes the magazine out and notes that its records are to be removed."""
    info = get(txn, scope, name)
    if info is not None:
        txn.delete(scope.key(b"M", name))
        txn.put(b"G" + _U32.pack(info.id), b"")
    return info


def forget_dropped(txn: Txn, magazine_id: int) -> None:
    txn.delete(b"G" + _U32.pack(magazine_id))


def read_dropped(env: Environment) -> list[int]:
    with env.reading() as txn:
        return [_U32.unpack(key[1:])[0] for key, _ in items(txn, b"G")]


def read_all(env: Environment) -> list[MagazineInfo]:
    """The magazines of all applications."""
    with env.reading() as txn:
        return [decode_info(value) for _, value in items(txn, b"M")]


class Catalogue:
    """Remembers the magazines of one scope. Thread-safe.

    ``changed`` is a number that other processes raise when they change the catalogue; what is remembered is good as
    long as it stays the same.
    """

    def __init__(self, env: Environment, scope: Scope) -> None:
        self.scope = scope
        self._env = env
        self._lock = threading.Lock()
        self._seen = -1
        self._known: dict[str, MagazineInfo] = {}

    def remembered(self, name: str, changed: int) -> MagazineInfo | None:
        """What `find` would return without looking into the store; None when it would have to look."""
        return self._known.get(name) if changed == self._seen else None

    def find(self, name: str, changed: int) -> MagazineInfo:
        """Raises QueueNotFoundError when it is not declared."""
        if changed == self._seen:
            info = self._known.get(name)
            if info is not None:
                return info
        with self._env.reading() as txn:
            info = get(txn, self.scope, name)
        with self._lock:
            if changed != self._seen:
                self._known = {}
                self._seen = changed
            if info is not None:
                self._known[name] = info
        if info is None:
            raise QueueNotFoundError(f"magazine {name!r} is not declared in this store")
        return info
