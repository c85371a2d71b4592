"""Settings of the embedded store that are not the queues' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ignis.config import number_text, parse_bool, parse_number, shown
from ignis.errors import ConfigError
from ignis.storage.checks import checked_options

__all__ = ["RANGES", "StoreOptions"]

RANGES: dict[str, tuple[float, float]] = {
    "sync_interval_ms": (1, 3_600_000),
    "max_store_bytes": (1 << 20, 1 << 46),
    "write_timeout_s": (0.01, 3_600),
}


@dataclass(frozen=True)
class StoreOptions:
    """Options of one opened directory; the first opener in a process decides for all of that process.

    Attributes:
        sync_interval_ms: how long an acknowledged message of durability ``interval`` may be unsafe in a power cut.
        max_store_bytes: limit of the living bytes of each durability class. Loads over it are refused; deletes, claims and
            transfers go on.
        write_timeout_s: longest wait for the writer lock, and for recovery by another thread or at open, seconds.
        create: make the directory when there is none; otherwise StoreUnreachableError.
    """

    sync_interval_ms: int = 1_000
    max_store_bytes: int = 256 << 30
    write_timeout_s: float = 30.0
    create: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> StoreOptions:
        """Checked options from names and values (text allowed). Raises ConfigError naming the option."""
        return cls(**checked_options(cls, given, _parsed))


def _parsed(name: str, value: Any, kind: type) -> Any:
    what = f"store option {name}"
    if kind is bool:
        return parse_bool(value, what)
    parsed = parse_number(value, what, kind)
    low, high = RANGES[name]
    if not low <= parsed <= high:
        raise ConfigError(f"{what} = {shown(value)} is outside {number_text(low)} to {number_text(high)}")
    return parsed
