"""The names that users import. Removing one, or adding one by accident, is seen here."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ignis
from ignis import errors
from tests.support import WAIT_S

PUBLIC = [
    "DROPPED",
    "ArrayQueue",
    "Attempt",
    "Context",
    "Failure",
    "Fired",
    "Ignis",
    "IgnisError",
    "Lock",
    "LockLevel",
    "LockManager",
    "Magazine",
    "Message",
    "MessageIds",
    "Published",
    "Publisher",
    "Queue",
    "Receipt",
    "Retry",
    "RetryLater",
    "__version__",
]

ERRORS = {
    "AddressInUseError": "address_in_use",
    "BadRequestError": "bad_request",
    "BrokerError": "broker",
    "ChannelFullError": "channel_full",
    "ClosedError": "closed",
    "ConfigError": "config",
    "ConflictError": "conflict",
    "ConnectionLostError": "connection_lost",
    "ConsumerLimitError": "consumer_limit",
    "CoordinatorError": "coordinator",
    "CoordinatorUnreachableError": "coordinator_unreachable",
    "CorruptRecordError": "corrupt",
    "DoubleReleaseError": "double_release",
    "DrainingError": "draining",
    "ForeignReferenceError": "foreign_reference",
    "DelayNotSupportedError": "delay_not_supported",
    "ForkedHandleError": "forked",
    "FrameTooLargeError": "frame_too_large",
    "HandlerNotCalledError": "handler_not_called",
    "HandlerTimeoutError": "handler_timeout",
    "IgnisError": "error",
    "InvalidMessageError": "invalid_message",
    "InvalidNameError": "invalid_name",
    "LockConnectionError": "CONNECTION_ERROR",
    "LockError": "lock",
    "LockHeldError": "held",
    "LockInternalError": "INTERNAL_ERROR",
    "LockLostError": "LOCK_LOST",
    "LockRetriesExhaustedError": "RETRIES_EXHAUSTED",
    "LockUnavailableError": "LOCK_UNAVAILABLE",
    "MalformedFrameError": "malformed_frame",
    "MessageTooLargeError": "message_too_large",
    "NativeError": "native",
    "NestedCallError": "nested_call",
    "NoSizeClassError": "no_size_class",
    "PeerDiedError": "peer_died",
    "PermissionDeniedError": "permission_denied",
    "PoolExhaustedError": "pool_exhausted",
    "ProtocolError": "protocol",
    "PublishError": "publish_failed",
    "PublishOnlyError": "publish_only",
    "QueueMismatchError": "queue_mismatch",
    "QueueNotEmptyError": "queue_not_empty",
    "QueueNotFoundError": "queue_not_found",
    "QueueRemovedError": "queue_removed",
    "RegionBusyError": "region_busy",
    "RegionFormatError": "region_format",
    "RegionIOError": "region_io",
    "RegionTruncatedError": "region_truncated",
    "RelayAbsentError": "relay_absent",
    "RelayRefusedError": "relay_refused",
    "ScheduleNotFoundError": "schedule_not_found",
    "StoreTimeoutError": "store_timeout",
    "RecordTooLargeError": "record_too_large",
    "MainGuardError": "main_guard",
    "NamespaceNotFoundError": "namespace_unknown",
    "DeviceOverloadError": "device_overload",
    "HotKeyError": "hot_key",
    "StaleEpochError": "stale_epoch",
    "StaleReferenceError": "stale_reference",
    "StoreBusyError": "store_busy",
    "StoreError": "store",
    "StoreFailedError": "store_failed",
    "StoreFormatError": "store_format",
    "StoreFullError": "store_full",
    "StoreUnreachableError": "store_unreachable",
    "TlsError": "tls",
    "TooManyRejectedError": "too_many_rejected",
    "TooManyRequestsError": "too_many_requests",
    "UnauthenticatedError": "unauthenticated",
    "UnreadableMessageError": "unreadable",
    "WaitTimeoutError": "timeout",
    "WorkerStartError": "worker_start",
}


def test_the_package() -> None:
    assert sorted(ignis.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(ignis, name) is not None


def test_errors_and_their_codes() -> None:
    found = {
        name: kind.code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.IgnisError)
    }
    assert found == ERRORS
    assert len(set(found.values())) == len(found), "a code names one error"


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_has_one_root_and_no_builtin_name(name: str) -> None:
    import builtins

    kind = getattr(errors, name)
    assert issubclass(kind, errors.IgnisError)
    assert isinstance(kind.retryable, bool)
    assert not hasattr(builtins, name)
    assert kind.__doc__


@pytest.mark.parametrize(
    "module",
    [
        "app",
        "array_queue",
        "async_publisher",
        "clock",
        "config",
        "consumer",
        "consumer.acknowledger",
        "consumer.claims",
        "consumer.handler",
        "consumer.handler_pattern",
        "consumer.pools",
        "control.autoscaler",
        "control.queue_depths",
        "control.scheduler",
        "control.redelivery",
        "control.refresher",
        "control.sweep_clock",
        "control.sweeper",
        "hooks",
        "http_endpoint",
        "leader",
        "locks",
        "magazine",
        "message",
        "metrics",
        "publisher",
        "pydantic_models",
        "queue",
        "shovel",
        "storage",
        "storage.base",
        "supervisor",
        "testing",
        "upkeep",
    ],
)
def test_every_module_lists_its_names(module: str) -> None:
    found = importlib.import_module(f"ignis.{module}")
    assert len(set(found.__all__)) == len(found.__all__)
    for name in found.__all__:
        assert hasattr(found, name), name


def test_a_name_is_imported_when_it_is_used() -> None:
    script = """
import pickle, sys, ignis
assert not [name for name in sys.modules if name.startswith("ignis.app") or name == "asyncio"]
assert set(ignis.__all__) <= set(dir(ignis))
assert ignis.errors.IgnisError is ignis.IgnisError
assert pickle.loads(pickle.dumps(ignis.Retry)) is ignis.Retry
names = {}
exec("from ignis import *", names)
assert set(ignis.__all__) <= set(names) and names["Ignis"].__module__ == "ignis.app"
for name in ("Nobody", "nobody", "_nobody"):
    assert not hasattr(ignis, name)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=WAIT_S)


@pytest.mark.parametrize(
    ("command", "unwanted"),
    [
        ("--version", ("asyncio", "rich", "ignis.storage.embedded", "ignis.app", "ignis.magazine", "ignis.broker")),
        ("stats", ("asyncio", "rich", "ignis.app", "ignis.queue", "ignis.consumer", "ignis.broker")),
    ],
)
def test_a_command_imports_what_it_needs(command: str, unwanted: tuple[str, ...], tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    with ignis.Ignis(url) as app:
        app.queue("orders", int).publish(1)
    script = (
        "import sys\nfrom ignis.cli import main\n"
        f"code = main([{command!r}, '--url', {url!r}])\n"
        f"print(code, sorted(name for name in {unwanted!r} if name in sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.stderr.splitlines()[-1:] == ["0 []"]
