"""Stores: where messages are kept. `open_store` opens one from its URL."""

from __future__ import annotations

import importlib
from typing import Any
from urllib.parse import urlsplit

from ignis.config import check_name, check_text, shown
from ignis.errors import ConfigError
from ignis.main_guard import check_first_run
from ignis.near_names import near_name
from ignis.storage.base import Store
from ignis.urls import redacted

__all__ = ["check_scheme", "open_store"]

OPENERS = {
    "aerospike": "ignis.storage.aerospike.store:open_store",
    "embedded": "ignis.storage.embedded.store:open_store",
    "ignis": "ignis.broker.client.store:open_store",
    "ignis+tls": "ignis.broker.client.store:open_store",
    "memory": "ignis.storage.memory.store:open_store",
    "relay": "ignis.relay.store:open_store",
}
"""URL scheme -> ``module:function``, of every store there is. Imported when such a URL is opened: a driver is loaded by who needs
it, and nothing here imports what stands above it. The function takes the URL's parts and what `open_store` was given."""

_ONE_ADDRESS = ("ignis", "ignis+tls", "relay")
"""Schemes whose URLs have one host and port at most."""

DEFAULT_CLIENT_ID = Store.client_id
DEFAULT_FARM_ID = Store.farm_id


def check_scheme(url: str) -> None:
    """Raises ConfigError for a URL of no store there is, without opening one."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # it cannot be read, as who opens it says
        return
    if scheme not in OPENERS:
        near = near_name(scheme, OPENERS)
        more = f"; is {near} meant?" if near is not None else ""
        if not scheme:
            more = "; a directory is embedded:///a/path or embedded://./a/path"
        raise ConfigError(f"store URL {shown(redacted(url))}: its scheme is not one of {', '.join(OPENERS)}{more}")


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
        if parts.scheme in _ONE_ADDRESS:
            _ = parts.port  # raises for what is no port
    except ConfigError:
        raise
    except ValueError:  # such as a bracket without its other half; the text of the error shows what may be a password
        raise ConfigError(
            f"store URL {shown(redacted(url))} cannot be read: it is not scheme://host:port/path?option=value"
        ) from None
    check_scheme(url)
    if not all("=" in one for one in parts.query.split("&") if one):
        # Not what stands there: it may be the value of a secret whose name was left out, or the end of one with a mark in it.
        raise ConfigError(f"store URL {shown(redacted(url))}: an option has no value; write ?name=value&name2=value")
    module, _, function = OPENERS[parts.scheme].partition(":")
    try:
        opener = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as exc:
        extra = module.removeprefix("ignis.").removeprefix("storage.").partition(".")[0]
        raise ConfigError(
            f"{parts.scheme}:// needs a package ({exc.name} is missing): pip install 'ignis-mq[{extra}]'"
        ) from exc
    opened: Store = opener(parts, client_id, farm_id, options)
    return opened
