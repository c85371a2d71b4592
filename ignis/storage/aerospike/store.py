"""The Aerospike store as its users hold it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ignis.errors import ClosedError, ForkedHandleError, WaitTimeoutError
from ignis.storage.aerospike.client import Connection
from ignis.storage.aerospike.layout import SetNames
from ignis.storage.aerospike.locks import AerospikeLocks
from ignis.storage.aerospike.magazines import AerospikeMagazines
from ignis.storage.aerospike.options import AerospikeOptions, parse_hosts
from ignis.storage.aerospike.owner import owner_name
from ignis.storage.aerospike.queues import ACTIVE, MESSAGE_EXPIRY_S, AerospikeQueues
from ignis.storage.aerospike.udf import AerospikeArrays
from ignis.storage.base import Store
from ignis.storage.checks import check_application

__all__ = ["AerospikeStore"]

log = logging.getLogger("ignis.storage.aerospike")

_forks = [0]


def _in_child() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_in_child)


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
        # Entering the lock itself is twice as fast as entering the condition, and every call does it twice.
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._inside = 0
        self._closed = False
        self._released = False
        self._forks = _forks[0]
        self._owner = owner_name()
        try:
            self.connection.index(self.sets.queues, ACTIVE, f"{self.sets.queues}_{ACTIVE}")
            self._look_elsewhere(options.scope)
        except BaseException:
            self.connection.close()
            raise
        self.magazines = self._magazines = AerospikeMagazines(self)
        self.queues = AerospikeQueues(self)
        self.locks = AerospikeLocks(self)
        self.arrays = AerospikeArrays(self)

    def _look_elsewhere(self, scope: str) -> None:
        """Warns when this application's magazines seem to be under the names of the scope that was the default once: nothing
        of them would be seen here."""
        if scope != "local":
            return
        other = SetNames.of(self.client_id, self.farm_id, "global").magazines
        if self.connection.objects(other) and not self.connection.objects(self.sets.magazines):
            log.warning(
                "nothing is stored with scope=local, but set %s has magazines that were made with scope=global", other
            )

    # -- what the facets use

    def enter(self) -> None:
        """Begins a call. Raises ForkedHandleError, ClosedError."""
        if self._forks != _forks[0]:
            raise ForkedHandleError("this store was opened before fork(); open another in the child")
        with self._mutex:
            if self._closed:
                raise ClosedError("store is closed")
            self._inside += 1

    def leave(self) -> None:
        with self._mutex:
            self._inside -= 1
            if not self._inside and self._closed:
                self._changed.notify_all()

    @contextmanager
    def call(self) -> Iterator[None]:
        """`enter` and `leave`."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    waiting = call

    # -- Store

    @property
    def owner(self) -> str:
        return self._owner

    @property
    def local_dir(self) -> str | None:
        return None

    def stats(self) -> dict[str, int | float | str]:
        """Figures of this process since it opened the store: calls of the contract, client calls (all, and by kind as
        ``client_<kind>``), holes; and the bytes of the data set on one node."""
        with self.call():
            calls = dict(self.connection.calls)
            return {
                "store": "aerospike",
                "namespace": self.connection.namespace,
                "used_bytes": self.connection.used_bytes(self.sets.data),
                "wake_words": str(self._magazines.waits.words.path or ""),
                "client_calls": sum(calls.values()),
                **self._magazines.figures(),
                **{f"client_{kind}": count for kind, count in sorted(calls.items())},
            }

    def close(self, timeout: float = 30.0) -> None:
        if self._forks != _forks[0]:
            return  # the parent's; nothing in the child belongs to it
        deadline = time.monotonic() + timeout
        with self._changed:
            self._closed = True
        self._magazines.close()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._inside, max(0.0, deadline - time.monotonic())):
                raise WaitTimeoutError(f"store: {self._inside} call(s) still in flight after {timeout:g} s")
            if self._released:
                return
            self._released = True
        self._magazines.release()
        self.connection.close()
