from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, final

from ignis.errors import StoreFullError
from ignis.native import PackedBatch
from ignis.native.gate import CallGate
from ignis.native.wait import Watch
from ignis.native.wire import ClaimsFrame

_W = TypeVar("_W", bound=tuple[Any, ...])

ANY: Any
DEFAULT_TIMEOUT_S: float

class NoShardError(ValueError): ...
class FenceError(Exception): ...
class GrowthError(StoreFullError): ...

@final
class Mark:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @property
    def generation(self) -> int: ...
    @property
    def position(self) -> int: ...

@final
class Recall:
    def set(self) -> None: ...
    def clear(self) -> None: ...

@final
class Log:
    directory: str
    max_bytes: int
    busy_after_s: float
    @property
    def later(self) -> bool: ...
    @property
    def late(self) -> bool: ...
    def take_late(self, number: int) -> int: ...
    def __new__(
        cls,
        directory: str,
        *,
        max_bytes: int = 0,
        busy_after_s: float = 30.0,
        stopped_after_s: float = 0.0,
        segment_bytes: int = 0,
        arena_bytes: int = 0,
        control_reserve: int = 0,
        checkpoint_bytes: int = 0,
        pass_over: bool = False,
    ) -> Log: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...
    def flush(self, mark: Mark | None = None, *, refuse: bool = True) -> None: ...
    def mark(self) -> Mark: ...
    def maintain(self) -> bool: ...
    def checkpoint(self) -> None: ...
    def figures(self) -> dict[str, int]: ...
    def unread(self) -> int: ...
    def keys(self, prefix: bytes = b"") -> list[tuple[bytes, bytes]]: ...
    def get_key(self, key: bytes) -> bytes | None: ...
    def change_keys(
        self, changes: Iterable[tuple[bytes, bytes | Any | None, bytes | None]], *, at_once: bool = False
    ) -> Mark | None: ...
    def declare(self, name: str, shards: int, durability: int, *, durable: bool = True) -> int | None: ...
    def drop(self, number: int, *, only_empty: bool = False, durable: bool = True) -> bool: ...
    def find(self, name: str) -> int | None: ...
    def magazines(self) -> list[tuple[int, str, int, int]]: ...
    def shards(self, number: int) -> list[tuple[int, int, int, int, int, int, int, int]]: ...
    def load(
        self,
        number: int,
        batches: Sequence[tuple[int, PackedBatch]],
        *,
        durable: bool,
        at_once: bool = False,
        owner: bytes | None = None,
        ms: int = 0,
        fence: tuple[bytes, bytes | None] | None = None,
    ) -> list[int] | None: ...
    def known_ids(self, number: int, ids: bytes, hour_now: int) -> bytes: ...
    def load_once(
        self,
        number: int,
        batches: Sequence[tuple[int, PackedBatch]],
        ids: bytes,
        *,
        forget_hour: int,
        hour_now: int,
        durable: bool,
        dues: Sequence[Sequence[int]] | None = None,
    ) -> list[int] | None: ...
    def forget_ids(self, number: int, hour_now: int, limit: int) -> bool: ...
    def fire(
        self,
        number: int,
        limit: int,
        owner: bytes,
        ms: int,
        *,
        order: Sequence[int] | None = None,
        begin: int = 0,
        max_bytes: int = 1 << 62,
        at_once: bool = False,
        records: bool = True,
        first: bool = True,
    ) -> tuple[list[tuple[int, range, Any, int]], list[int], bool, int]: ...
    def fire_next(
        self,
        number: int,
        limit: int,
        owner: bytes,
        ms: int,
        *,
        gate: CallGate,
        recall: Recall,
        seen: int,
        timeout: float | None,
        begin: int = 0,
        max_bytes: int = 1 << 62,
    ) -> tuple[int, tuple[list[tuple[int, range, Any, int]], list[int], bool, int] | None]: ...
    def expire(self, number: int, shard: int, ms: int, limit: int, *, durable: bool) -> int: ...
    def retire(
        self,
        number: int,
        pointers: Mapping[int, Sequence[int]],
        *,
        durable: bool,
        waiting_only: bool = False,
        at_once: bool = False,
    ) -> int: ...
    def transfer(
        self,
        source: int,
        pointers: Mapping[int, Sequence[int]],
        target: int,
        batches: Sequence[tuple[int, PackedBatch]],
        *,
        durable: bool,
        reload: bool = False,
        fence: tuple[bytes, bytes | None] | None = None,
    ) -> bool: ...
    def claims(
        self, number: int, shard: int, first: int = 0, room: int = 64
    ) -> list[tuple[int, int, int, int, bytes]]: ...
    def owners(self, number: int = 0) -> set[bytes]: ...
    def renew(
        self, number: int, pointers: Mapping[int, Sequence[int]], owner: bytes, next_owner: bytes | None, ms: int
    ) -> None: ...
    def peek(
        self, number: int, shard: int, runs: Iterable[tuple[int, int]], *, limit: int = -1
    ) -> list[tuple[int, list[bytes | None], int]]: ...
    def peek_within(
        self, number: int, shard: int, runs: Iterable[tuple[int, int]], max_bytes: int, *, limit: int = -1
    ) -> tuple[list[tuple[int, list[bytes | None], int]], bool]: ...
    def living(
        self, number: int, shard: int, runs: Iterable[tuple[int, int]], *, limit: int = -1
    ) -> list[tuple[int, int, int, int]]: ...
    def batches(
        self, number: int, shard: int, first: int, last: int
    ) -> list[tuple[bytes, int, int, int, int, None]]: ...
    def wait(self, number: int, seen: int, timeout: float | None, ms: int = 0) -> int: ...
    def watch(self, number: int, seen: int, watch: Watch) -> int | None: ...
    def wake(self, number: int) -> None: ...
    def forewarn(self, number: int) -> None: ...
    def announce(self, number: int, seen: int) -> bool: ...
    def moved(self, watched: Iterable[_W]) -> list[_W]: ...
    def listen(self, seen: int, timeout: float) -> int: ...
    def ring(self) -> None: ...

def salvage(data: bytes, salt: int, position: int) -> tuple[int, bytes, int, int, int] | None: ...
def declare_later(log: Log, main: int, name: str, shards: int, *, durable: bool = True) -> int | None: ...
def load_body(
    log: Log, number: int, shard: int, body: bytes, flags: int, *, expires_at_ms: int, durable: bool
) -> tuple[str, int, int] | None: ...
def load_later(
    log: Log,
    number: int,
    batches: Iterable[tuple[int, PackedBatch]],
    dues: Iterable[Iterable[int]],
    *,
    durable: bool,
) -> list[int]: ...
def defer(
    log: Log,
    source: int,
    pointers: Mapping[int, Sequence[int]],
    later: int,
    batches: Iterable[tuple[int, PackedBatch]],
    dues: Iterable[Iterable[int]],
    *,
    durable: bool,
    fence: tuple[bytes, bytes | None] | None = None,
) -> bool: ...
def next_due(log: Log, number: int) -> int | None: ...
def move_due(
    log: Log, main: int, ms: int, limit: int, *, fence: tuple[bytes, bytes | None] | None = None
) -> tuple[int, int, int | None]: ...
def list_later(log: Log, later: int, after: tuple[int, int, int], limit: int) -> list[tuple[int, int, int, int]]: ...
def fire_into(
    log: Log,
    frame: ClaimsFrame,
    number: int,
    limit: int,
    owner: bytes,
    ms: int,
    *,
    order: Sequence[int] | None = None,
    begin: int = 0,
    max_bytes: int = 1 << 62,
    at_once: bool = False,
    first: bool = True,
) -> tuple[int | None, list[int], bool, int]: ...
