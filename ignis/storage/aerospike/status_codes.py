"""Result codes of the server and the driver, and the exceptions that they become."""

from __future__ import annotations

from ignis.errors import (
    DeviceOverloadError,
    HotKeyError,
    IgnisError,
    NamespaceNotFoundError,
    StoreError,
    StoreFullError,
    StoreTimeoutError,
    StoreUnreachableError,
)
from ignis.storage.aerospike.options import AerospikeOptions

__all__ = ["AUTHENTICATION", "LATER", "error_of"]

OK = 0
NOT_FOUND = 2
GENERATION = 3
EXISTS = 5
SERVER_FULL = 8
TIMEOUT = 9
TOO_BIG = 13
BUSY = 14
DEVICE_OVERLOAD = 18
NO_NAMESPACE = 20
FORBIDDEN = 22
FILTERED = 27
INDEX_FOUND = 200
INDEX_MISSING = 201
INDEX_NOT_READABLE = 203
NO_ANSWER = -15

AUTHENTICATION = range(51, 83)
"""No security there, or of another kind (51 to 56); user, password or session (60 to 66, 80); roles and addresses (70 on)."""
_NO_SECURITY = range(51, 57)
# Connection lost or refused, cluster empty, no answer, node gone, too many errors on a node.
_UNREACHABLE = frozenset({-1, -3, -4, -8, -9, -10, -11, -12, -14, 11})
LATER = frozenset({TIMEOUT, BUSY, DEVICE_OVERLOAD, NO_ANSWER}) | _UNREACHABLE

ANY = range(-100, 1_000)
"""All of them: for callers that look at each answer themselves."""


def error_of(code: int, what: str, options: AerospikeOptions, namespace: str, detail: str = "") -> IgnisError:
    """The exception for a result code."""
    said = f"{what}: {detail or 'refused'} (code {code})"
    if code in {TIMEOUT, NO_ANSWER}:
        return StoreTimeoutError(what, options.total_timeout_ms)
    if code in _UNREACHABLE:
        return StoreUnreachableError(f"Aerospike cannot be reached, {said}")
    if code == NO_NAMESPACE:
        return NamespaceNotFoundError(namespace)
    if code == SERVER_FULL:
        return StoreFullError(f"namespace {namespace!r} takes no more writes, {said}")
    if code == DEVICE_OVERLOAD:
        return DeviceOverloadError(f"the server's disks cannot keep up, {said}")
    if code == BUSY:
        return HotKeyError(f"too many calls wait for one record, {said}")
    if code == FORBIDDEN:
        return StoreError(f"the server forbids it, {said}; times to live need nsup-period in namespace {namespace!r}")
    if code in _NO_SECURITY:
        return StoreError(f"the server has no users, and a user was given, {said}; leave user and password away")
    if code in AUTHENTICATION:
        return StoreError(f"the server does not let us in, {said}")
    return StoreError(said)
