"""Keys of the ``sync`` log: what a store keeps beside messages. Each is ``kind | farm NUL client NUL | name``:

* ``Q``: a queue's record in MessagePack (`queues`)
* ``L``, ``E``: locks and epochs (`locks`)
* ``A``: array queues (`array_queues`)

A change names the value that it found. When the key has another one by then, all of it is done again.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ignis.errors import StoreBusyError, StoreFormatError
from ignis.storage.checks import check_epoch, check_scope
from ignis.storage.records import Fence

if TYPE_CHECKING:
    from ignis.native.store import Log

__all__ = ["Change", "Keys", "Scope", "epoch_key", "read_fence"]

T = TypeVar("T")
_U64 = struct.Struct(">Q")
_MAX_PAUSE_S = 0.01


class Change(NamedTuple):
    """A key, the value that it must have (None: not there), and the one that it gets (None: it is removed)."""

    key: bytes
    expected: bytes | None
    value: bytes | None


class Scope:
    """The part of the keys that one application of one deployment sees."""

    __slots__ = ("_prefix",)

    def __init__(self, farm_id: str, client_id: str) -> None:
        self._prefix = f"{farm_id}\0{client_id}\0".encode()

    def key(self, kind: bytes, name: str) -> bytes:
        return kind + self._prefix + name.encode()

    def prefix(self, kind: bytes) -> bytes:
        return kind + self._prefix

    def name(self, kind: bytes, key: bytes) -> str:
        """That of a key with this prefix; what is no text in it, as damage leaves it, stands escaped."""
        return key[len(kind) + len(self._prefix) :].decode("utf-8", "backslashreplace")


class Keys:
    """Reads and changes the keys of one log. Thread-safe."""

    def __init__(self, log: Log, timeout_s: float) -> None:
        self._log = log
        self._timeout_s = timeout_s
        self._turn = threading.Lock()

    def get(self, key: bytes) -> bytes | None:
        return self._log.get_key(key)

    def items(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Keys with this prefix and their values, in order."""
        return sorted(self._log.keys(prefix))

    def change(self, plan: Callable[[], tuple[Sequence[Change], T]], what: str, *, foreign: bool = False) -> T:
        """Makes the changes that ``plan`` says, all or none, and returns its result once they are durable.

        ``plan`` reads what it needs and is called again when somebody else was quicker. Threads of this process then wait
        for each other, unless ``foreign``: it calls code that may take its time or call the store.

        Raises StoreBusyError when others are quicker for ``write_timeout_s``; StoreFullError, StoreFailedError.
        """
        began = time.monotonic()
        attempt = 0
        while True:
            alone = attempt > 0 and not foreign and self._turn.acquire(timeout=self._timeout_s)
            try:
                changes, result = plan()
                if not changes:
                    return result
                mark = self._log.change_keys(changes)
            finally:
                if alone:
                    self._turn.release()
            if mark is not None:
                self._log.flush(mark)
                return result
            attempt += 1
            if time.monotonic() - began > self._timeout_s:
                raise StoreBusyError(
                    f"store: {what} is changed by others all the time: {attempt} attempts in {self._timeout_s:g} s "
                    "(store option write_timeout_s)"
                )
            time.sleep(min(_MAX_PAUSE_S, 0.0001 * attempt))


def epoch_key(scope: Scope, name: str) -> bytes:
    """The key of an epoch. Its value is 8 bytes, big-endian; none is epoch 0. Raises InvalidNameError."""
    check_scope(name)
    return scope.key(b"E", name)


def epoch_of(value: bytes | None, name: str) -> int:
    """Raises StoreFormatError."""
    if value is None:
        return 0
    if len(value) != _U64.size:
        raise StoreFormatError(f"store: epoch {name!r} is damaged: {len(value)} bytes instead of {_U64.size}")
    return int.from_bytes(value, "big")


def epoch_value(epoch: int) -> bytes:
    return _U64.pack(epoch)


def read_fence(keys: Keys, scope: Scope, fence: Fence) -> tuple[bytes, bytes | None]:
    """The key of a fence and the value under which the fence holds: who makes a change on the condition that the key still has
    it is refused, and asks again, when the epoch rose meanwhile. Raises StaleEpochError, InvalidNameError, ConfigError."""
    key = epoch_key(scope, fence.scope)
    value = keys.get(key)
    check_epoch(epoch_of(value, fence.scope), fence)
    return key, value
