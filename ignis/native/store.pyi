from collections.abc import Iterable
from typing import Any, final

ANY: Any

@final
class Mark:
    @property
    def generation(self) -> int: ...
    @property
    def position(self) -> int: ...

@final
class Log:
    directory: str
    max_bytes: int
    busy_after_s: float
    def __init__(
        self,
        directory: str,
        *,
        max_bytes: int = 0,
        busy_after_s: float = 30.0,
        stopped_after_s: float = 0.0,
        segment_bytes: int = 0,
        arena_bytes: int = 0,
        control_reserve: int = 0,
        checkpoint_bytes: int = 0,
    ) -> None: ...
    def close(self) -> None: ...
    def flush(self, mark: Mark | None = None, *, refuse: bool = True) -> None: ...
    def mark(self) -> Mark: ...
    def maintain(self) -> bool: ...
    def checkpoint(self) -> None: ...
    def figures(self) -> dict[str, int]: ...
    def get_key(self, key: bytes) -> bytes | None: ...
    def change_keys(self, changes: Iterable[tuple[bytes, bytes | Any | None, bytes | None]]) -> Mark | None: ...
