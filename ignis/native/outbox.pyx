# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, auto_pickle=False
"""The producer's hot path: messages are encoded straight into a slab slot, and a flusher drains them as packed batches.

Messages are numbered from 1 in the order they were sent. The flusher settles them in that order, so a receipt is two words,
the outbox and a number, and completing a batch is one addition, whatever its size; only receipts that somebody waits on
cost anything of their own.
"""

import heapq
import time
from bisect import bisect_left
from _thread import allocate_lock

from ignis.native._pools import register

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from ignis.native.channel cimport (
    IGN_BYTERING_MAX_BYTES, IGN_NOTE_REFUSED, IGN_PRODUCER, ign_bytering_size_valid, ign_channel_advance,
    ign_channel_close, ign_channel_collect, ign_channel_create, ign_channel_depth, ign_channel_flush, ign_channel_give_back,
    ign_channel_heap, ign_channel_interrupt, ign_channel_peek, ign_channel_publish, ign_channel_read_pos,
    ign_channel_reserve, ign_channel_set_small, ign_channel_stage, ign_channel_wait_items, ign_channel_wait_progress, ign_channel_wait_space,
    ign_message, ign_now_ns, ign_prefetch, ign_region_check, ign_region_config, ign_region_config_default,
    ign_region_get_note,
)
from ignis.native.record cimport (
    BatchBuilder, PackedBatch, builder_abort, builder_add, builder_close, builder_open, encode_into, next_id, now_us,
    record_bytes, text_of_id,
)
from ignis.native.slab cimport ign_slab, ign_slab_ref
from ignis.native.wait cimport ign_board_close, ign_board_open, ign_event_advance, ign_event_notify

include "_errors.pxi"
include "_arguments.pxi"
include "_time.pxi"
include "_pool.pxi"

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef extern from "Python.h":
    ctypedef struct PyObject:
        pass
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef struct PyTypeObject:
        traverseproc tp_traverse
    void PyErr_SetObject(object kind, object value)
    void PyErr_WriteUnraisable(object where)

cdef enum:
    CLOSE_NS = 5000000000   # most that close() waits for threads that are inside
    # What an envelope may add to a body: fixed part, the longest key, and as much again for the meta map.
    ENVELOPE_BYTES = 36 + 65535 + 65537


include "_packing.pxi"


def _complete_futures(list pairs not None):
    """In the loop's thread: what became of the receipts that were awaited there."""
    for future, receipt in pairs:
        try:
            complete_future(future, <Receipt?>receipt)
        except BaseException as error:
            report(error, future)  # the others are completed all the same


cdef int complete_future(object future, Receipt receipt) except -1:
    if future.done():
        return 0
    error = receipt.exception(0)
    if error is None:
        future.set_result(receipt.id)
    else:
        future.set_exception(error)
    return 0


cdef int _check_timeout(object timeout) except -1:
    """Raises ConfigError for what is no number of seconds. The exact types first: whoever waits for receipts does so often."""
    if type(timeout) is float or type(timeout) is int:
        if timeout >= 0:
            return 0
    elif timeout is None:
        return 0
    elif isinstance(timeout, (float, int)) and not isinstance(timeout, bool) and timeout >= 0:
        return 0
    raise _errors.ConfigError(f"timeout = {repr(timeout)[:80]} is not a number of seconds, 0 or more")



@cython.final
@cython.no_gc         # a collector that counted receipts would cost more than the sending; see traverse_waiting
@cython.freelist(4096)
cdef class Receipt:
    """The promise of one message: done when the message is durable, or refused.

    Made by :meth:`Outbox.send`. Safe from any thread; can be awaited in any event loop. Cannot be copied or pickled.
    """

    def __init__(self):
        raise TypeError("receipts come from Outbox.send()")

    def __reduce__(self):
        refuse_copy(self)

    cdef Outbox _of(self):
        if self._outbox is None:
            raise TypeError("receipts come from Outbox.send(), not from Receipt.__new__")
        return self._outbox

    @property
    def id(self) -> str:
        """The message's id: the text of a UUIDv7, as `Message.id`. Made when asked for."""
        return text_of_id(self._id)

    @property
    def sequence(self) -> int:
        """Number of the message in its outbox; the first is 1."""
        return self._sequence

    def done(self) -> bool:
        """True once the message is durable or refused."""
        return self._of()._is_settled(self._sequence)

    cdef int _await_done(self, object timeout) except -1:
        cdef Outbox outbox = self._of()
        _check_timeout(timeout)
        if outbox._settled < self._sequence:
            outbox.wait_settled(self._sequence, timeout)
        return 0

    def result(self, timeout=30.0) -> str:
        """Waits until the message is durable and returns its id.

        Args:
            timeout: seconds, 0 or more; None is 30 s, a day is the most.

        Raises:
            What the store raised, when it refused the message. WaitTimeoutError, ForkedHandleError. ConfigError: no such
            timeout can be.
        """
        self._await_done(timeout)
        error = self._outbox._error_of(self._sequence)
        if error is not None:
            raise error
        return self.id

    def exception(self, timeout=30.0):
        """Waits until the message is durable (None) or refused (the error)."""
        self._await_done(timeout)
        return self._outbox._error_of(self._sequence)

    def add_done_callback(self, fn) -> None:
        """Calls ``fn(receipt)`` once it is done: in the flusher's thread, or here and now when it is already.

        What ``fn`` raises, of whatever kind, goes to ``sys.unraisablehook`` and no further.
        """
        cdef Outbox outbox = self._of()
        if not callable(fn):
            raise TypeError(f"a callback is called with the receipt, {fn!r} cannot be")
        if not outbox._is_settled(self._sequence):
            outbox._register(self._sequence, (fn, self))
            return
        try:
            fn(self)
        except BaseException as error:
            report(error, fn)

    def __await__(self):
        if not self._of()._is_settled(self._sequence):
            import asyncio

            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._outbox._register(self._sequence, (loop, future, self))
            yield from future.__await__()
        return self.result(0)

    def __repr__(self) -> str:
        if self._outbox is None:
            return "<Receipt of nothing>"
        return f"<Receipt {self._sequence} {'done' if self.done() else 'pending'}>"


@cython.final
@cython.no_gc_clear
cdef class Outbox:
    """A ring of encoded messages on their way to a store.

    Args:
        capacity: messages in flight, a power of two up to 2**24.
        max_message_bytes: limit of a body.
        path: of a file to be made (0600), in which the messages survive this process; None for the heap. Another process
            empties it (`Intake`), and what that has taken is settled: nobody calls drain, settle or fail.
        label: with ``path``: bytes for whoever finds the file, up to 2,048.
        bell: with ``path``: the file of the `Bell` to ring after a message.
        bytering_bytes: with ``path``: see `Channel.heap`.
        small_message_bytes: with ``path``: messages of up to this size, envelope included, lie in the byte ring and nowhere
            else; at most a quarter of it. 0: those of up to 1 KiB, and in a slot when it is full.

    Any thread may send (the GIL makes them take turns); one thread, the flusher, calls drain, settle and fail. A second
    `drain` while one is at work is refused. Cannot be copied or pickled.
    """

    def __cinit__(
        self, *, capacity: int = 65536, size_classes=None, max_message_bytes: int = 1 << 20, path=None,
        bytes label not None=b"", bell=None, bytering_bytes: int = 0, small_message_bytes: int = 0,
    ):
        cdef ign_region_config config
        cdef bytes encoded
        cdef int rc
        if not 0 < capacity <= 1 << 24 or capacity & (capacity - 1):
            raise ValueError(f"capacity must be a power of two from 1 to 2**24, got {capacity}")
        if not 0 < max_message_bytes <= (1 << 30) - ENVELOPE_BYTES:
            raise ValueError(f"max_message_bytes must be 1..{(1 << 30) - ENVELOPE_BYTES}, got {max_message_bytes}")
        self._max_body = max_message_bytes
        if ign_region_config_default(&config, capacity, max_message_bytes + ENVELOPE_BYTES) != IGN_OK:
            raise ValueError(f"no layout for capacity={capacity}, max_message_bytes={max_message_bytes}")
        # On the heap the messages of a batch are held beyond the read position: each needs a slot of its own.
        if path is None and (label or bell is not None or bytering_bytes or small_message_bytes):
            raise ValueError("label, bell, bytering_bytes and small_message_bytes go with path")
        if not 0 <= bytering_bytes <= <int>IGN_BYTERING_MAX_BYTES or not ign_bytering_size_valid(bytering_bytes):
            raise ValueError(f"bytering_bytes must be 0 or a power of two from 2048, got {bytering_bytes}")
        if not 0 <= small_message_bytes <= bytering_bytes // 4:
            raise ValueError(
                f"small_message_bytes must be 0..{bytering_bytes // 4}, a quarter of bytering_bytes, got {small_message_bytes}")
        config.bytering_bytes = bytering_bytes
        config.label = <const uint8_t *>PyBytes_AS_STRING(label)
        config.label_bytes = <uint32_t>PyBytes_GET_SIZE(label)
        if size_classes is not None:
            config.class_count = 0
            for size, count in size_classes:
                if config.class_count == 16:
                    raise ValueError("size_classes: at most 16 pairs")
                config.slot_bytes[config.class_count] = size
                config.slot_counts[config.class_count] = count
                config.class_count += 1
                config.max_message_bytes = size
        self._channel = <ign_channel *>aligned_alloc(128, sizeof(ign_channel))
        if self._channel == NULL:
            raise MemoryError("outbox")
        memset(self._channel, 0, sizeof(ign_channel))
        if path is None:
            rc = ign_channel_heap(self._channel, &config)
        else:
            encoded = path_bytes(bell)
            rc = ign_board_open(&self._bell, encoded, 1)
            if rc != IGN_OK:
                raise_code(rc, str(bell))
            encoded = path_bytes(path)
            rc = ign_channel_create(self._channel, encoded, &config, IGN_PRODUCER)
        if rc != IGN_OK:
            raise_code(rc, f"outbox with capacity={capacity}, size_classes={size_classes}, path={path}")
        if small_message_bytes:
            ign_channel_set_small(self._channel, small_message_bytes)
        self._small = small_message_bytes
        self._mapped = path is not None
        self.path = path
        self._channel.forward_out.check_thread = False  # senders take turns under the GIL
        self._channel.back_in.check_thread = False
        self._failures = []
        self._heap = []
        self._waiting = {}
        self._hooks = [None, None, None]
        if self._mapped:
            ign_event_advance(self._bell.events)  # there is a new file to be found
        register(self)

    def __dealloc__(self):
        free(self._taken)
        ign_board_close(&self._bell)
        if self._channel != NULL:
            ign_channel_close(self._channel)
            free(self._channel)

    def __reduce__(self):
        refuse_copy(self)

    @property
    def on_waiter(self):
        """Called when somebody registers for a receipt of a mapped outbox: `watch` is needed from now on."""
        return self._hooks[0]

    @on_waiter.setter
    def on_waiter(self, fn):
        self._hooks[0] = fn

    @property
    def on_timeout(self):
        """Called with the text of a WaitTimeoutError, for the error to raise instead."""
        return self._hooks[1]

    @on_timeout.setter
    def on_timeout(self, fn):
        self._hooks[1] = fn

    @property
    def on_refusal(self):
        """Called for the error of later calls once the consumer refused the file."""
        return self._hooks[2]

    @on_refusal.setter
    def on_refusal(self, fn):
        self._hooks[2] = fn

    cdef int _check(self) except -1:
        cdef int rc = IGN_E_CLOSED if self._closing else ign_region_check(&self._channel.region)
        if rc != IGN_OK:
            raise_code(rc, "outbox")
        if self._mapped and ign_region_get_note(&self._channel.region, IGN_NOTE_REFUSED) != 0:
            raise self._refused()
        return 0

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, bytes body not None, int shard, int flags, bytes key=b"", bytes meta=b"", timeout=30.0):
        """Encodes one message into the ring. Nothing is durable before the receipt is done.

        Args:
            body: up to ``max_message_bytes``; may be empty. shard: where it goes, 0xFFFF for any. flags: the record's, i.e. its codec.
            key, meta: the record's, up to 65,535 bytes each. timeout: seconds to wait while the ring is full; 0 does not wait.

        Returns:
            The message's Receipt.

        Raises:
            ChannelFullError (timeout 0), WaitTimeoutError, MessageTooLargeError, ClosedError, ForkedHandleError.
        """
        cdef size_t body_len = <size_t>PyBytes_GET_SIZE(body)
        cdef size_t key_len = 0 if key is None else <size_t>PyBytes_GET_SIZE(key)
        cdef size_t meta_len = 0 if meta is None else <size_t>PyBytes_GET_SIZE(meta)
        cdef size_t size
        cdef ign_slab_ref ref
        cdef uint8_t *at
        cdef uint64_t now, left = timeout_ns(timeout)
        cdef int rc
        cdef Receipt receipt = Receipt.__new__(Receipt)
        self._check()
        if body_len > self._max_body:
            raise _errors.MessageTooLargeError(body_len, self._max_body)
        if key_len > 0xFFFF:
            raise _errors.MessageTooLargeError(key_len, 0xFFFF, "key")
        if not 0 <= shard <= ANY or not 0 <= flags <= 255:
            raise ValueError(f"shard must be 0..65535 and flags 0..255, got {shard} and {flags}")
        size = record_bytes(key_len, meta_len, body_len)
        if size > self._channel.region.max_message_bytes:
            raise _errors.MessageTooLargeError(size, self._channel.region.max_message_bytes)
        rc = ign_channel_reserve(self._channel, size, &ref, &at)
        if rc == IGN_FULL:
            rc = self._reserve_slow(size, left, &ref, &at)
        if rc != IGN_OK:
            raise_code(rc, "outbox")
        now = now_us()
        next_id(now, receipt._id)
        encode_into(
            at, <uint8_t>flags, receipt._id, now,
            <const uint8_t *>PyBytes_AS_STRING(key) if key_len else NULL, key_len,
            <const uint8_t *>PyBytes_AS_STRING(meta) if meta_len else NULL, meta_len,
            <const uint8_t *>PyBytes_AS_STRING(body), body_len,
        )
        ign_channel_stage(self._channel, &ref, <uint16_t>shard)
        self._sent += 1
        receipt._outbox = self
        receipt._sequence = self._sent
        ign_channel_publish(self._channel)
        if self._mapped:
            ign_event_notify(self._bell.events)  # S3 of the bell, after publish's S1
            if ign_region_check(&self._channel.region) != IGN_OK:
                self._check()  # the file was cut under the writing: the message is nowhere
        return receipt

    def send_record(self, bytes record not None, timeout=30.0) -> int:
        """Sends a message that is encoded already; returns its number. Raises as `send`."""
        cdef size_t size = <size_t>PyBytes_GET_SIZE(record)
        cdef ign_slab_ref ref
        cdef uint8_t *at
        cdef uint64_t left = timeout_ns(timeout)
        cdef int rc
        self._check()
        if size > self._channel.region.max_message_bytes:
            raise _errors.MessageTooLargeError(size, self._channel.region.max_message_bytes)
        rc = ign_channel_reserve(self._channel, size, &ref, &at)
        if rc == IGN_FULL:
            rc = self._reserve_slow(size, left, &ref, &at)
        if rc != IGN_OK:
            raise_code(rc, "outbox")
        memcpy(at, PyBytes_AS_STRING(record), size)
        ign_channel_stage(self._channel, &ref, ANY)
        self._sent += 1
        ign_channel_publish(self._channel)
        if self._mapped:
            ign_event_notify(self._bell.events)
            self._check()
        return self._sent

    cdef int _reserve_slow(self, size_t size, uint64_t left, ign_slab_ref *ref, uint8_t **at) except? -999:
        """Waits up to ``left`` nanoseconds for room. The last look and the reservation are one, so nobody overtakes."""
        cdef uint64_t now = ign_now_ns(), until = now + left, seen
        cdef bint slots, spin = True
        cdef int rc
        while True:
            seen = ign_channel_read_pos(self._channel)  # before the attempt: what is taken after it ends the wait
            rc = ign_channel_reserve(self._channel, size, ref, at)
            if rc != IGN_FULL:
                return rc
            if left == 0:
                raise _errors.ChannelFullError(
                    f"outbox: no room for {size} bytes; {self._sent - self._settled} messages are not durable yet")
            if now >= until:
                raise self._timed_out(
                    f"outbox: no room for {size} bytes in time; {self._sent - self._settled} messages are not durable yet")
            slots = size > self._small and ign_channel_depth(self._channel) < self._channel.region.ring_capacity
            now = until - now
            self._inside += 1
            with nogil:
                if self._mapped:
                    # Not wait_space, which gives up when the consumer is gone: another will come.
                    rc = ign_channel_wait_progress(self._channel, seen, slots, now)
                else:
                    rc = ign_channel_wait_space(self._channel, now, spin, slots)
            self._inside -= 1
            PyErr_CheckSignals()
            self._check()
            if rc != IGN_OK and rc != IGN_TIMEOUT:
                raise_code(rc, "outbox")
            spin = rc == IGN_OK
            now = ign_now_ns()

    # -- the flusher's side -----------------------------------------------------------------------------------------------

    cdef int _wait_items(self, uint64_t until) except -1:
        """1: there is something; 0: the time is up."""
        cdef uint64_t now, left
        cdef bint spin = False  # the flusher comes from a transaction; burning a core for 20 us helps nobody
        cdef int rc
        while True:
            now = ign_now_ns()
            left = until - now if until > now else 0
            self._inside += 1
            with nogil:
                rc = ign_channel_wait_items(self._channel, left, spin)
            self._inside -= 1
            PyErr_CheckSignals()
            self._check()
            if rc == IGN_OK:
                return 1
            if rc != IGN_TIMEOUT:
                raise_code(rc, "outbox")
            if ign_now_ns() >= until:
                return 0

    def drain(
        self, uint32_t max_messages, size_t max_bytes, uint32_t any_shard, uint32_t shards, timeout,
        uint32_t chunk_records=256, size_t chunk_bytes=32768,
    ):
        """Takes what is there as packed batches; waits up to ``timeout`` seconds for the first message.

        Args:
            max_messages, max_bytes: bounds of one drain (at least one message is taken).
            any_shard: the shard of the first message that may go anywhere; the next shard follows after every chunk.
            shards: how many there are, 1..65535. A message's shard is taken modulo this.
            chunk_records, chunk_bytes: bounds of one batch (a longer single message is a batch of its own).

        Returns:
            How many messages, and (shard, batch) in order: per shard first in, first out; a shard may occur several times.
            (0, []) when the time is up.

        Raises:
            ClosedError, ForkedHandleError. MemoryError: nothing is lost, the next drain has the same messages.
            NativeError: another drain is at work.
        """
        cdef uint64_t left = timeout_ns(timeout)
        if self._mapped:
            raise ValueError("a mapped outbox is emptied by an Intake")
        if not 0 < shards < ANY or max_messages == 0 or chunk_records == 0 or any_shard >= shards:
            raise ValueError(f"drain: shards={shards}, any_shard={any_shard}, max_messages={max_messages}")
        if chunk_records > 1 << 20 or chunk_bytes > 1 << 31:
            raise ValueError(f"drain: chunk_records={chunk_records}, chunk_bytes={chunk_bytes}")
        self._check()
        if self._draining:
            raise_code(IGN_E_THREAD, "outbox: drain")
        self._draining = True
        try:
            return self._drain(max_messages, max_bytes, any_shard, shards, left, chunk_records, chunk_bytes)
        finally:
            self._draining = False

    cdef object _drain(
        self, uint32_t max_messages, size_t max_bytes, uint32_t any_shard, uint32_t shards, uint64_t left,
        uint32_t chunk_records, size_t chunk_bytes,
    ):
        cdef uint32_t count, batches = 0, i
        cdef int rc = IGN_OK
        cdef Batch *built = NULL
        cdef list out
        if self._taken_count == 0 and ign_channel_depth(self._channel) == 0:
            ign_channel_flush(self._channel)
            if self._wait_items(ign_now_ns() + left) == 0:
                return 0, []
        try:
            # The memory of a heap outbox goes with the object, so close() of another thread takes nothing away here.
            with nogil:
                if self._taken_count == 0:
                    rc = take(self, max_messages, max_bytes)
                if rc == IGN_OK:
                    rc = pack_taken(self._taken, self._taken_count, any_shard, shards, chunk_records, chunk_bytes, &built, &batches)
            if rc != IGN_OK:
                raise_code(rc, "outbox")
            out = close_batches(built, batches)
            # Only now are the messages somebody else's.
            count = self._taken_count
            self._taken_count = 0
            with nogil:
                for i in range(count):
                    ign_channel_give_back(self._channel, self._taken[i].slot, self._taken[i].generation)
                ign_channel_flush(self._channel)
            return count, out
        finally:
            free_batches(built, batches)

    def settle(self, uint64_t n) -> None:
        """The next ``n`` messages, in the order they were sent, are durable: their receipts are done."""
        if self._closing:
            return
        if self._mapped:
            raise ValueError("a mapped outbox is settled by the process that empties it")
        if n > self._sent - self._settled:
            raise ValueError(f"settle({n}): only {self._sent - self._settled} messages are pending")
        self._complete(self._settled + n)

    def fail(self, uint64_t n, error) -> None:
        """The next ``n`` messages were refused: their receipts raise ``error``."""
        if not isinstance(error, BaseException):
            raise TypeError(f"fail() takes an exception, got {error!r}")
        if self._closing or n == 0:
            return
        if self._mapped:
            raise ValueError("a mapped outbox is settled by the process that empties it")
        if n > self._sent - self._settled:
            raise ValueError(f"fail({n}): only {self._sent - self._settled} messages are pending")
        self._fail_up_to(self._settled + n, error)

    cdef int _fail_up_to(self, uint64_t last, object error) except -1:
        """Refuses the messages up to number ``last`` that are not accounted for yet."""
        cdef list entry = [0, 0, error]  # first, as it may run others' code: `settled` is looked at behind it
        cdef list before
        if last <= self._settled:
            return 0
        before = self._failures[len(self._failures) - 1] if self._failures else None
        if before is not None and before[1] == self._settled and before[2] is error:
            before[1] = last
        else:
            entry[0] = self._settled + 1
            entry[1] = last
            self._failures.append(entry)
        self._failed += last - self._settled
        if self._first_error is None:
            self._first_error = error
        return self._complete(last)

    cdef int _complete(self, uint64_t settled) except -1:
        """Everything up to number ``settled`` is accounted for. No callback stops this, whatever it raises."""
        cdef dict by_loop = None
        self._settled = settled
        while self._heap and self._heap[0] <= settled:
            for waiter in self._waiting.pop(heapq.heappop(self._heap)):
                try:
                    if type(waiter) is not tuple:
                        waiter.release()  # the lock of a waiting thread
                    elif len(waiter) == 2:
                        waiter[0](waiter[1])
                    else:
                        if by_loop is None:
                            by_loop = {}
                        by_loop.setdefault(waiter[0], []).append((waiter[1], waiter[2]))
                except BaseException as error:
                    report(error, waiter[0] if type(waiter) is tuple else waiter)
        if by_loop is not None:
            for loop, pairs in by_loop.items():
                try:
                    loop.call_soon_threadsafe(_complete_futures, pairs)  # once per loop, however many wait there
                except RuntimeError:
                    pass  # the loop was closed: nobody waits any more
                except BaseException as error:
                    report(error, loop)
        return 0

    cdef int _register(self, uint64_t sequence, object waiter) except -1:
        cdef list fresh = [waiter], found  # made before the look, as it may run others' code
        if ign_region_check(&self._channel.region) == IGN_E_FORKED:
            raise_code(IGN_E_FORKED, "outbox")
        found = self._waiting.setdefault(sequence, fresh)
        if found is fresh:
            heapq.heappush(self._heap, sequence)
        else:
            found.append(waiter)
        if self._settled >= sequence:
            self._complete(self._settled)  # it was settled between the caller's look and here
        elif self._mapped and self._hooks[0] is not None:
            self._hooks[0]()
        return 0

    cdef object _error_of(self, uint64_t sequence):
        cdef Py_ssize_t at
        if not self._failures:
            return None
        at = bisect_left(self._failures, sequence, key=_last_of)
        if at < len(self._failures) and self._failures[at][0] <= sequence:
            return self._failures[at][2]
        return None

    def wait_settled(self, uint64_t sequence, timeout=30.0) -> None:
        """Waits until message number ``sequence`` (and so all before it) is durable or refused.

        Raises:
            WaitTimeoutError, ForkedHandleError; ValueError when so many were never sent.
        """
        cdef uint64_t left = timeout_ns(timeout)
        if sequence > self._sent:
            raise ValueError(f"message {sequence} was never sent, the last is {self._sent}")
        if self._settled >= sequence:
            return
        if self._mapped:
            self._wait_mapped(sequence, left, timeout)
            return
        lock = allocate_lock()
        lock.acquire()
        self._register(sequence, lock)
        if not lock.acquire(True, <double>left / 1e9) and self._settled < sequence:
            found = self._waiting.get(sequence)
            if found is not None and lock in found:
                found.remove(lock)
            raise _errors.WaitTimeoutError(f"message {sequence} is not durable within {timeout} s")

    # -- in a file: what the other process has taken is settled ---------------------------------------------------------

    cdef bint _is_settled(self, uint64_t sequence) except -1:
        if self._settled < sequence and self._mapped:
            self._refresh()
        return self._settled >= sequence

    cdef object _refused(self):
        """The error that a consumer's refusal of this outbox means to its users."""
        if self._refusal is None:
            if self._hooks[2] is not None:
                self._refusal = self._hooks[2]()
            else:
                self._refusal = _errors.ClosedError(f"outbox {self.path}: refused by the process that empties it")
        return self._refusal

    cdef int _refresh(self) except -1:
        cdef uint64_t pos
        if not self._mapped or ign_region_check(&self._channel.region) != IGN_OK:
            return 0
        pos = ign_channel_read_pos(self._channel)
        if pos > self._sent:
            raise_code(IGN_E_CORRUPT, f"outbox {self.path}")
        if pos > self._settled:
            self._complete(pos)
            if ign_region_check(&self._channel.region) != IGN_OK:
                return 0  # a callback closed it
        if self._settled < self._sent and ign_region_get_note(&self._channel.region, IGN_NOTE_REFUSED) != 0:
            error = self._refused()
            self._fail_up_to(self._sent, error)
        return 0

    cdef int _wait_mapped(self, uint64_t sequence, uint64_t left, object timeout) except -1:
        cdef uint64_t until = ign_now_ns() + left
        while not self._is_settled(sequence):
            if self._closing:
                raise_code(IGN_E_CLOSED, "outbox")
            if not self._watch(until):
                self._refresh()
                if self._settled >= sequence:
                    break
                raise self._timed_out(f"message {sequence} is not durable within {timeout} s")
        return 0

    cdef object _timed_out(self, str text):
        return _errors.WaitTimeoutError(text) if self._hooks[1] is None else self._hooks[1](text)

    cdef bint _watch(self, uint64_t until) except -1:
        """One slice of waiting for the other process; false when the time is up."""
        cdef uint64_t now = ign_now_ns(), pos
        cdef int rc = ign_region_check(&self._channel.region)
        if rc != IGN_OK:
            raise_code(rc, f"outbox {self.path}")
        if now >= until:
            return False
        pos = self._settled
        self._inside += 1
        with nogil:
            rc = ign_channel_wait_progress(self._channel, pos, False, until - now)
        self._inside -= 1
        PyErr_CheckSignals()
        if rc == IGN_E_CLOSED and self._closing:
            return True  # our own close() woke us, which settles everything: the caller looks
        if rc != IGN_OK and rc != IGN_TIMEOUT:
            raise_code(rc, f"outbox {self.path}")
        return True

    def watch(self, timeout) -> bool:
        """Waits up to ``timeout`` seconds for the other process to take something, and completes the receipts of that.

        Returns whether somebody still waits for a receipt. One thread at a time. ClosedError, ForkedHandleError.
        """
        cdef uint64_t until = ign_now_ns() + timeout_ns(timeout), before = self._settled
        self._refresh()
        try:
            while self._heap and self._settled == before and self._watch(until):
                self._refresh()
        except _errors.NativeError as error:
            self._fail_up_to(self._sent, error)  # the file was cut: nobody will ever take these
            raise
        return bool(self._heap)

    @property
    def mapped(self) -> bool:
        """Whether the messages lie in a file that another process empties."""
        return self._mapped

    @property
    def sent(self) -> int:
        """Messages sent so far, which is also the number of the last."""
        return self._sent

    @property
    def settled(self) -> int:
        """Messages accounted for, durable or refused: all up to this number."""
        self._refresh()
        return self._settled

    @property
    def pending(self) -> int:
        """Messages sent and not accounted for."""
        self._refresh()
        return self._sent - self._settled

    @property
    def failed(self) -> int:
        """Messages refused."""
        self._refresh()
        return self._failed

    @property
    def first_error(self):
        """The error of the first refused message, or None."""
        return self._first_error

    @property
    def closed(self) -> bool:
        return self._closing

    def depth(self) -> int:
        """Messages in the ring: sent and not drained."""
        self._check()
        return ign_channel_depth(self._channel)

    def classes(self) -> list:
        """The size classes of the slab, as in `Channel.stats`; none after `close`, and of a parent's outbox."""
        if self._closing or ign_region_check(&self._channel.region) != IGN_OK:
            return []
        ign_channel_collect(self._channel)
        return slab_classes(&self._channel.slab)

    def close(self, error=None) -> None:
        """Ends the outbox. Receipts that are still pending fail with ``error`` (ClosedError). Idempotent.

        A mapped one gives its file up to the process that empties it, with what is in it, once the threads that wait on it
        have left.

        Raises:
            WaitTimeoutError: a thread was still inside after 5 s. The outbox is closed all the same; the file is given up by
            the next `close`, or with the object.
        """
        cdef uint64_t until
        if error is not None and not isinstance(error, BaseException):
            raise TypeError(f"close() takes an exception or None, got {error!r}")
        if self._closing and not self._mapped:
            return
        self._closing = True
        if ign_region_check(&self._channel.region) == IGN_E_FORKED:
            return
        ign_channel_interrupt(self._channel)
        try:
            self._refresh()
        except Exception as found:
            error = found  # positions that cannot be
        if self._settled < self._sent:
            if error is None:
                error = _errors.ClosedError("outbox: closed before the message was durable")
            self._fail_up_to(self._sent, error)
        if not self._mapped or ign_region_check(&self._channel.region) == IGN_E_CLOSED:
            return
        until = ign_now_ns() + <uint64_t>CLOSE_NS
        while self._inside and ign_now_ns() < until:  # they look at _closing within a slice
            time.sleep(0.0005)
            ign_channel_interrupt(self._channel)
        if self._inside:
            raise _errors.WaitTimeoutError(f"outbox {self.path}: {self._inside} thread(s) still wait")
        ign_channel_close(self._channel)
        ign_event_advance(self._bell.events)


# A receipt refers to its outbox, which the collector does not see. Those that only the outbox itself holds, because a callback or
# an `await` is registered, are references of the outbox to itself, and are shown as that: without, an outbox that nobody
# closed would never go.
cdef extern from *:
    """
    static int ign_visit_waiting(PyObject *waiting, PyObject *self, PyTypeObject *receipt, visitproc visit, void *arg)
    {
        PyObject *key, *waiters;
        Py_ssize_t at = 0;
        while (PyDict_Next(waiting, &at, &key, &waiters)) {
            /* All of one message hold the same receipt, and that refers to the outbox once. */
            PyObject *held = NULL;
            Py_ssize_t holders = 0;
            for (Py_ssize_t i = 0; i < PyList_GET_SIZE(waiters); i++) {
                PyObject *waiter = PyList_GET_ITEM(waiters, i);
                if (!PyTuple_CheckExact(waiter) || Py_REFCNT(waiter) != 1)
                    continue;
                held = PyTuple_GET_ITEM(waiter, PyTuple_GET_SIZE(waiter) - 1);
                holders++;
            }
            if (held != NULL && Py_TYPE(held) == receipt && Py_REFCNT(held) == holders) {
                int rc = visit(self, arg);
                if (rc != 0)
                    return rc;
            }
        }
        return 0;
    }
    """
    int ign_visit_waiting(PyObject *waiting, PyObject *self, PyTypeObject *receipt, visitproc visit, void *arg) noexcept

cdef traverseproc traverse_attributes = (<PyTypeObject *>Outbox).tp_traverse


cdef int traverse_waiting(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef int rc = traverse_attributes(self, visit, arg)
    if rc == 0 and (<Outbox>self)._waiting is not None:
        rc = ign_visit_waiting(<PyObject *>(<Outbox>self)._waiting, self, <PyTypeObject *>Receipt, visit, arg)
    return rc


(<PyTypeObject *>Outbox).tp_traverse = traverse_waiting


def _last_of(failure):
    return failure[1]


cdef void report(object error, object where) noexcept:
    """A callback's exception is nobody's to catch: shown by ``sys.unraisablehook``, like that of a destructor."""
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(where)


cdef int take(Outbox self, uint32_t max_messages, size_t max_bytes) noexcept nogil:
    """Moves messages from the ring to the private list; their slots stay theirs."""
    cdef const ign_message *messages
    cdef uint32_t got, i, used, room
    cdef size_t total = 0
    cdef Taken *grown
    cdef int rc
    while self._taken_count < max_messages:
        rc = ign_channel_peek(self._channel, &messages, &got)
        if rc == IGN_EMPTY:
            break
        if rc != IGN_OK:
            return rc if self._taken_count == 0 else IGN_OK
        if self._taken_count + got > self._taken_room:
            room = self._taken_room * 2 if self._taken_room else 1024
            grown = <Taken *>realloc(self._taken, room * sizeof(Taken))
            if grown == NULL:
                return IGN_E_NOMEM if self._taken_count == 0 else IGN_OK
            self._taken = grown
            self._taken_room = room
        used = 0
        for i in range(got):
            if self._taken_count == max_messages or (self._taken_count != 0 and total + messages[i].length > max_bytes):
                break
            if messages[i].code != IGN_OK:
                return IGN_E_FOREIGN  # our own memory: cannot happen
            self._taken[self._taken_count].bytes = messages[i].bytes
            self._taken[self._taken_count].length = messages[i].length
            self._taken[self._taken_count].slot = messages[i].slot
            self._taken[self._taken_count].generation = messages[i].generation
            self._taken[self._taken_count].kind = messages[i].kind
            self._taken_count += 1
            total += messages[i].length
            used += 1
        ign_channel_advance(self._channel, used)
        if used < got:
            break
    return IGN_OK
