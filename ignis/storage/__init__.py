"""Stores: where messages are kept. `open_store` opens one from its URL."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ignis.config import check_name
from ignis.errors import ConfigError
from ignis.storage.base import Store

__all__ = ["open_store"]


def open_store(url: str, *, client_id: str = "ignis", farm_id: str = "local", **options: Any) -> Store:
    """Opens the store that a URL names.

    Args:
        url: ``embedded:///absolute/path`` (options may follow as ``?name=value``), ``memory://`` (a private one) or
            ``memory://name`` (one that the process shares by that name, as long as the process lives).
        client_id: the application. Together with ``farm_id`` it scopes every name in the store, so that several
            applications may share one.
        farm_id: the deployment.
        options: of the store; see `ignis.storage.embedded.options.StoreOptions`. The memory store has none but
            ``create``, which it ignores. An argument goes before the same option in the URL.

    Returns:
        The opened store. Close it, or use ``with``. Thread-safe; after ``fork`` the child opens its own.

    Raises:
        ConfigError: unknown scheme or option, or a value outside its range.
        StoreUnreachableError, StoreFormatError, StoreBusyError: the store cannot be opened.
    """
    check_name(client_id, "client_id")
    check_name(farm_id, "farm_id")
    parts = urlsplit(url)
    merged: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    if parts.scheme == "memory":
        merged.pop("create", None)
        if merged:
            raise ConfigError(f"a memory store has no option {min(merged)!r}")
        from ignis.storage.memory import MemoryStore

        return MemoryStore(parts.netloc + parts.path, client_id=client_id, farm_id=farm_id)
    if parts.scheme == "embedded":
        from ignis.storage.embedded import EmbeddedStore, StoreOptions

        path = unquote(parts.netloc + parts.path)
        if not path:
            raise ConfigError(f"store URL {url!r} names no directory; write embedded:///var/lib/orders")
        return EmbeddedStore(path, StoreOptions.of(merged), client_id=client_id, farm_id=farm_id)
    raise ConfigError(f"store URL {url!r}: scheme {parts.scheme!r} is not one of embedded, memory")
