"""Every exception of ignis.

One root, :class:`IgnisError`. Each class has a stable ``code`` (the string used on the wire, in logs, in metrics
and in ``--json`` output) and says whether the same call may succeed later (``retryable``). The numbers that an
error is about are attributes, not only text. "Empty" and "need more" are results, never exceptions.
"""

from __future__ import annotations

from typing import Any


class IgnisError(Exception):
    """Root of every error that ignis raises on purpose."""

    code = "error"
    retryable = False


# -- the caller's mistake ------------------------------------------------------------------------------------


class ConfigError(IgnisError, ValueError):
    """A setting has a value that it cannot have. The message names the setting, the value and the range."""

    code = "config"


class InvalidNameError(ConfigError):
    """A queue, magazine or application name does not match ``[A-Za-z0-9._-]{1,128}``."""

    code = "invalid_name"


class InvalidMessageError(IgnisError, TypeError):
    """The message cannot be encoded as the queue's message type."""

    code = "invalid_message"


class MessageTooLargeError(IgnisError, ValueError):
    """The encoded message, or a part of it, is larger than the limit.

    Attributes: ``size_bytes``, ``limit_bytes``, ``setting`` (the name of the setting that raises the limit), ``part``
    (``message``, ``headers`` or ``key``).
    """

    code = "message_too_large"

    def __init__(
        self, size_bytes: int, limit_bytes: int, setting: str = "max_message_bytes", part: str = "message"
    ) -> None:
        verb = "are" if part == "headers" else "is"
        what = f"{part} of {size_bytes} bytes {verb}"
        super().__init__(f"{what} over the limit of {limit_bytes} bytes ({setting})")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        self.setting = setting
        self.part = part

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        # As it was before there were parts, for clients of a broker that know of none.
        part = () if self.part == "message" else (self.part,)
        return (type(self), (self.size_bytes, self.limit_bytes, self.setting, *part))


class UnreadableMessageError(IgnisError, ValueError):
    """Stored or received bytes are not a message: unknown version, cut short, or not of the queue's type."""

    code = "unreadable"


class CorruptRecordError(UnreadableMessageError):
    """A stored record does not match its checksum. It is set aside, never delivered."""

    code = "corrupt"


# -- the native core -----------------------------------------------------------------------------------------


class NativeError(IgnisError):
    """Root of what the C core reports."""

    code = "native"


class RegionFormatError(NativeError):
    """The file is not an ignis region, or of another layout version."""

    code = "region_format"


class RegionTruncatedError(NativeError):
    """The region's file is shorter than its header says, or shrank while it was mapped."""

    code = "region_truncated"


class RegionBusyError(NativeError):
    """The side of the region that was asked for has a living owner."""

    code = "region_busy"
    retryable = True


class RegionIOError(NativeError, OSError):
    """A system call on the region's file failed; ``errno`` says how."""

    code = "region_io"


class NoSizeClassError(NativeError, ValueError):
    """No size class of the slab is large enough, whatever is free."""

    code = "no_size_class"


class PoolExhaustedError(NativeError):
    """The size class has no free slot at this moment."""

    code = "pool_exhausted"
    retryable = True


class DoubleReleaseError(NativeError):
    """The buffer was released before."""

    code = "double_release"


class StaleReferenceError(NativeError):
    """The reference is of an earlier life of the slot."""

    code = "stale_reference"


class ForeignReferenceError(NativeError):
    """The reference points outside the slab."""

    code = "foreign_reference"


class MalformedFrameError(NativeError, ValueError):
    """The bytes are not a frame. The stream they came from cannot be trusted further."""

    code = "malformed_frame"


class FrameTooLargeError(MalformedFrameError):
    """The frame announces more than the limit. Attributes: ``size_bytes``, ``limit_bytes``."""

    code = "frame_too_large"

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"frame announces {size_bytes} bytes, the limit is {limit_bytes} bytes (max_frame_bytes)")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __reduce__(self) -> tuple[type, tuple[int, int]]:
        return (type(self), (self.size_bytes, self.limit_bytes))


class ChannelFullError(NativeError):
    """The ring or the slab behind it has no room and the caller asked not to wait."""

    code = "channel_full"
    retryable = True


class PeerDiedError(NativeError):
    """The process on the other side is gone. Everything that it had committed was delivered before this."""

    code = "peer_died"


class ClosedError(IgnisError):
    """The object was closed."""

    code = "closed"


class ForkedHandleError(IgnisError):
    """A handle made before ``fork()`` was used in the child. Open a new one there."""

    code = "forked"


class WaitTimeoutError(IgnisError, TimeoutError):
    """A bounded wait ran out."""

    code = "timeout"
    retryable = True


# -- stores --------------------------------------------------------------------------------------------------


class StoreError(IgnisError):
    """Root of what a store reports."""

    code = "store"


class StoreUnreachableError(StoreError):
    """The store cannot be opened or reached."""

    code = "store_unreachable"
    retryable = True


class StoreFormatError(StoreError):
    """The directory holds a store of another format version, or none of ours."""

    code = "store_format"


class StoreFullError(StoreError):
    """The disk or the store's size limit has no room for a load. Nothing was stored; draining goes on."""

    code = "store_full"
    retryable = True


class StoreFailedError(StoreError):
    """A durable write failed in this process, so what is on disk is unknown: loads are refused until reopened.

    A second ``fsync`` after a failed one reports success without having written anything; hence no retry.
    """

    code = "store_failed"


class StoreBusyError(StoreError):
    """Another process holds the store's write lock for longer than the bound."""

    code = "store_busy"
    retryable = True


class StoreTimeoutError(StoreError):
    """The store did not answer in time, so what was asked for may or may not have been done.

    Attributes: ``timeout_ms`` (the limit that ran out), ``setting`` (its name).
    """

    code = "store_timeout"
    retryable = True

    def __init__(self, what: str, timeout_ms: int, setting: str = "total_timeout_ms") -> None:
        super().__init__(f"{what}: no answer within {timeout_ms} ms ({setting})")
        self.what = what
        self.timeout_ms = timeout_ms
        self.setting = setting

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return (type(self), (self.what, self.timeout_ms, self.setting))


class RecordTooLargeError(StoreError, ValueError):
    """A record is larger than the store's limit for one record. Nothing of it was stored.

    Attributes: ``size_bytes``, ``limit_bytes`` (0 = not known), ``setting`` (the name of the setting that raises it).
    """

    code = "record_too_large"

    def __init__(self, size_bytes: int, limit_bytes: int, setting: str = "max-record-size") -> None:
        limit = f"{limit_bytes} bytes" if limit_bytes else "the server's limit"
        super().__init__(f"record of {size_bytes} bytes is over {limit} ({setting})")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        self.setting = setting

    def __reduce__(self) -> tuple[type, tuple[int, int, str]]:
        return (type(self), (self.size_bytes, self.limit_bytes, self.setting))


class NamespaceNotFoundError(StoreError, LookupError):
    """The server has no namespace of that name. Attributes: ``namespace``, ``known``."""

    code = "namespace_unknown"

    def __init__(self, namespace: str, known: tuple[str, ...] = ()) -> None:
        has = f"; it has {', '.join(known)}" if known else ""
        super().__init__(f"the server has no namespace {namespace!r}{has}")
        self.namespace = namespace
        self.known = known

    def __reduce__(self) -> tuple[type, tuple[str, tuple[str, ...]]]:
        return (type(self), (self.namespace, self.known))


class DeviceOverloadError(StoreError):
    """The server's disks cannot keep up with the writes. Slow down and try again."""

    code = "device_overload"
    retryable = True


class HotKeyError(StoreError):
    """Too many calls wait for one and the same record. Try again; more shards spread the load."""

    code = "hot_key"
    retryable = True


class StaleEpochError(StoreError):
    """A control-plane write carried an epoch that a newer leader has replaced. Nothing was written."""

    code = "stale_epoch"


class DelayNotSupportedError(StoreError):
    """This store keeps no messages until they are due: nothing was published, and no handler with ``retry`` is started. The
    memory store and the embedded store do.

    Attributes: ``store``: which one was asked.
    """

    code = "delay_not_supported"

    def __init__(self, store: str, needs: str = "") -> None:
        super().__init__(
            f"{needs}{store} keeps no delayed messages; the embedded store (embedded:///directory) and the memory store "
            "(memory://) do"
        )
        self.store = store
        self._needs = needs

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (self.store, self._needs))


class LockHeldError(IgnisError):
    """Somebody else holds the lock or the leadership."""

    code = "held"
    retryable = True


class AddressInUseError(IgnisError, OSError):
    """Another process listens at the address. Attributes: ``address``, ``setting`` (what gives another)."""

    code = "address_in_use"

    def __init__(self, address: str, setting: str) -> None:
        super().__init__(f"another process listens at {address}; give another address with {setting}")
        self.address = address
        self.setting = setting

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (self.address, self.setting))


class CoordinatorError(IgnisError):
    """ZooKeeper refused what the election asked for: a permission, a certificate, a node that somebody else keeps."""

    code = "coordinator"


class CoordinatorUnreachableError(CoordinatorError):
    """ZooKeeper does not answer, so who leads is not known: nobody sweeps from here until it does."""

    code = "coordinator_unreachable"
    retryable = True


# -- distributed locks: the codes are those that the Java lock manager uses ------------------------------------


class LockError(IgnisError):
    """Root of what a distributed lock reports."""

    code = "lock"


class LockUnavailableError(LockError, TimeoutError):
    """Somebody else holds the lock, and went on holding it until the timeout.

    Attributes: ``lock_id``, ``waited_s``.
    """

    code = "LOCK_UNAVAILABLE"
    retryable = True

    def __init__(self, lock_id: str, waited_s: float) -> None:
        super().__init__(f"lock {lock_id!r} was held by somebody else for all of {waited_s:g} s")
        self.lock_id = lock_id
        self.waited_s = waited_s

    def __reduce__(self) -> tuple[type, tuple[str, float]]:
        return (type(self), (self.lock_id, self.waited_s))


class LockLostError(LockError):
    """The lock is not held, or not any more: its time ran out, or its holder never got it. Stop what it protects."""

    code = "LOCK_LOST"


class LockConnectionError(LockError):
    """The store could not be asked for the lock, nor for its renewal, in any of the tries.

    It may be held for nobody until its time to live has run out.
    """

    code = "CONNECTION_ERROR"
    retryable = True


class LockRetriesExhaustedError(LockError):
    """The store did not confirm the release in any of the tries. The lock ends with its time to live at the latest."""

    code = "RETRIES_EXHAUSTED"
    retryable = True


class LockInternalError(LockError):
    """The store refused for a reason that trying again does not change; ``__cause__`` says which."""

    code = "INTERNAL_ERROR"


# -- queues and workers --------------------------------------------------------------------------------------


class QueueNotFoundError(IgnisError, LookupError):
    """No queue of that name is registered in the store."""

    code = "queue_not_found"


class QueueRemovedError(QueueNotFoundError):
    """The queue was in use here, and somebody has removed it since. Nothing was stored. ``queue.open()`` makes it anew."""

    code = "queue_removed"


class ScheduleNotFoundError(IgnisError, LookupError):
    """No schedule of that name is stored."""

    code = "schedule_not_found"


class QueueMismatchError(ConfigError):
    """The queue exists with other settings that cannot change while it holds messages."""

    code = "queue_mismatch"


class ConsumerLimitError(ConfigError):
    """More consumers were asked for than the limit. Attributes: ``asked``, ``limit``."""

    code = "consumer_limit"

    def __init__(self, asked: int, limit: int) -> None:
        super().__init__(f"{asked} consumers asked for, the limit is {limit} (max_consumers)")
        self.asked = asked
        self.limit = limit

    def __reduce__(self) -> tuple[type, tuple[int, int]]:
        return (type(self), (self.asked, self.limit))


class WorkerStartError(IgnisError):
    """Workers of a handler cannot start, or go on: the module of a worker process cannot be imported, the script around it
    fails, they are killed at once, or the event loop of coroutines has ended. Attributes: ``handler``, ``queue``, ``why``
    (the error in the worker process, or how it ended)."""

    code = "worker_start"

    def __init__(self, handler: str, queue: str, why: str) -> None:
        super().__init__(f"workers for handler {handler} of queue {queue!r} cannot start: {why}")
        self.handler = handler
        self.queue = queue
        self.why = why

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return (type(self), (self.handler, self.queue, self.why))


class MainGuardError(ConfigError):
    """A script that a worker process runs again, to find the handler in it, opened a store or started something; or a module
    that ``ignis worker`` imports, to run its application, started it.

    Attributes: ``call``: what it called; ``where``: in which of them.
    """

    code = "main_guard"
    RUN_AGAIN = "a script that a worker process runs again to find its handler"
    IMPORTED = "a module that ignis worker imports to run its application"

    def __init__(self, call: str, where: str = RUN_AGAIN) -> None:
        super().__init__(
            f"{call}, in {where}: everything that is not a "
            'definition belongs under  if __name__ == "__main__":  or the handler into a module of its own'
        )
        self.call = call
        self.where = where

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (self.call, self.where))


class HandlerTimeoutError(IgnisError, TimeoutError):
    """A handler ran for longer than its ``timeout_s``; the message went to the sideline."""

    code = "handler_timeout"


class HandlerNotCalledError(IgnisError):
    """A middleware returned ``None`` and had not called what it stands round, so that the handler never ran; the message went
    to the sideline. Attributes: ``middleware`` (its name), ``awaited`` (whether it is a coroutine function)."""

    code = "handler_not_called"

    def __init__(self, middleware: str, awaited: bool) -> None:
        missing = "await call_next(ctx)" if awaited else "call_next(ctx)"
        super().__init__(
            f"middleware {middleware} returned None without `{missing}`: the handler did not run. Return its answer, or True "
            "(done) or False (failed) to answer in its place"
        )
        self.middleware = middleware
        self.awaited = awaited

    def __reduce__(self) -> tuple[type, tuple[str, bool]]:
        return (type(self), (self.middleware, self.awaited))


class PublishError(IgnisError):
    """Buffered messages could not be stored. Attributes: ``failed`` (count) and ``__cause__`` (the first error)."""

    code = "publish_failed"

    def __init__(self, failed: int, why: str) -> None:
        super().__init__(f"{failed} buffered message(s) were not stored: {why}")
        self.failed = failed
        self.why = why

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return (type(self), (self.failed, self.why))


# -- the relay -----------------------------------------------------------------------------------------------


class RelayAbsentError(WaitTimeoutError):
    """No relay collects from the directory, and none came in time. What was sent before waits there for the next one.

    Attributes: ``directory``, ``what``. ``sent``: True = the message is in the channel, and the next relay stores it: then it is
    not ``retryable``, for who publishes it again has it stored twice; False = there was no room for it.
    """

    code = "relay_absent"

    def __init__(self, directory: str, what: str, sent: bool = False) -> None:
        super().__init__(f"{what}; no relay runs on {directory} (start: ignis relay --dir {directory} --url ...)")
        self.directory = directory
        self.what = what
        self.sent = sent
        self.retryable = not sent

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return (type(self), (self.directory, self.what, *([True] if self.sent else [])))


class RelayRefusedError(IgnisError):
    """The relay refused a channel: the queue has other settings, or its contents were damaged.

    What it had not taken is set aside in the directory. Attributes: ``channel``, ``why``.
    """

    code = "relay_refused"

    def __init__(self, channel: str, why: str) -> None:
        super().__init__(
            f"the relay refused what this process sent to queue {channel.rpartition('.')[0].rpartition('.')[0] or channel!r}, "
            f"which is put aside as {channel}: {why}"
        )
        self.channel = channel
        self.why = why

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (self.channel, self.why))


class PublishOnlyError(StoreError):
    """The URL leads to a relay, which takes messages in and nothing else. Attributes: ``call``, ``url``."""

    code = "publish_only"

    def __init__(self, call: str, url: str) -> None:
        super().__init__(f"{url} only takes messages in: for {call} open the store that its relay was given")
        self.call = call
        self.url = url

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (self.call, self.url))


# -- broker and its clients ----------------------------------------------------------------------------------


class BrokerError(IgnisError):
    """Root of what a broker, or a client of one, reports about their connection."""

    code = "broker"


class ProtocolError(BrokerError):
    """The other side broke the protocol, or speaks another version of it. The connection is closed."""

    code = "protocol"


class BadRequestError(BrokerError, ValueError):
    """The payload of one request breaks the protocol. The connection goes on."""

    code = "bad_request"


class TlsError(BrokerError):
    """TLS with the broker fails, and would fail again: a certificate that is not accepted, or a side without TLS."""

    code = "tls"


class UnauthenticatedError(BrokerError):
    """The broker does not know who is asking, or the token or password is wrong. The connection is closed."""

    code = "unauthenticated"


class PermissionDeniedError(BrokerError):
    """Whoever is connected may not do this to this queue. Of DECLARE it means that there is no such queue, as far as this user
    may see, and that another one has to make it. Attributes: ``command``, ``queue``."""

    code = "permission_denied"

    def __init__(self, command: str, queue: str = "") -> None:
        text = f"no permission for {command}" + (f" on queue {queue!r}" if queue else "")
        if command == "DECLARE" and queue:
            text += (
                ", which does not exist or which this user may not see; a user with manage or all for it makes it: "
                f"ignis --url ... queue create {queue}"
            )
        super().__init__(text)
        self.command = command
        self.queue = queue

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (self.command, self.queue))


_TOO_MANY = {
    "max_pending": "requests are waiting",
    "max_applications": "applications would be served",
    "a quarter of broker.max_applications": "applications would be served for one user or address",
    "max_connections": "connections would be open",
    "max_connections_per_address": "connections of one address would be open",
    "max_unauthenticated": "connections have not said who they are",
    "max_unauthenticated_per_address": "connections of one address have not said who they are",
    "open files less broker.reserved_files": "files would be open",
    "watched magazines": "magazines are watched",
}
"""What there are too many of, by the setting."""


class TooManyRequestsError(BrokerError):
    """There are more requests, connections or applications than may be. Nothing was done; wait for answers, then try again.

    Attributes: ``pending`` (how many there are), ``limit``, ``setting`` (the name of the setting that raises the limit).
    """

    code = "too_many_requests"
    retryable = True

    def __init__(self, pending: int, limit: int, setting: str = "broker.max_pending") -> None:
        what = _TOO_MANY.get(setting.rpartition(".")[2] if setting.startswith(("broker.", "client.")) else setting, "")
        super().__init__(f"{pending}{what and f' {what}'}, the limit is {limit} ({setting})")
        self.pending = pending
        self.limit = limit
        self.setting = setting

    def __reduce__(self) -> tuple[type, tuple[int, int, str]]:
        return (type(self), (self.pending, self.limit, self.setting))


class ConnectionLostError(BrokerError):
    """The connection ended before the answer came.

    Attributes: ``sent``: False = the request never left this process, so nothing was done; True = it was handed to the
    network, so it may or may not have been done.
    """

    code = "connection_lost"
    retryable = True

    def __init__(self, why: str, sent: bool = True) -> None:
        super().__init__(f"{why}; the request {'may or may not have been carried out' if sent else 'was not sent'}")
        self.why = why
        self.sent = sent

    def __reduce__(self) -> tuple[type, tuple[str, bool]]:
        return (type(self), (self.why, self.sent))


class DrainingError(BrokerError):
    """The broker is shutting down and takes no new work. Connect again, to this one later or to another one."""

    code = "draining"
    retryable = True


class QueueNotEmptyError(BrokerError):
    """The queue holds messages and was not to be removed with them. Attributes: ``queue``, ``messages``."""

    code = "queue_not_empty"

    def __init__(self, queue: str, messages: int) -> None:
        super().__init__(f"queue {queue!r} holds {messages} message(s); drain it, or delete it with force")
        self.queue = queue
        self.messages = messages

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return (type(self), (self.queue, self.messages))


class ConflictError(BrokerError):
    """What was to be replaced has changed since it was read. Read it again, then try again."""

    code = "conflict"
    retryable = True


# -- pipelines -----------------------------------------------------------------------------------------------


class TooManyRejectedError(IgnisError, ValueError):
    """More rows of a pipeline's input were rejected than it allows. Nothing was published.

    Attributes: ``rejected``, ``rows``, ``limit`` (the part of the rows that is allowed), ``setting``.
    """

    code = "too_many_rejected"

    def __init__(self, rejected: int, rows: int, limit: float, setting: str = "ingest.max_rejected") -> None:
        super().__init__(
            f"{rejected:,} of {rows:,} rows are rejected, more than the part of {limit:g} that is allowed ({setting}); "
            "nothing was published"
        )
        self.rejected = rejected
        self.rows = rows
        self.limit = limit
        self.setting = setting

    def __reduce__(self) -> tuple[type, tuple[int, int, float, str]]:
        return (type(self), (self.rejected, self.rows, self.limit, self.setting))
