"""Checks of arguments that every store makes alike."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from ignis.errors import ConfigError, InvalidNameError, StaleEpochError
from ignis.storage.base import Fence

__all__ = [
    "DURABILITIES",
    "check_declaration",
    "check_epoch",
    "check_limit",
    "checked_options",
    "expiry_ms",
    "ttl_milliseconds",
]

DURABILITIES = ("sync", "interval", "none")
MAX_SHARDS = 65_535
MAX_NAME_BYTES = 255


def check_declaration(magazine: str, shards: int, durability: str) -> None:
    """Raises InvalidNameError, ConfigError."""
    if not magazine or len(magazine.encode()) > MAX_NAME_BYTES or "\0" in magazine:
        raise InvalidNameError(f"magazine name {magazine!r} is empty, longer than {MAX_NAME_BYTES} bytes or has a NUL")
    if not 1 <= shards <= MAX_SHARDS:
        raise ConfigError(f"shards = {shards} is outside 1 to {MAX_SHARDS}")
    if durability not in DURABILITIES:
        raise ConfigError(f"durability = {durability!r} is not one of {', '.join(DURABILITIES)}")


def check_epoch(current: int, fence: Fence) -> None:
    """Raises StaleEpochError when the scope has seen a higher epoch than the fence's."""
    if current > fence.epoch:
        raise StaleEpochError(f"epoch {fence.epoch} of {fence.scope!r} is old: the current one is {current}")


def check_limit(limit: int) -> None:
    """Raises ConfigError below 1."""
    if limit < 1:
        raise ConfigError(f"limit = {limit} is below 1")


def expiry_ms(ttl_s: float | None) -> int:
    """Milliseconds since the epoch, 0 = never. Raises ConfigError."""
    if ttl_s is None:
        return 0
    return int(time.time() * 1000) + ttl_milliseconds(ttl_s)


def ttl_milliseconds(ttl_s: float) -> int:
    """At least 1. Raises ConfigError for what is not a number above 0."""
    if not ttl_s > 0 or math.isinf(ttl_s):
        raise ConfigError(f"ttl_s = {ttl_s!r} is not a number above 0")
    return max(1, int(ttl_s * 1000))


def checked_options(options: type, given: Mapping[str, Any], parse: Callable[[str, Any, type], Any]) -> dict[str, Any]:
    """What a store was given, each value parsed for the type of its field in the dataclass ``options``.

    Raises ConfigError for a name that is none, and what ``parse(name, value, type)`` raises.
    """
    known = {spec.name: type(spec.default) for spec in dataclasses.fields(options)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        kind = known.get(name)
        if kind is None:
            raise ConfigError(f"unknown store option {name!r}; known: {', '.join(sorted(known))}")
        values[name] = parse(name, value, kind)
    return values
