import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, final

from typing_extensions import Self, disjoint_base

from ignis.native.record import PackedBatch

DEFAULT_TIMEOUT_S: float
MAX_ENVELOPE_BYTES: int

@final
class Receipt:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @property
    def id(self) -> str: ...
    @property
    def sequence(self) -> int: ...
    def done(self) -> bool: ...
    def result(self, timeout: float | None = 30.0) -> str: ...
    def exception(self, timeout: float | None = 30.0) -> BaseException | None: ...
    def add_done_callback(self, fn: Callable[[Receipt], object]) -> None: ...
    def __await__(self) -> Generator[Any, None, str]: ...

@disjoint_base
class ReceiptBook:
    def wait_settled(self, sequence: int, timeout: float | None = 30.0, named: float | None = None) -> None: ...
    @property
    def sent(self) -> int: ...
    @property
    def settled(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def failed(self) -> int: ...
    def error_of(self, sequence: int) -> BaseException | None: ...
    @property
    def first_error(self) -> BaseException | None: ...

@disjoint_base
class SendRing(ReceiptBook):
    def send(
        self,
        body: bytes,
        shard: int,
        flags: int,
        key: bytes | None = b"",
        meta: bytes | None = b"",
        timeout: float | None = 30.0,
    ) -> Receipt: ...
    def send_record(self, record: bytes, timeout: float | None = 30.0) -> int: ...
    @property
    def closed(self) -> bool: ...
    def depth(self) -> int: ...
    def classes(self) -> list[dict[str, int]]: ...
    def close(self, error: BaseException | None = None) -> None: ...

@final
class Outbox(SendRing):
    def __new__(
        cls,
        *,
        capacity: int = 65536,
        size_classes: Sequence[tuple[int, int]] | None = None,
        max_message_bytes: int = ...,
        timed: bool = False,
        of_boottime_ms: int | None = None,
    ) -> Self: ...
    def send_timed(
        self,
        body: bytes,
        shard: int,
        flags: int,
        key: bytes | None = b"",
        meta: bytes | None = b"",
        timeout: float | None = 30.0,
        due_ms: int | None = None,
        until: int | None = None,
        delay_s: float | None = None,
    ) -> Receipt: ...
    def drain(
        self,
        max_messages: int,
        max_bytes: int,
        any_shard: int,
        shards: int,
        timeout: float | None,
        chunk_records: int = 256,
        chunk_bytes: int = 32768,
    ) -> tuple[int, list[tuple[int, PackedBatch]]]: ...
    def drain_timed(
        self,
        max_messages: int,
        max_bytes: int,
        any_shard: int,
        shards: int,
        timeout: float | None,
        chunk_records: int = 256,
        chunk_bytes: int = 32768,
    ) -> tuple[int, list[tuple[int, PackedBatch]], list[list[int]] | None, int | None]: ...
    def settle(self, n: int) -> None: ...
    def fail(self, n: int, error: BaseException) -> None: ...

@final
class MappedOutbox(SendRing):
    def __new__(
        cls,
        *,
        path: str | os.PathLike[str],
        bell: str | os.PathLike[str],
        capacity: int = 65536,
        size_classes: Sequence[tuple[int, int]] | None = None,
        max_message_bytes: int = ...,
        label: bytes = b"",
        bytering_bytes: int = 0,
        small_message_bytes: int = 0,
    ) -> Self: ...
    path: str | os.PathLike[str]
    on_waiter: Callable[[], object] | None
    on_timeout: Callable[[str], BaseException] | None
    on_refusal: Callable[[], BaseException] | None
    on_loss: Callable[[int, bool, bool], BaseException | None] | None
    on_late_send: Callable[..., Receipt] | None
    @property
    def lost(self) -> bool: ...
    def look(self) -> bool: ...
    def watch(self, timeout: float | None) -> bool: ...
