"""Array queues: one record each, worked on by the functions of ``array_queue.lua`` on the server.

The module is registered under a name that says which one it is: ``ignis_array_queue_v<version>_<hash of its text>``. So
instances of different versions work side by side, each with its own, and none replaces what another is running.

Records: set ``{farm}_{client}_ignis_arrays``, key = the queue's name, no end.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import msgspec
from aerospike_helpers import expressions as exp
from aerospike_helpers.operations import expression_operations

from ignis.errors import RecordTooLargeError, StoreError, StoreTimeoutError
from ignis.storage.aerospike.context import StoreContext
from ignis.storage.base import ArrayStore
from ignis.storage.checks import check_array, check_limit

__all__ = ["AerospikeArrays", "module_name"]

LUA_VERSION = 1
"""Rises when the layout of the bin changes."""
_UDF_FAILED = 100
_POLL_S = 0.02


@lru_cache(maxsize=1)
def module_text() -> bytes:
    """The Lua module as it is installed."""
    return (files("ignis") / "array_queue.lua").read_bytes()


@lru_cache(maxsize=1)
def module_name() -> str:
    """What stands before the dot in ``execute <module>.enqueue(...)``."""
    return f"ignis_array_queue_v{LUA_VERSION}_{hashlib.sha256(module_text()).hexdigest()[:8]}"


class AerospikeArrays(ArrayStore):
    """Array queues of one application. Thread-safe.

    An array is one record, so no larger than the server's write block: the bounds of an answer are not looked at.

    One client call per operation. Operations that change something are sent once: when an answer is lost
    (StoreTimeoutError) they may have been done.
    """

    bounds_answers = False

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._connection = context.connection
        self.set_name = context.sets.queues.removesuffix("_queues") + "_arrays"
        self._registering = threading.Lock()
        self._registered = False

    def enqueue(self, name: str, bin_name: str, values: Sequence[Any]) -> int:
        values = list(values)
        try:
            if len(values) == 1:
                return int(self._apply(name, "enqueue", [bin_name, values[0]], repeat=False))
            return int(self._apply(name, "enqueue_many", [bin_name, values], repeat=False))
        except RecordTooLargeError as exc:
            size_bytes = self._record_bytes(name) + sum(len(msgspec.msgpack.encode(value)) for value in values)
            raise RecordTooLargeError(max(size_bytes, exc.limit_bytes + 1), exc.limit_bytes) from exc

    def dequeue(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> list[Any]:
        check_limit(limit)
        found: list[Any] = self._apply(name, "dequeue_many", [bin_name, limit], repeat=False)
        return found

    def peek(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> list[Any]:
        check_limit(limit)
        found: list[Any] = self._apply(name, "peek", [bin_name, limit], repeat=True)
        return found

    def size(self, name: str, bin_name: str) -> int:
        return int(self._apply(name, "size", [bin_name], repeat=True))

    def _key(self, name: str) -> tuple[str, str, str]:
        return self._connection.namespace, self.set_name, name

    def _apply(self, name: str, function: str, arguments: list[Any], *, repeat: bool) -> Any:
        check_array(name, arguments[0])
        key, module = self._key(name), module_name()

        def run(client: Any) -> Any:
            return client.apply(key, module, function, arguments)

        with self._context.call():
            if not self._registered:
                self._register()
            try:
                return self._connection.call(f"array_{function}", run, repeat=repeat)
            except StoreError as exc:
                if getattr(exc.__cause__, "code", None) != _UDF_FAILED or self._is_registered():
                    raise
                # Somebody has removed the module since; so nothing was done.
                self._register()
                return self._connection.call(f"array_{function}", run, repeat=repeat)

    # -- the module

    def _is_registered(self) -> bool:
        """On every node."""
        wanted = f"filename={module_name()}.lua,"
        answers = self._connection.call("udf_list", lambda client: client.info_all("udf-list")) or {}
        return bool(answers) and all(wanted in str(text) for error, text in answers.values() if error is None)

    def _register(self) -> None:
        """Registers the module where it is not. Several processes may do so at the same time: the text is the same.
        Raises StoreError, StoreTimeoutError."""
        with self._registering:
            deadline = time.monotonic() + self._connection.options.total_timeout_ms / 1000
            if not self._is_registered():
                content = base64.b64encode(module_text()).decode()
                # By hand, because the driver's call for it leaves a copy of the file in the working directory.
                self._connection.info(
                    f"udf-put:filename={module_name()}.lua;content={content};content-len={len(content)};udf-type=LUA;"
                )
                while not self._is_registered():
                    if time.monotonic() > deadline:
                        raise StoreTimeoutError("udf_put", self._connection.options.total_timeout_ms)
                    time.sleep(_POLL_S)
            self._registered = True

    def _record_bytes(self, name: str) -> int:
        ops = [expression_operations.expression_read("bytes", exp.RecordSize().compile())]
        key = self._key(name)
        try:
            with self._context.call():
                found = self._connection.call("array_bytes", lambda client: client.operate(key, ops)[2])
        except StoreError:
            found = None  # not there yet: then only what was to be added counts
        return int((found or {}).get("bytes") or 0)
