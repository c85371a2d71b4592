import asyncio
from collections.abc import Callable, Iterator
from typing import Any, final

from typing_extensions import Self

from ignis.native.gate import CallGate
from ignis.native.store import Interval, Log
from ignis.native.wire import ClaimsFrame, FrameReader, ReadArea

@final
class LoneRequest:
    def __new__(cls, area: ReadArea) -> Self: ...
    @property
    def request_id(self) -> int: ...
    @property
    def is_batch(self) -> bool: ...
    @property
    def ttl_ms(self) -> int: ...
    @property
    def any_shard(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def count(self) -> int: ...
    def look(self, reader: FrameReader, size: int) -> str | None: ...
    def load(
        self,
        log: Log,
        number: int,
        shards: int,
        any_shard: int,
        expires_at_ms: int,
        owner: bytes | None = None,
        ms: int = 0,
    ) -> int | None: ...
    def answer(self) -> bytes: ...
    def acknowledge(self, fd: int) -> tuple[int, bytes]: ...
    @property
    def run(self) -> tuple[int, int, int]: ...
    def deliver(self, fd: int, subscription: int) -> tuple[int, bytes]: ...
    def put_into(self, claims: ClaimsFrame) -> None: ...

@final
class LoneAck:
    def __new__(cls, area: ReadArea) -> Self: ...
    @property
    def request_id(self) -> int: ...
    @property
    def deletes(self) -> bool: ...
    @property
    def runs(self) -> list[tuple[int, int, int]]: ...
    def look(self, reader: FrameReader, size: int) -> str | None: ...
    def retire(self, log: Log, number: int) -> int | None: ...
    def answer(self) -> bytes: ...
    def acknowledge(self, fd: int) -> tuple[int, bytes]: ...

def transport_of(connection: Any) -> asyncio.Transport | None: ...

@final
class LoopSpin:
    def __new__(cls, descriptor: int, spin_us: int) -> Self: ...
    @property
    def looked(self) -> int: ...
    @property
    def found(self) -> int: ...

@final
class LoneLane:
    def __new__(
        cls,
        gate: CallGate,
        log: Log,
        number: int,
        interval: Interval | None,
        sync: bool,
        calls: dict[str, int],
        claimant: Callable[[str], tuple[bytes, int]],
        expiry: Callable[[float], int],
        refused: Callable[[Any], None],
    ) -> Self: ...

@final
class LonePending:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def flush(self) -> None: ...
    def __call__(self, error: BaseException | None) -> None: ...

@final
class LoneLoads:
    def __new__(
        cls,
        lone: LoneRequest,
        inboxes: dict[str, Any],
        known: dict[str, Any],
        pumps: dict[str, Any],
        turn: Iterator[int],
        turns: Any,
        poke: Callable[[str], None],
        state: Any,
        flushes: Any,
        spin: LoopSpin,
    ) -> Self: ...
    def take(
        self,
        session: Any,
        sender: Any,
        reader: FrameReader,
        size: int,
        allows: Callable[[str, str], bool] | None,
    ) -> bool: ...
