"""Stores: where messages are kept. `open_store` opens one from its URL."""

from __future__ import annotations

import importlib
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ignis.clock import Clock
from ignis.config import check_name, check_text, shown
from ignis.errors import ConfigError
from ignis.main_guard import check_first_run
from ignis.storage.base import Store
from ignis.storage.directories import directory_of
from ignis.urls import redacted

__all__ = ["open_store"]

OPENERS = {
    "ignis": "ignis.broker.client.store:open_store",
    "ignis+tls": "ignis.broker.client.store:open_store",
    "relay": "ignis.relay.store:open_store",
}
"""URL scheme -> ``module:function`` of stores that stand above the library. Resolved when such a URL is opened, so that
nothing below imports them. The function takes the URL's parts and what `open_store` was given."""

DEFAULT_CLIENT_ID = "ignis"
DEFAULT_FARM_ID = "local"


def open_store(
    url: str, *, client_id: str = DEFAULT_CLIENT_ID, farm_id: str = DEFAULT_FARM_ID, **options: Any
) -> Store:
    """Opens the store that a URL names.

    Args:
        url: ``embedded:///absolute/path``, or ``embedded://./path`` below the current directory (options may follow as
            ``?name=value``); ``memory://`` (a private one) or ``memory://name`` (one that the process shares by that name, as
            long as the process lives); ``aerospike://host:3000,host2:3000/namespace``, where ``?client_id=..&farm_id=..``
            may stand as well and counts when the arguments are left at their defaults; ``relay:///dev/shm/ignis``, which
            only takes messages in (docs/relay.md); or ``ignis://host:port`` or ``ignis+tls://host:port``, a broker.
        client_id: the application. Together with ``farm_id`` it scopes every name in the store, so that several
            applications may share one.
        farm_id: the deployment.
        options: of the store; see `ignis.storage.embedded.options.StoreOptions` and
            `ignis.storage.aerospike.options.AerospikeOptions`. The memory store has ``create``, which it
            ignores, and ``clock``, an `ignis.testing.ManualClock`, as an argument only. An argument goes before the same
            option in the URL.

    Returns:
        The opened store. Close it, or use ``with``. Thread-safe; after ``fork`` the child opens its own.

    Raises:
        ConfigError: unknown scheme or option, or a value outside its range.
        MainGuardError: called by a script that a worker process runs again.
        StoreUnreachableError, StoreFormatError, StoreBusyError: the store cannot be opened.
    """
    check_first_run("open_store() was called")
    check_name(client_id, "client_id")
    check_name(farm_id, "farm_id")
    try:
        parts = urlsplit(check_text(url, "store URL", secret=True))
        if parts.scheme in OPENERS:
            _ = parts.port  # raises for what is no port
    except ConfigError:
        raise
    except ValueError:  # such as a bracket without its other half; the text of the error shows what may be a password
        raise ConfigError(
            f"store URL {shown(redacted(url))} cannot be read: it is not scheme://host:port/path?option=value"
        ) from None
    if parts.scheme in OPENERS:
        module, _, function = OPENERS[parts.scheme].partition(":")
        try:
            opener = getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as exc:
            extra = module.split(".")[1]
            raise ConfigError(
                f"{parts.scheme}:// needs a package ({exc.name} is missing): pip install 'ignis-mq[{extra}]'"
            ) from exc
        opened: Store = opener(parts, client_id, farm_id, options)
        return opened
    if parts.scheme == "aerospike":
        return _open_aerospike(parts, client_id, farm_id, options)
    merged: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    if parts.scheme == "memory":
        merged.pop("create", None)
        clock = options.get("clock")
        if clock is not None:
            if not isinstance(clock, Clock):
                raise ConfigError(f"clock = {shown(clock)} is no clock, such as an ignis.testing.ManualClock")
            del merged["clock"]
        if merged:
            raise ConfigError(f"a memory store has no option {shown(min(merged))}; it has none in its URL")
        from ignis.storage.memory.store import MemoryStore

        return MemoryStore(parts.netloc + parts.path, client_id=client_id, farm_id=farm_id, clock=clock)
    if parts.scheme == "embedded":
        from ignis.storage.embedded import EmbeddedStore, StoreOptions

        path = directory_of(parts)
        return EmbeddedStore(path, StoreOptions.of(merged), client_id=client_id, farm_id=farm_id)
    path = "" if parts.scheme else "; a directory is embedded:///a/path or embedded://./a/path"
    raise ConfigError(
        f"store URL {shown(redacted(url))}: its scheme is not one of aerospike, embedded, ignis, memory, relay{path}"
    )


def _open_aerospike(parts: SplitResult, client_id: str, farm_id: str, options: dict[str, Any]) -> Store:
    merged: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    in_url = str(merged.pop("client_id", client_id)), str(merged.pop("farm_id", farm_id))
    client_id = in_url[0] if client_id == DEFAULT_CLIENT_ID else client_id
    farm_id = in_url[1] if farm_id == DEFAULT_FARM_ID else farm_id
    check_name(client_id, "client_id")
    check_name(farm_id, "farm_id")
    merged.pop("create", None)  # nothing is created: the namespace is in the server's configuration
    who, _, hosts = parts.netloc.rpartition("@")
    if who:
        user, _, password = who.partition(":")
        merged.setdefault("user", unquote(user))
        merged.setdefault("password", unquote(password))
    namespace = parts.path.strip("/")
    if not hosts or not namespace or "/" in namespace:
        raise ConfigError("an Aerospike URL names hosts and a namespace; write aerospike://127.0.0.1:3000/test")
    try:
        from ignis.storage.aerospike.options import AerospikeOptions
        from ignis.storage.aerospike.store import AerospikeStore
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"Aerospike needs a driver ({exc.name} is missing): pip install 'ignis-mq[aerospike]'"
        ) from exc
    return AerospikeStore(hosts, namespace, AerospikeOptions.of(merged), client_id=client_id, farm_id=farm_id)
