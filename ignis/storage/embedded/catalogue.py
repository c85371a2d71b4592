"""Names and what they stand for: magazines, in the ``sync`` environment. Keys:

* ``M | farm NUL client NUL name`` -> a magazine: id, shards, durability
* ``N`` -> the next magazine id. Ids are never used twice.
* ``G | id u32`` -> a dropped magazine whose records are still to be removed
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterator

import msgspec

from ignis.errors import QueueNotFoundError, StoreFormatError
from ignis.storage.checks import DURABILITIES, MAX_SHARDS, check_magazine
from ignis.storage.embedded.environment import Environment, Txn

__all__ = ["Catalogue", "MagazineInfo", "Scope"]

log = logging.getLogger("ignis.storage")

_U32 = struct.Struct(">I")
_LAST_ID = 0xFFFF_FFF0


class MagazineInfo(msgspec.Struct, frozen=True):
    """One declared magazine. ``incarnation``: see `ignis.storage.base.ShardState`; 0 = declared before there was one."""

    id: int
    name: str
    shards: int
    durability: str
    incarnation: int = 0


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


def decode_info(name: str, value: bytes | memoryview) -> MagazineInfo:
    """The entry of the magazine of that name. Raises StoreFormatError, which concerns this magazine alone."""
    try:
        info = msgspec.msgpack.decode(value, type=MagazineInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise _damaged(name, str(exc)) from exc
    if not 0 < info.id < _LAST_ID:
        raise _damaged(name, f"its id is {info.id}")
    if not 1 <= info.shards <= MAX_SHARDS:
        raise _damaged(name, f"shards = {info.shards} is outside 1 to {MAX_SHARDS}")
    if info.durability not in DURABILITIES:
        raise _damaged(name, f"durability = {info.durability!r} is not one of {', '.join(DURABILITIES)}")
    if info.name != name:
        raise _damaged(name, f"it names {info.name!r}")
    return info


def _damaged(name: str, why: str) -> StoreFormatError:
    return StoreFormatError(
        f"store: the catalogue entry of magazine {name!r} is damaged: {why}; its records are not touched until it is dropped"
    )


def _salvaged_id(value: bytes | memoryview) -> int | None:
    """The magazine's id in an entry that is damaged, where it can still be told."""
    try:
        found = msgspec.msgpack.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    number = found.get("id") if isinstance(found, dict) else None
    return number if type(number) is int and 0 < number < _LAST_ID else None


def get(txn: Txn, scope: Scope, name: str) -> MagazineInfo | None:
    value = txn.get(scope.key(b"M", name))
    return None if value is None else decode_info(name, value)


def put(txn: Txn, scope: Scope, info: MagazineInfo) -> None:
    txn.put(scope.key(b"M", info.name), msgspec.msgpack.encode(info))


def next_id(txn: Txn) -> int:
    value = txn.get(b"N")
    if value is not None and len(value) != _U32.size:
        raise StoreFormatError(
            f"store: the next magazine id is damaged ({len(value)} bytes): no magazine can be declared"
        )
    number: int = 1 if value is None else _U32.unpack(value)[0]
    if number >= _LAST_ID:
        raise StoreFormatError("store: all magazine ids are used up")
    txn.put(b"N", _U32.pack(number + 1))
    return number


def drop(txn: Txn, scope: Scope, name: str) -> int | None:
    """Takes the magazine out and notes that its records are to be removed. Returns its id; None = nothing is left to remove.

    A damaged entry goes too. Where not even the id can be told from it the records stay, and nothing refers to them.
    """
    key = scope.key(b"M", name)
    value = txn.get(key)
    if value is None:
        return None
    number = _salvaged_id(value)
    txn.delete(key)
    if number is None:
        log.error("store: magazine %s was dropped, its damaged entry does not say which records are its own", name)
        return None
    txn.put(b"G" + _U32.pack(number), b"")
    return number


def forget_dropped(txn: Txn, magazine_id: int) -> None:
    txn.delete(b"G" + _U32.pack(magazine_id))


def read_dropped(env: Environment) -> list[int]:
    with env.reading() as txn:
        keys = [key[1:] for key, _ in items(txn, b"G")]
    return [_U32.unpack(key)[0] for key in keys if len(key) == _U32.size]


def read_all(env: Environment) -> tuple[list[MagazineInfo], bool]:
    """The magazines of all applications, without those whose entry is damaged: they are logged, and who uses them is told.

    The second value says whether there is one: then a magazine that is not among the first may exist all the same.
    """
    found: list[MagazineInfo] = []
    damaged = False
    with env.reading() as txn:
        for key, value in items(txn, b"M"):
            name = text_of(key.rpartition(b"\0")[2])
            try:
                found.append(decode_info(name, value))
            except StoreFormatError as exc:
                log.error("%s", exc)
                damaged = True
    return found, damaged


def text_of(name: bytes) -> str:
    """A name as it stands in a key; what is no UTF-8 in it is shown, so that a listing goes on."""
    return name.decode("utf-8", "backslashreplace")


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
        check_magazine(name)
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
