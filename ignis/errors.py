"""Every exception of ignis.

One root, :class:`IgnisError`. Each class has a stable ``code`` (the string used on the wire, in logs, in metrics
and in ``--json`` output) and says whether the same call may succeed later (``retryable``). The numbers that an
error is about are attributes, not only text. "Empty" and "need more" are results, never exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class IgnisError(Exception):
    """Root of every error that ignis raises.

    Attributes: ``code`` (a fixed text that names the class), ``retryable`` (whether the same call may succeed later),
    ``stored_messages`` (of a call with many messages: how many of the first are stored all the same), ``removed_messages``
    (of one that removes many: how many are gone all the same).
    """

    code = "error"
    retryable = False
    stored_messages = 0
    removed_messages = 0

    def tell_of_many(self, index: int | None, stored: int) -> None:
        """Adds which message of a call with many it is about, and how many of the first are stored."""
        text = str(self) if index is None else f"messages[{index}]: {self}"
        self.stored_messages = stored
        self.args = (
            f"{text}; the first {stored:,} messages of the call are stored" if stored else text,
            *self.args[1:],
        )

    def tell_of_removed(self, count: int) -> None:
        """Adds how many messages the call had removed before."""
        self.removed_messages = count
        self.args = (f"{self}; {count:,} messages were removed before", *self.args[1:])


# -- the caller's mistake ------------------------------------------------------------------------------------


class ConfigError(IgnisError, ValueError):
    """A setting or an argument has a value that is not allowed. The message names the setting, the value and the range."""

    code = "config"


class InvalidNameError(ConfigError):
    """A name, such as that of a queue, is not allowed. The message says what is: ``[A-Za-z0-9._-]{1,128}`` for most names."""

    code = "invalid_name"


class InvalidMessageError(IgnisError, TypeError):
    """The message cannot be encoded as the queue's message type."""

    code = "invalid_message"


class MessageTooLargeError(IgnisError, ValueError):
    """The encoded message, or a part of it, is larger than the limit.

    Attributes: ``size_bytes``, ``limit_bytes``, ``setting`` (the setting that changes the limit), ``part``
    (``message``, ``headers`` or ``key``; ``call`` where a store was given more at once than one transaction takes; ``value``).
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
        # Without the part where it is the whole message: a broker's client may know three arguments only.
        part = () if self.part == "message" else (self.part,)
        return (type(self), (self.size_bytes, self.limit_bytes, self.setting, *part))


class UnreadableMessageError(IgnisError, ValueError):
    """Stored or received bytes are not a message: their version is unknown, they are cut short, or not of the queue's type."""

    code = "unreadable"


class CorruptRecordError(UnreadableMessageError):
    """A stored record does not match its checksum. It is set aside, never delivered."""

    code = "corrupt"


# -- the native core -----------------------------------------------------------------------------------------


class NativeError(IgnisError):
    """Root of the errors of the C core."""

    code = "native"


class RegionFormatError(NativeError):
    """The file is not an ignis region, or it has another layout version."""

    code = "region_format"


class RegionTruncatedError(NativeError):
    """The region's file is shorter than its header says, or shrank while it was mapped."""

    code = "region_truncated"


class RegionBusyError(NativeError):
    """A living process has the side of the region that was asked for."""

    code = "region_busy"
    retryable = True


class RegionIOError(NativeError, OSError):
    """A system call on the region's file failed; ``errno`` says how."""

    code = "region_io"


class NoSizeClassError(NativeError, ValueError):
    """No size class of the slab is large enough, free or not."""

    code = "no_size_class"


class PoolExhaustedError(NativeError):
    """The size class has no free slot at this moment."""

    code = "pool_exhausted"
    retryable = True


class DoubleReleaseError(NativeError):
    """The buffer was released before."""

    code = "double_release"


class StaleReferenceError(NativeError):
    """The reference is to an earlier use of the slot."""

    code = "stale_reference"


class ForeignReferenceError(NativeError):
    """The reference points outside the slab."""

    code = "foreign_reference"


class MalformedFrameError(NativeError, ValueError):
    """The bytes are not a frame. The stream that they came from cannot be read further."""

    code = "malformed_frame"


_TLS_RECORD = 0x1603
"""With these two bytes a client of TLS begins, of whatever version."""


class FrameTooLargeError(MalformedFrameError):
    """The frame announces more than the limit. Attributes: ``size_bytes``, ``limit_bytes``."""

    code = "frame_too_large"

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        text = f"frame announces {size_bytes} bytes, the limit is {limit_bytes} bytes (max_frame_bytes)"
        if size_bytes >> 16 == _TLS_RECORD:
            text = "what came is the beginning of TLS and no frame: a client of TLS (ignis+tls://) speaks to a port without it"
        super().__init__(text)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __reduce__(self) -> tuple[type, tuple[int, int]]:
        return (type(self), (self.size_bytes, self.limit_bytes))


class ChannelFullError(NativeError):
    """The ring or the slab behind it has no room, and the caller asked not to wait."""

    code = "channel_full"
    retryable = True


class PeerDiedError(NativeError):
    """The process on the other side is gone. Everything that it had committed was delivered before this error."""

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
    """Root of the errors of a store."""

    code = "store"


class StoreUnreachableError(StoreError):
    """The store cannot be opened or reached, or descriptors, memory or threads are lacking.

    Attributes: ``missing`` (there is no store at the place, and it was not to be made; known where it was raised).
    """

    code = "store_unreachable"
    retryable = True
    missing = False


class StoreFormatError(StoreError):
    """The store has another format version, is damaged, or is not an ignis store; or one record of it is damaged."""

    code = "store_format"


class StoreFullError(StoreError):
    """The disk is full, or the store's size limit is reached. Nothing was stored; claims and deletes go on."""

    code = "store_full"
    retryable = True


class StoreFailedError(StoreError):
    """A write, a flush or a read of the store's files failed. Nothing was stored, unless the text says that this is not known;
    who publishes again may then have it twice.

    The next call tries again, and writes into another file: a second ``fsync`` after a failed one reports success without
    having written anything.
    """

    code = "store_failed"
    retryable = True


class StoreBusyError(StoreError):
    """Others held the store's lock, or changed what the call was to change, for longer than the bound."""

    code = "store_busy"
    retryable = True


class StoreTimeoutError(StoreError):
    """The store did not answer in time, so the call may or may not have been done.

    Attributes: ``what`` (the call), ``timeout_ms`` (the limit that ran out), ``setting`` (the setting that changes it).
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

    Attributes: ``size_bytes``, ``limit_bytes`` (0 = not known), ``setting`` (the setting that changes the limit).
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
    """The server has no namespace of that name. Attributes: ``namespace``, ``known`` (those that it has)."""

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
    """This store does not keep delayed messages; nothing was published, and no handler with ``retry`` was started. The memory
    store, the embedded store and the Aerospike store do.

    Attributes: ``store`` (the store that was asked).
    """

    code = "delay_not_supported"

    def __init__(self, store: str, *, needs: str = "") -> None:
        super().__init__(
            f"{needs}{store} keeps no delayed messages; the embedded store (embedded:///directory), Aerospike "
            "(aerospike://host:3000/namespace) and the memory store (memory://) do"
        )
        self.store = store

    def __reduce__(self) -> tuple[type, tuple[str], dict[str, Any]]:
        return (type(self), (self.store,), {"args": self.args})  # a broker's answer has the store alone


class LockHeldError(IgnisError):
    """Another owner holds the lock or the leadership."""

    code = "held"
    retryable = True


class AddressInUseError(IgnisError, OSError):
    """Another process listens at the address. Attributes: ``address``, ``setting`` (the option that gives another one)."""

    code = "address_in_use"

    def __init__(self, address: str, setting: str) -> None:
        super().__init__(f"another process listens at {address}; give another address with {setting}")
        self.address = address
        self.setting = setting

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (self.address, self.setting))


class CoordinatorError(IgnisError):
    """ZooKeeper refused a request of the election: for a permission, a certificate, or a node that another instance keeps."""

    code = "coordinator"


class CoordinatorUnreachableError(CoordinatorError):
    """ZooKeeper does not answer, so it is not known who leads. This instance does not sweep until it answers."""

    code = "coordinator_unreachable"
    retryable = True


# -- distributed locks: the codes are those that the Java lock manager uses ------------------------------------


class LockError(IgnisError):
    """Root of the errors of distributed locks."""

    code = "lock"


class LockUnavailableError(LockError, TimeoutError):
    """Another owner held the lock until the timeout.

    Attributes: ``lock_id``, ``waited_s``.
    """

    code = "LOCK_UNAVAILABLE"
    retryable = True

    def __init__(self, lock_id: str, waited_s: float) -> None:
        super().__init__(f"lock {lock_id!r} was held by somebody else for all of {waited_s:g} s (locks.timeout_s)")
        self.lock_id = lock_id
        self.waited_s = waited_s

    def __reduce__(self) -> tuple[type, tuple[str, float]]:
        return (type(self), (self.lock_id, self.waited_s))


class LockLostError(LockError):
    """The lock is not held: its time ran out, or it was never acquired. Stop what it protects."""

    code = "LOCK_LOST"


class LockConnectionError(LockError):
    """The store did not answer any of the tries to acquire or renew the lock.

    The lock may stay held, with no owner, until its time to live has run out.
    """

    code = "CONNECTION_ERROR"
    retryable = True


class LockRetriesExhaustedError(LockError):
    """The store did not confirm the release in any of the tries. The lock ends with its time to live at the latest."""

    code = "RETRIES_EXHAUSTED"
    retryable = True


class LockInternalError(LockError):
    """The store refused the lock for a reason that trying again does not change; ``__cause__`` says which."""

    code = "INTERNAL_ERROR"


# -- queues and workers --------------------------------------------------------------------------------------


class QueueNotFoundError(IgnisError, LookupError):
    """No queue of that name is registered in the store."""

    code = "queue_not_found"


class QueueRemovedError(QueueNotFoundError):
    """The queue was removed while it was in use here. Nothing was stored. ``queue.open()`` makes it anew."""

    code = "queue_removed"


class ScheduleNotFoundError(IgnisError, LookupError):
    """No schedule of that name is stored."""

    code = "schedule_not_found"


class QueueMismatchError(ConfigError):
    """The queue or magazine exists with other settings, and they cannot be changed in this way. Nothing has changed."""

    code = "queue_mismatch"


class ConsumerLimitError(ConfigError):
    """More consumers were asked for than the limit. Attributes: ``asked``, ``limit``, ``setting`` (the one that sets it)."""

    code = "consumer_limit"

    def __init__(self, asked: int, limit: int, setting: str = "consumer.max_consumers") -> None:
        super().__init__(f"{asked} consumers asked for, the limit is {limit} ({setting})")
        self.asked = asked
        self.limit = limit
        self.setting = setting

    def __reduce__(self) -> tuple[type, tuple[int | str, ...]]:
        # These also go through a broker's wire, where earlier releases know two.
        given: tuple[int | str, ...] = (self.asked, self.limit)
        return (type(self), given if self.setting == "consumer.max_consumers" else (*given, self.setting))


class WorkerStartError(IgnisError):
    """The workers of a handler cannot start, or cannot go on.

    The module of a worker process cannot be imported, the script around it fails, the processes are killed at once, or the
    event loop of coroutines has ended. Attributes: ``handler``, ``queue``, ``why`` (the error in the worker process, or how
    it ended).
    """

    code = "worker_start"

    def __init__(self, handler: str, queue: str, why: str) -> None:
        super().__init__(f"workers for handler {handler} of queue {queue!r} cannot start: {why}")
        self.handler = handler
        self.queue = queue
        self.why = why

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return (type(self), (self.handler, self.queue, self.why))


class MainGuardError(ConfigError):
    """A module that is imported to find a handler or an application opened a store or started something.

    The module is a script that a worker process runs again to find its handler, or one that ``ignis worker`` imports.
    Attributes: ``call`` (what it called), ``where`` (in which of the two).
    """

    code = "main_guard"
    RUN_AGAIN = "a script that a worker process runs again to find its handler"
    IMPORTED = "a module that ignis worker imports to run its application"

    def __init__(self, call: str, where: str = RUN_AGAIN) -> None:
        super().__init__(
            f"{call}, in {where}: put everything that is not a "
            'definition under  if __name__ == "__main__":  or the handler into a module of its own'
        )
        self.call = call
        self.where = where

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (self.call, self.where))


class HandlerTimeoutError(IgnisError, TimeoutError):
    """A handler ran for longer than its ``timeout_s``; the message went to the sideline."""

    code = "handler_timeout"


class HandlerNotCalledError(IgnisError):
    """A middleware returned ``None`` without calling ``call_next``, so the handler did not run; the message went to the
    sideline. Attributes: ``middleware`` (its name), ``awaited`` (whether it is a coroutine function)."""

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
    """Buffered messages failed: the store refused them, or nobody knows whether it has them, as ``why`` says.

    Attributes: ``failed`` (how many), ``why`` (of the first), ``__cause__`` (the first error)."""

    code = "publish_failed"

    def __init__(self, failed: int, why: str) -> None:
        super().__init__(f"{failed} buffered message(s) failed: {why}")
        self.failed = failed
        self.why = why

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return (type(self), (self.failed, self.why))


# -- the relay -----------------------------------------------------------------------------------------------


class RelayAbsentError(WaitTimeoutError):
    """No relay runs on the directory, and none started in time. Messages sent before wait there for the next one.

    Attributes: ``directory``, ``what``, ``sent``. ``sent`` is True when the message is in the channel and the next relay
    stores it. Then the error is not ``retryable``, as a message that is published again is stored twice. False: there was no
    room for it.
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
    """The relay refused a channel: the queue has other settings, or the channel's content is damaged.

    Messages that it had not taken are set aside in the directory. Attributes: ``channel``, ``why``.
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
    """The URL is that of a relay, which only takes messages in. Attributes: ``call``, ``url``."""

    code = "publish_only"

    def __init__(self, call: str, url: str) -> None:
        super().__init__(f"{url} only takes messages in: for {call} open the store that its relay was given")
        self.call = call
        self.url = url

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (self.call, self.url))


# -- broker and its clients ----------------------------------------------------------------------------------


class BrokerError(IgnisError):
    """Root of the errors of a broker, or of its clients, about their connection."""

    code = "broker"


class ProtocolError(BrokerError):
    """The other side broke the protocol, or speaks another version of it. The connection is closed."""

    code = "protocol"


class BadRequestError(BrokerError, ValueError):
    """The payload of one request breaks the protocol. The connection goes on."""

    code = "bad_request"


class TlsError(BrokerError):
    """TLS with the broker failed and would fail again: a certificate is not accepted, or one side has no TLS."""

    code = "tls"


class UnauthenticatedError(BrokerError):
    """The broker does not know who is asking, or the token or password is wrong. The connection is closed."""

    code = "unauthenticated"


class PermissionDeniedError(BrokerError):
    """The user may not give this command for this queue. For DECLARE it means that the queue does not exist, or that the user
    may not see it, and that a user with ``manage`` must make it; for SCHEDULES, that the rest of QUEUE_REPLACE would be allowed.
    Attributes: ``command``, ``queue``, and ``words``: those of the users file that allow the command, each for itself."""

    code = "permission_denied"

    def __init__(self, command: str, queue: str = "") -> None:
        text = f"no permission for {command}" + (f" on queue {queue!r}" if queue else "")
        if command == "DECLARE" and queue:
            text += (
                ", which does not exist or which this user may not see; a user with manage or all for it makes it: "
                f"ignis --url ... queue create {queue}"
            )
        elif command == "SCHEDULES" and queue:
            text += ": a user with manage or all for it adds, changes and removes its schedules"
        super().__init__(text)
        self.command = command
        self.queue = queue
        self.words: tuple[str, ...] = ()

    def tell_words(self, words: Sequence[str]) -> None:
        """Adds the words of the users file that allow the command, where the text does not say them already."""
        self.words = tuple(words)
        if len(words) > 1 and (self.command != "DECLARE" or not self.queue):
            self.args = (f"{self}: that takes {', '.join(words[:-1])} or {words[-1]}",)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.command, self.queue), {"args": self.args, "words": self.words})


_TOO_MANY = {
    "max_pending": "requests are waiting",
    "max_waiting_per_user": "requests of one user or address would wait for messages, or with a delayed NACK for their time",
    "max_applications": "applications would be served",
    "a quarter of broker.max_applications": "applications would be served for one user or address",
    "max_connections": "connections would be open",
    "max_connections_per_address": "connections of one address would be open",
    "max_unauthenticated": "connections have not said who they are",
    "max_unauthenticated_per_address": "connections of one address have not said who they are",
    "open files less broker.reserved_files": "files would be open",
    "watched magazines": "magazines are watched",
    "watched magazines of one user": "magazines would be watched for one user or address",
    "failed logins": "failed logins",
    "logins by password": "logins by password are waiting",
    "connections of the endpoint": "connections would be open",
    "connections of one address": "connections of one address would be open",
}
"""What exceeds the limit, by the setting that changes it."""


class TooManyRequestsError(BrokerError):
    """There are more requests, connections or applications than allowed. Nothing was done; wait for answers, then try again.

    Attributes: ``pending`` (how many there are), ``limit``, ``setting`` (the setting that changes the limit; or what there are
    too many of, and behind ``;`` what to do), ``retry_after_s`` (known where it was raised, 0 through a broker).
    """

    code = "too_many_requests"
    retryable = True
    retry_after_s = 0

    def __init__(self, pending: int, limit: int, setting: str = "broker.max_pending") -> None:
        name, _, advice = setting.partition("; ")
        what = _TOO_MANY.get(name.rpartition(".")[2] if name.startswith(("broker.", "client.")) else name, "")
        super().__init__(f"{pending}{what and f' {what}'}, the limit is {limit} ({advice or name})")
        self.pending = pending
        self.limit = limit
        self.setting = setting

    def __reduce__(self) -> tuple[type, tuple[int, int, str]]:
        return (type(self), (self.pending, self.limit, self.setting))


class ConnectionLostError(BrokerError):
    """The connection ended before the answer came.

    Attributes: ``why``, ``sent``. ``sent`` is False when the request never left this process, so nothing was done. True: it
    was given to the network, so it may or may not have been done.
    """

    code = "connection_lost"
    retryable = True

    def __init__(self, why: str, sent: bool = True) -> None:
        super().__init__(f"{why}; the request {'may or may not have been carried out' if sent else 'was not sent'}")
        self.why = why
        self.sent = sent

    def __reduce__(self) -> tuple[type, tuple[str, bool]]:
        return (type(self), (self.why, self.sent))


class NestedCallError(BrokerError, RuntimeError):
    """A signal's handler made a call over a connection on which the thread that it interrupted is in a call. Nothing was sent."""

    code = "nested_call"


class DrainingError(BrokerError):
    """The broker is shutting down and takes no new work. Connect to another one, or later to this one."""

    code = "draining"
    retryable = True


class QueueNotEmptyError(BrokerError):
    """The queue holds messages and is removed only with ``force``. Attributes: ``queue``, ``messages`` (how many)."""

    code = "queue_not_empty"

    def __init__(self, queue: str, messages: int) -> None:
        super().__init__(
            f"queue {queue!r} holds {messages} message(s), those in its sideline and the delayed ones included: let them be "
            "handled, drop them (ignis sideline drop, ignis later cancel), or delete it with force"
        )
        self.queue = queue
        self.messages = messages

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return (type(self), (self.queue, self.messages))


class ConflictError(BrokerError):
    """The value to replace has changed since it was read. Read it again, then try again."""

    code = "conflict"
    retryable = True


# -- pipelines -----------------------------------------------------------------------------------------------


class TooManyRejectedError(IgnisError, ValueError):
    """A pipeline rejected more rows of its input than it allows. Nothing was published.

    Attributes: ``rejected``, ``rows``, ``limit`` (the part of the rows that is allowed), ``setting`` (which changes it).
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
