"""The Aerospike store as its users hold it."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote

from ignis.config import check_name
from ignis.errors import ConfigError
from ignis.log_format import event_text
from ignis.storage.aerospike.array_queues import AerospikeArrays
from ignis.storage.aerospike.connection import Connection
from ignis.storage.aerospike.context import StoreContext
from ignis.storage.aerospike.layout import SetNames
from ignis.storage.aerospike.locks import AerospikeLocks
from ignis.storage.aerospike.magazines import AerospikeMagazines
from ignis.storage.aerospike.options import AerospikeOptions, parse_hosts
from ignis.storage.aerospike.owner import owner_name
from ignis.storage.aerospike.queues import ACTIVE, MESSAGE_EXPIRY_S, AerospikeQueues
from ignis.storage.base import Store
from ignis.storage.checks import check_application

__all__ = ["AerospikeStore", "open_store"]

log = logging.getLogger("ignis.storage.aerospike")


def open_store(parts: SplitResult, client_id: str, farm_id: str, options: dict[str, Any]) -> AerospikeStore:
    """Opens ``aerospike://host:3000,host2:3000/namespace``; its query and ``options`` may have any of `AerospikeOptions`.

    ``client_id`` and ``farm_id`` of the query count when the arguments are left at their defaults.
    """
    merged: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    in_url = str(merged.pop("client_id", client_id)), str(merged.pop("farm_id", farm_id))
    client_id = in_url[0] if client_id == Store.client_id else client_id
    farm_id = in_url[1] if farm_id == Store.farm_id else farm_id
    check_name(client_id, "client_id")
    check_name(farm_id, "farm_id")
    merged.pop("create", None)  # nothing is created: the namespace is in the server's configuration
    who, _, hosts = parts.netloc.rpartition("@")
    if who:
        user, _, password = who.partition(":")
        merged.setdefault("user", unquote(user))
        merged.setdefault("password", unquote(password))
    namespace = parts.path.strip("/")
    if not hosts or not namespace or set(namespace) & set("/;,=&"):  # with one of the last four, options
        raise ConfigError("an Aerospike URL names hosts and a namespace; write aerospike://127.0.0.1:3000/test")
    return AerospikeStore(hosts, namespace, AerospikeOptions.of(merged), client_id=client_id, farm_id=farm_id)


class AerospikeStore(Store):
    """One namespace of one cluster, shared by any number of processes and by Java instances.

    Thread-safe. After ``fork`` every call in the child raises ForkedHandleError; the child opens its own store.

    Args:
        hosts: ``host:port,host:port``, any of the cluster's nodes.
        namespace: where all records live.
        options: see `AerospikeOptions`.
        client_id, farm_id: scope of all names.

    Raises:
        ConfigError, StoreUnreachableError, NamespaceNotFoundError.
    """

    message_expiry_s = MESSAGE_EXPIRY_S
    """As Java's queues have it."""

    def __init__(
        self,
        hosts: str,
        namespace: str,
        options: AerospikeOptions | None = None,
        *,
        client_id: str = "ignis",
        farm_id: str = "local",
    ) -> None:
        check_application(client_id, farm_id)
        options = options or AerospikeOptions()
        self.url = f"aerospike://{hosts}/{namespace}"
        self.client_id = client_id
        self.farm_id = farm_id
        self.sets = SetNames.of(client_id, farm_id, options.scope)
        self.connection = Connection(parse_hosts(hosts), namespace, options)
        self._context = StoreContext(self.connection, self.sets, owner_name())
        self._releasing = threading.Lock()
        self._released = False
        try:
            self.connection.index(self.sets.queues, ACTIVE, f"{self.sets.queues}_{ACTIVE}")
            self._look_elsewhere(options.scope)
        except BaseException:
            self.connection.close()
            raise
        self.locks = AerospikeLocks(self._context)
        self.magazines = self._magazines = AerospikeMagazines(self._context, self.locks.epoch)
        self.queues = AerospikeQueues(self._context, self.locks.epoch)
        self.arrays = AerospikeArrays(self._context)

    def _look_elsewhere(self, scope: str) -> None:
        """Warns when this application's magazines seem to be under the names of the scope that was the default once: nothing
        of them would be seen here."""
        if scope != "local":
            return
        other = SetNames.of(self.client_id, self.farm_id, "global").magazines
        if self.connection.objects(other) and not self.connection.objects(self.sets.magazines):
            log.warning(
                event_text(
                    "other_scope_has_magazines",
                    "nothing is stored with scope=local, but set %s has magazines that were made with scope=global",
                ),
                other,
            )

    # -- Store

    @property
    def owner(self) -> str:
        return self._context.owner

    @property
    def local_dir(self) -> str | None:
        return None

    def stats(self) -> dict[str, int | float | str]:
        """Figures of this process since it opened the store: calls of the contract, client calls (all, and by kind as
        ``client_<kind>``), holes; and the bytes of the data set on one node."""
        with self._context.call():
            return {
                "store": "aerospike",
                "namespace": self.connection.namespace,
                "used_bytes": self.connection.used_bytes(self.sets.data),
                "wake_words": str(self._magazines.waits.words.path or ""),
                **self.process_stats(),
            }

    def process_stats(self) -> dict[str, int | float]:
        calls = dict(self.connection.calls)
        return {
            "client_calls": sum(calls.values()),
            **self._magazines.figures(),
            **{f"client_{kind}": count for kind, count in sorted(calls.items())},
        }

    def close(self, timeout: float = 30.0) -> None:
        if self._context.forked:
            return  # the parent's; nothing in the child belongs to it
        deadline = time.monotonic() + timeout
        self._context.refuse()
        self._magazines.close()
        self._context.wait_until_idle(deadline, timeout)
        with self._releasing:
            if self._released:
                return
            self._released = True
        self._magazines.release()
        self.connection.close()
