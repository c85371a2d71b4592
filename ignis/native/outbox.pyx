# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The producer's hot path: messages are encoded straight into a slab slot, and a flusher drains them as packed batches.

Messages are numbered from 1 in the order they were sent. The flusher settles them in that order, so a receipt is two words,
the outbox and a number, and completing a batch is one addition, whatever its size; only receipts that somebody waits on
cost anything of their own.
"""

import heapq
import os
import sys
import time
from bisect import bisect_left
from _thread import allocate_lock

from ignis.native._pools import register

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
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
    record_bytes,
)
from ignis.native.slab cimport ign_slab, ign_slab_ref
from ignis.native.wait cimport ign_board_close, ign_board_open, ign_event_advance, ign_event_notify

include "_errors.pxi"
include "_time.pxi"
include "_pool.pxi"

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef enum:
    # What an envelope may add to a body: fixed part, the longest key, and as much again for the meta map.
    ENVELOPE_BYTES = 36 + 65535 + 65537


include "_packing.pxi"


cdef void complete_futures(list pairs) noexcept:
    for future, receipt in pairs:
        if not future.done():
            error = (<Receipt>receipt).exception(0)
            if error is None:
                future.set_result(receipt.id)
            else:
                future.set_exception(error)


def _complete_futures(pairs):
    complete_futures(pairs)


@cython.final
@cython.no_gc
@cython.freelist(4096)
cdef class Receipt:
    """The promise of one message: done when the message is durable, or refused.

    Made by :meth:`Outbox.send`. Safe from any thread; can be awaited in any event loop.
    """

    def __init__(self):
        raise TypeError("receipts come from Outbox.send()")

    @property
    def id(self) -> bytes:
        """The message's id (16 bytes, UUIDv7)."""
        return PyBytes_FromStringAndSize(<const char *>self._id, 16)

    @property
    def sequence(self) -> int:
        """Number of the message in its outbox; the first is 1."""
        return self._sequence

    def done(self) -> bool:
        """True once the message is durable or refused."""
        return self._outbox._is_settled(self._sequence)

    cdef int _await_done(self, object timeout) except -1:
        if self._outbox._settled < self._sequence:
            self._outbox.wait_settled(self._sequence, timeout)
        return 0

    def result(self, timeout=30.0) -> bytes:
        """Waits until the message is durable and returns its id.

        Raises:
            What the store raised, when it refused the message. WaitTimeoutError, ForkedHandleError.
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

        Exceptions of ``fn`` go to ``sys.unraisablehook``.
        """
        cdef Outbox outbox = self._outbox
        if outbox._is_settled(self._sequence):
            fn(self)
        else:
            outbox._register(self._sequence, (fn, self))

    def __await__(self):
        if not self._outbox._is_settled(self._sequence):
            import asyncio

            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._outbox._register(self._sequence, (loop, future, self))
            yield from future.__await__()
        return self.result(0)

    def __repr__(self) -> str:
        return f"<Receipt {self._sequence} {'done' if self.done() else 'pending'}>"


@cython.final
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

    Any thread may send (the GIL makes them take turns); one thread, the flusher, calls drain, settle and fail.
    """

    def __cinit__(
        self, *, capacity: int = 65536, size_classes=None, max_message_bytes: int = 1 << 20, path=None,
        bytes label=b"", bell=None, bytering_bytes: int = 0, small_message_bytes: int = 0,
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
            encoded = os.fsencode(bell)
            rc = ign_board_open(&self._bell, encoded, 1)
            if rc != IGN_OK:
                raise_code(rc, str(bell))
            encoded = os.fsencode(path)
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
        if self._mapped:
            ign_event_advance(self._bell.events)  # there is a new file to be found
        register(self)

    def __dealloc__(self):
        free(self._taken)
        ign_board_close(&self._bell)
        if self._channel != NULL:
            ign_channel_close(self._channel)
            free(self._channel)

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
        cdef uint64_t now, seen
        cdef int rc
        cdef Receipt receipt
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
        receipt = Receipt.__new__(Receipt)
        rc = ign_channel_reserve(self._channel, size, &ref, &at)
        while rc == IGN_FULL:
            # The slot is reserved and sent without letting go of the GIL in between, so nobody overtakes.
            seen = ign_channel_read_pos(self._channel)  # before the attempt: what is taken after it ends the wait
            rc = ign_channel_reserve(self._channel, size, &ref, &at)
            if rc == IGN_FULL:
                timeout = self._send_slow(size, timeout, seen)
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
        cdef uint64_t seen
        cdef int rc
        self._check()
        if size > self._channel.region.max_message_bytes:
            raise _errors.MessageTooLargeError(size, self._channel.region.max_message_bytes)
        rc = ign_channel_reserve(self._channel, size, &ref, &at)
        while rc == IGN_FULL:
            seen = ign_channel_read_pos(self._channel)
            rc = ign_channel_reserve(self._channel, size, &ref, &at)
            if rc == IGN_FULL:
                timeout = self._send_slow(size, timeout, seen)
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

    def _send_slow(self, size, timeout, uint64_t seen):
        """Waits for room; returns what is left of the timeout. ``seen``: the read position at which there was none."""
        cdef uint64_t left = timeout_ns(timeout), began = ign_now_ns(), now
        cdef uint64_t until = began + left
        cdef bint slots, spin = True
        cdef int rc = IGN_TIMEOUT
        if left == 0:
            raise _errors.ChannelFullError(
                f"outbox: no room for {size} bytes; {self._sent - self._settled} messages are not durable yet")
        while rc == IGN_TIMEOUT:
            now = ign_now_ns()
            if now >= until:
                raise self._timed_out(
                    f"outbox: no room for {size} bytes in time; {self._sent - self._settled} messages are not durable yet")
            slots = <size_t>size > self._small and \
                ign_channel_depth(self._channel) < self._channel.region.ring_capacity
            left = until - now
            self._inside += 1
            with nogil:
                if self._mapped:
                    # Not wait_space, which gives up when the consumer is gone: another will come.
                    rc = ign_channel_wait_progress(self._channel, seen, slots, left)
                else:
                    rc = ign_channel_wait_space(self._channel, left, spin, slots)
            self._inside -= 1
            spin = False
            PyErr_CheckSignals()
            self._check()
        if rc != IGN_OK:
            raise_code(rc, "outbox")
        now = ign_now_ns()
        return (until - now) / 1e9 if until > now else 1e-9

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
        """
        cdef uint32_t count, batches = 0, i
        cdef int rc = IGN_OK
        cdef Batch *built = NULL
        cdef list out
        if self._mapped:
            raise ValueError("a mapped outbox is emptied by an Intake")
        if not 0 < shards < ANY or max_messages == 0 or chunk_records == 0 or any_shard >= shards:
            raise ValueError(f"drain: shards={shards}, any_shard={any_shard}, max_messages={max_messages}")
        if chunk_records > 1 << 20 or chunk_bytes > 1 << 31:
            raise ValueError(f"drain: chunk_records={chunk_records}, chunk_bytes={chunk_bytes}")
        self._check()
        if self._taken_count == 0 and ign_channel_depth(self._channel) == 0:
            ign_channel_flush(self._channel)
            if self._wait_items(ign_now_ns() + timeout_ns(timeout)) == 0:
                return 0, []
        self._inside += 1
        try:
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
            self._inside -= 1

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
        if self._closing or n == 0:
            return
        if self._mapped:
            raise ValueError("a mapped outbox is settled by the process that empties it")
        if n > self._sent - self._settled:
            raise ValueError(f"fail({n}): only {self._sent - self._settled} messages are pending")
        if not isinstance(error, BaseException):
            raise TypeError(f"fail() takes an exception, got {error!r}")
        self._fail(n, error)

    def _fail(self, uint64_t n, error):
        cdef uint64_t first = self._settled + 1
        if self._failures and self._failures[len(self._failures) - 1][1] == first - 1 and \
                self._failures[len(self._failures) - 1][2] is error:
            first = self._failures.pop()[0]
        self._failures.append((first, self._settled + n, error))
        self._failed += n
        if self._first_error is None:
            self._first_error = error
        self._complete(self._settled + n)

    cdef int _complete(self, uint64_t settled) except -1:
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
                except Exception as error:
                    report(error, waiter)
        if by_loop is not None:
            for loop, pairs in by_loop.items():
                try:
                    loop.call_soon_threadsafe(_complete_futures, pairs)  # once per loop, however many wait there
                except RuntimeError:
                    pass  # the loop was closed: nobody waits any more
        return 0

    cdef int _register(self, uint64_t sequence, object waiter) except -1:
        cdef object found = self._waiting.get(sequence)
        if ign_region_check(&self._channel.region) == IGN_E_FORKED:
            raise_code(IGN_E_FORKED, "outbox")
        if found is None:
            self._waiting[sequence] = [waiter]
            heapq.heappush(self._heap, sequence)
        else:
            found.append(waiter)
        if self._mapped and self.on_waiter is not None:
            self.on_waiter()
        return 0

    cdef object _error_of(self, uint64_t sequence):
        cdef Py_ssize_t at
        if not self._failures:
            return None
        at = bisect_left(self._failures, sequence, key=_last_of)
        if at < len(self._failures) and self._failures[at][0] <= sequence:
            return self._failures[at][2]
        return None

    def wait_settled(self, sequence: int, timeout=30.0) -> None:
        """Waits until message number ``sequence`` (and so all before it) is durable or refused.

        Raises:
            WaitTimeoutError, ForkedHandleError; ValueError when so many were never sent.
        """
        cdef double seconds
        if <uint64_t>sequence > self._sent:
            raise ValueError(f"message {sequence} was never sent, the last is {self._sent}")
        if self._settled >= <uint64_t>sequence:
            return
        if self._mapped:
            self._wait_mapped(sequence, timeout)
            return
        seconds = <double>timeout_ns(timeout) / 1e9
        lock = allocate_lock()
        lock.acquire()
        self._register(sequence, lock)
        if not lock.acquire(True, seconds) and self._settled < <uint64_t>sequence:
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
            if self.on_refusal is not None:
                self._refusal = self.on_refusal()
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
        if self._settled < self._sent and ign_region_get_note(&self._channel.region, IGN_NOTE_REFUSED) != 0:
            self._fail(self._sent - self._settled, self._refused())
        return 0

    cdef int _wait_mapped(self, uint64_t sequence, object timeout) except -1:
        cdef uint64_t until = ign_now_ns() + timeout_ns(timeout)
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
        return _errors.WaitTimeoutError(text) if self.on_timeout is None else self.on_timeout(text)

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
            self._fail(self._sent - self._settled, error)  # the file was cut: nobody will ever take these
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

    def close(self) -> None:
        """Ends the outbox. Receipts that are still pending fail with ClosedError. Idempotent.

        A mapped one gives its file up to the process that empties it, with what is in it.
        """
        cdef uint64_t until
        if self._closing:
            return
        self._closing = True
        if ign_region_check(&self._channel.region) == IGN_E_FORKED:
            return
        ign_channel_interrupt(self._channel)
        self._refresh()
        if self._sent != self._settled:
            self._fail(self._sent - self._settled, _errors.ClosedError("outbox: closed before the message was durable"))
        if self._mapped:
            until = ign_now_ns() + <uint64_t>5000000000
            while self._inside and ign_now_ns() < until:  # they look at _closing within a slice
                time.sleep(0.0005)
                ign_channel_interrupt(self._channel)
            if self._inside:
                raise _errors.WaitTimeoutError(f"outbox {self.path}: {self._inside} thread(s) still wait")
            ign_channel_close(self._channel)
            ign_event_advance(self._bell.events)


def _last_of(failure):
    return failure[1]


cdef void report(object error, object waiter) noexcept:
    """A callback's exception is nobody's to catch: shown, like that of a destructor."""
    from types import SimpleNamespace

    sys.unraisablehook(SimpleNamespace(
        exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__,
        err_msg="Exception ignored in a callback of a receipt", object=waiter[0] if type(waiter) is tuple else waiter,
    ))


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
