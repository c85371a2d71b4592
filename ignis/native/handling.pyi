from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, final

from typing_extensions import disjoint_base

from ignis.native.histogram import Histogram

WENT_ON: int
ANSWERED: int
RAISED: int
UNREADABLE: int
FORKED: int
DATED: int
SUSPENDED: int
AWAITED: int

@final
class Progress:
    at_id: int
    returning: bool
    @property
    def next_id(self) -> int: ...
    @property
    def end_id(self) -> int: ...
    def open(self, first_id: int, end_id: int) -> None: ...
    def begin(self, request_id: int) -> bool: ...
    def cut(self) -> tuple[int, int]: ...

@disjoint_base
class Delivery:
    _messages: Any
    body: Any
    queue: str
    _attempt: int | None
    resources: Mapping[str, Any]
    _items: dict[str, Any] | None
    _last_error: str | None
    _work: Any
    def __init__(
        self, messages: Any, body: Any, queue: str, attempt: int | None, resources: Mapping[str, Any]
    ) -> None: ...

def open_bodies(decode: Callable[[bytes], Any] | None, records: Sequence[bytes]) -> list[Any] | None: ...
def all_done(answer: object, count: int) -> bool: ...
def handle_records(
    fn: Callable[..., Any],
    decode: Callable[[bytes], Any] | None,
    kind: type[Delivery] | None,
    queue: str,
    resources: Mapping[str, Any],
    records: Sequence[bytes],
    at: int,
    first_id: int,
    progress: Progress,
    until_s: float,
    durations: Histogram,
) -> tuple[int, int, Any, float]: ...
def handle_coroutines(
    fn: Callable[..., Any],
    decode: Callable[[bytes], Any] | Literal[False] | None,
    kind: type[Delivery] | None,
    queue: str,
    resources: Mapping[str, Any],
    records: Sequence[bytes],
    at: int,
    first_id: int,
    progress: Progress,
    until_s: float,
    durations: Histogram,
    task: Any,
) -> tuple[int, int, Any, float]: ...
