# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, auto_pickle=False, annotation_typing=False
"""Channels: one direction of messages between two threads or two processes.

A channel is a region (heap, or a file that both sides map) with a slab of buffers, a ring of references to them, and a ring
on which the buffers return. See ``csrc/ignis_channel.h``.

All timeouts are in seconds: 0 does not wait; None is the default bound of 30 s, never forever. A wait that runs out raises
WaitTimeoutError; ``recv_many`` and ``recv_views`` then return an empty list. ``try_`` calls return at once.
"""

import errno
import time

from ignis.native._pools import register

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from ignis.native.slab cimport ign_slab, ign_slab_active, ign_slab_stats, ign_slab_table, ign_slab_table_build

include "_errors.pxi"
include "_time.pxi"
include "_pool.pxi"
include "_path.pxi"
include "_whole.pxi"

DEFAULT_CAPACITY = 65536
DEFAULT_MAX_MESSAGE_BYTES = 1 << 20

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef enum:
    PUBLISH_EVERY = 64  # messages of a send_many that one store publishes: the consumer starts on the first ones meanwhile


cdef int fill_config(
    ign_region_config *config, object capacity, object size_classes, object max_message_bytes, object bytering_bytes
) except -1:
    # Each argument is turned into a number once, so that the checked value is the one that is used.
    cdef long long places = whole(capacity, "capacity", 1, 1 << 24)
    cdef long long most = whole(max_message_bytes, "max_message_bytes", 1, 1 << 30)
    cdef long long small = ign_bytering_default_bytes(<uint32_t>places) if places & (places - 1) == 0 else 0
    cdef ign_slab_table table
    cdef list pairs = []
    if places & (places - 1):
        raise ValueError(f"capacity must be a power of two from 1 to 2**24, got {places}")
    if bytering_bytes is not None:
        small = whole(bytering_bytes, "bytering_bytes", 0, IGN_BYTERING_MAX_BYTES)
        if not ign_bytering_size_valid(small):
            raise ValueError(
                f"bytering_bytes must be 0 or a power of two from {2 * IGN_BYTERING_MAX_MESSAGE} to "
                f"{IGN_BYTERING_MAX_BYTES}, got {small}"
            )
    if size_classes is None:
        if ign_region_config_default(config, <uint32_t>places, <uint64_t>most) != IGN_OK:
            raise ValueError(f"no layout for capacity={places}, max_message_bytes={most}")
        config.bytering_bytes = <uint32_t>small
        return 0
    for size, count in size_classes:
        if len(pairs) == <int>IGN_SLAB_MAX_CLASSES:
            raise ValueError(f"size_classes: at most {IGN_SLAB_MAX_CLASSES} pairs")
        pairs.append((whole(size, "size_classes: slot bytes", 1, 1 << 30), whole(count, "size_classes: slots", 1, 1 << 24)))
    if not pairs:
        raise ValueError(f"size_classes: 1..{IGN_SLAB_MAX_CLASSES} pairs, got none")
    memset(config, 0, sizeof(ign_region_config))
    config.ring_capacity = <uint32_t>places
    config.bytering_bytes = <uint32_t>small
    config.max_message_bytes = <uint64_t>most
    for size, count in pairs:
        config.slot_bytes[config.class_count] = size
        config.slot_counts[config.class_count] = count
        config.class_count += 1
    if ign_slab_table_build(&table, config.slot_bytes, config.slot_counts, config.class_count) != IGN_OK:
        raise ValueError(f"size_classes must rise and have 1..2**24 slots in all, got {pairs!r}")
    size, count = pairs[len(pairs) - 1]
    if most > size:
        raise ValueError(f"max_message_bytes={most} is over the largest size class, {size}")
    return 0


cdef ign_role role_of(object role) except *:
    if role == "producer":
        return IGN_PRODUCER
    if role == "consumer":
        return IGN_CONSUMER
    raise ValueError(f"role must be 'producer' or 'consumer', got {role!r}")


cdef uint32_t note_index(object index) except? 0xFFFFFFFF:
    cdef Py_ssize_t i = small_index(index)
    if not 0 <= i < <Py_ssize_t>IGN_REGION_NOTES:
        raise IndexError(f"note {index}, there are {IGN_REGION_NOTES}")
    return <uint32_t>i


# True while this module makes an object itself. No Python code runs meanwhile, so no other thread sees it.
cdef bint _making = False


cdef Channel new_channel(str path):
    global _making
    _making = True
    try:
        made = Channel.__new__(Channel)
    finally:
        _making = False
    cdef Channel self = made
    # The C struct keeps its parts on cache lines of their own; Python's allocator aligns to 16 bytes only.
    self._channel = <ign_channel *>aligned_alloc(128, sizeof(ign_channel))
    if self._channel == NULL:
        raise MemoryError("channel")
    memset(self._channel, 0, sizeof(ign_channel))
    self._path = path
    return self


cdef Channel opened(Channel self):
    # In debug builds each side is bound to its first thread. Sending, and giving buffers back, may be done by any thread of the
    # process: the GIL makes them one at a time.
    self._channel.forward_out.check_thread = False
    self._channel.back_in.check_thread = False
    self._channel.back_out.check_thread = False
    if self._channel.produces:
        register(self)
    return self


@cython.final
@cython.no_gc  # it refers to text only, so it is part of no cycle and its making starts no collection
cdef class Channel:
    """Carries messages in one direction. Made by :meth:`heap`, :meth:`create` or :meth:`open`.

    Sending and receiving are each for one thread at a time; several Python threads of one process may call ``send`` because the
    GIL makes them take turns. Every wait releases the GIL and handles signals every 100 ms. A channel made before ``fork()``
    raises ForkedHandleError in the child. A channel cannot be copied, pickled or made a base class: it owns memory that C points to.

    Sent messages are in the region: when it is a file, they survive ``kill -9`` of either side.
    """

    def __cinit__(self):
        if not _making:
            raise TypeError("use Channel.heap(), Channel.create() or Channel.open()")

    @staticmethod
    def heap(
        *, capacity: int = DEFAULT_CAPACITY, size_classes=None, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        bytering_bytes=None,
    ):
        """Makes a channel between two threads of this process; the object plays both roles.

        Args:
            capacity: messages in flight, a power of two up to 2**24.
            size_classes: pairs (slot bytes, slots), rising; default 256 B, 1 KiB, 4 KiB, 16 KiB and further up to the limit.
            max_message_bytes: limit of one message, at most the largest class.
            bytering_bytes: size of the byte ring, where messages of up to 1 KiB lie one behind the other and not in slots. A
                power of two from 2 KiB, or 0 for none; default 128 for each message of ``capacity``, at most 8 MiB. Messages
                that do not fit go into the slab.
        """
        cdef ign_region_config config
        fill_config(&config, capacity, size_classes, max_message_bytes, bytering_bytes)
        cdef Channel self = new_channel(None)
        cdef int rc = ign_channel_heap(self._channel, &config)
        if rc != IGN_OK:
            raise_code(rc, "channel on the heap")
        return opened(self)

    @staticmethod
    def create(
        path, *, role: str, capacity: int = DEFAULT_CAPACITY, size_classes=None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES, bytering_bytes=None,
    ):
        """Makes the file (0600) and takes ``role`` ("producer" or "consumer"); the other parameters as for :meth:`heap`.

        Raises:
            RegionIOError: the file exists (``errno`` EEXIST), or there is no room for it (ENOSPC).
        """
        cdef ign_region_config config
        cdef str name
        cdef bytes encoded
        name, encoded = path_pair(path)
        cdef ign_role c_role = role_of(role)
        fill_config(&config, capacity, size_classes, max_message_bytes, bytering_bytes)
        cdef Channel self = new_channel(name)
        cdef int rc = ign_channel_create(self._channel, encoded, &config, c_role)
        if rc != IGN_OK:
            raise_code(rc, name)
        return opened(self)

    @staticmethod
    def open(path, *, role: str, timeout=0.0):
        """Takes ``role`` in an existing file.

        Args:
            timeout: how long to wait for the file to appear and for the role to become free.

        Raises:
            RegionFormatError, RegionTruncatedError: not a region of this version. RegionBusyError: the role has a living owner.
            RegionIOError: with ``errno`` ENOENT when there is no such file.
        """
        cdef str name
        cdef bytes encoded
        name, encoded = path_pair(path)
        cdef ign_role c_role = role_of(role)
        cdef uint64_t until = timeout_ns(timeout)
        until += ign_now_ns()
        cdef Channel self = new_channel(name)
        cdef int rc
        pause_s = 0.001
        while True:
            rc = ign_channel_open(self._channel, encoded, c_role)
            if rc == IGN_OK:
                return opened(self)
            error = error_of(rc, name)
            missing = rc == IGN_E_IO and error.errno == errno.ENOENT
            if not (missing or rc == IGN_E_BUSY) or ign_now_ns() >= until:
                raise error
            time.sleep(pause_s)
            pause_s = min(0.05, pause_s * 2)

    def __dealloc__(self):
        # Views and waiting threads hold references to this object, so none is left here.
        if self._channel != NULL:
            ign_channel_close(self._channel)
            free(self._channel)

    # -- checks -----------------------------------------------------------------------------------------------------

    cdef int _check(self) except -1:
        cdef int rc = IGN_E_CLOSED if self._closing else ign_region_check(&self._channel.region)
        if rc != IGN_OK:
            raise_code(rc, self._name())
        return 0

    cdef int _as(self, ign_role role) except -1:
        self._check()
        if role == IGN_PRODUCER and not self._channel.produces:
            raise ValueError(f"{self._name()} was opened as consumer")
        if role == IGN_CONSUMER and not self._channel.consumes:
            raise ValueError(f"{self._name()} was opened as producer")
        return 0

    def _check_region(self):
        cdef int rc = ign_region_check(&self._channel.region)
        if rc != IGN_OK:
            raise_code(rc, self._name())

    def _name(self) -> str:
        return "channel on the heap" if self._path is None else f"channel {self._path}"

    cdef int _fail(self, int rc, size_t size) except -1:
        if rc == IGN_E_TOO_LARGE:
            raise _errors.MessageTooLargeError(size, self._channel.region.max_message_bytes)
        self._check_region()  # impossible positions may be the zeros of a file that was cut
        return raise_code(rc, self._name())

    # -- waiting ----------------------------------------------------------------------------------------------------

    cdef int _wait(self, ign_role role, uint64_t until, bint spin) except -1:
        """Waits for one slice. 1: look again; 0: time is up. Other threads may call the same role meanwhile."""
        cdef uint64_t now = ign_now_ns()
        cdef uint64_t left = until - now if until > now else 0
        cdef int rc
        self._waiting += 1
        with nogil:
            if role == IGN_CONSUMER:
                rc = ign_channel_wait_items(self._channel, left, spin)
            else:
                rc = ign_channel_wait_space(self._channel, left, spin, True)
        self._waiting -= 1
        self._finish()
        PyErr_CheckSignals()
        if self._closing:
            rc = IGN_E_CLOSED
        if rc == IGN_OK or (rc == IGN_TIMEOUT and ign_now_ns() < until):
            return 1
        if rc == IGN_TIMEOUT:
            return 0
        if rc == IGN_E_CLOSED and not self._closing:
            raise _errors.ClosedError(f"{self._name()}: the other side closed it")
        return raise_code(rc, self._name())

    # -- sending ----------------------------------------------------------------------------------------------------

    cdef int _push(self, const uint8_t *data, size_t size, uint16_t kind) noexcept:
        """Stages one message, which the caller publishes."""
        cdef ign_slab_ref ref
        cdef uint8_t *at
        cdef int rc = ign_channel_reserve(self._channel, size, &ref, &at)
        if rc == IGN_OK:
            memcpy(at, data, size)
            ign_channel_stage(self._channel, &ref, kind)
        return rc

    cdef int _send_slow(self, const uint8_t *data, size_t size, uint16_t kind, uint64_t wait_ns) except -1:
        """Sends when the ring, the byte ring or a size class is full: waits for room. Returns 0 when the message was sent."""
        cdef uint64_t until = ign_now_ns() + wait_ns
        cdef bint spin = True
        cdef int rc
        while True:
            if self._wait(IGN_PRODUCER, until, spin) == 0:
                raise _errors.WaitTimeoutError(f"{self._name()}: no room for {size} bytes within {wait_ns / 1e9:g} s")
            spin = False
            self._check()
            rc = self._push(data, size, kind)
            if rc == IGN_OK:
                ign_channel_publish(self._channel)
                return 0
            if rc != IGN_FULL:
                self._fail(rc, size)

    cdef int _send(self, object data, uint16_t kind, uint64_t wait_ns, bint waits) except -1:
        """Sends one message. 1: sent; 0: no room, and not to wait for any. The buffer is taken before the channel is checked:
        taking it may run Python code, which may close the channel."""
        cdef Py_buffer view
        cdef const uint8_t *at
        cdef size_t size
        cdef bint exported = not PyBytes_CheckExact(data)
        cdef int rc
        if exported:
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            at, size = <const uint8_t *>view.buf, <size_t>view.len
        else:
            at, size = <const uint8_t *>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data)
        try:
            self._as(IGN_PRODUCER)
            rc = self._push(at, size, kind)
            if rc == IGN_OK:
                ign_channel_publish(self._channel)
            elif rc != IGN_FULL:
                self._fail(rc, size)
            elif waits:
                self._send_slow(at, size, kind, wait_ns)
            else:
                return 0
            return 1
        finally:
            if exported:
                PyBuffer_Release(&view)

    def send(self, data, kind: int = 0, timeout=30.0) -> None:
        """Copies one message into the channel; waits while there is no room.

        Args:
            data: bytes or any buffer, up to ``max_message_bytes``.
            kind: a number from 0 to 65535 that the receiver gets with it.

        Raises:
            WaitTimeoutError, MessageTooLargeError, ClosedError (also when the consumer closed), PeerDiedError (no room, and the
            consumer died), RegionTruncatedError, ForkedHandleError.
        """
        cdef uint16_t c_kind = kind if type(kind) is int else _as_index(kind)
        cdef uint64_t wait_ns = timeout_ns(timeout)
        self._send(data, c_kind, wait_ns, True)

    def try_send(self, data, kind: int = 0) -> bool:
        """Sends as ``send`` does, but returns False instead of waiting."""
        cdef uint16_t c_kind = kind if type(kind) is int else _as_index(kind)
        return self._send(data, c_kind, 0, False) == 1

    def send_many(self, items, kind: int = 0, timeout=30.0) -> int:
        """Sends a sequence of messages, and publishes many at a time; waits while there is no room.

        Returns:
            How many were sent: all, or fewer when the time ran out or the consumer went away after at least one.

        Raises:
            MessageTooLargeError: one of them is over the limit; none was sent. The others as for ``send``, when none was sent.
        """
        cdef uint16_t c_kind = kind if type(kind) is int else _as_index(kind)
        cdef uint64_t wait_ns = timeout_ns(timeout)
        cdef Py_ssize_t n, sent = 0, i, size
        cdef uint64_t until = 0, limit
        cdef bint spin
        cdef int rc, staged = 0
        cdef object item
        cdef list many = list(items)  # a copy: the caller's list may change in the next lines and during a wait
        n = len(many)
        for i in range(n):
            item = many[i]
            if not PyBytes_CheckExact(item):
                many[i] = bytes(memoryview(item))
        # From here on no Python code runs except in a wait.
        self._as(IGN_PRODUCER)
        limit = self._channel.region.max_message_bytes
        for i in range(n):
            size = PyBytes_GET_SIZE(many[i])
            if <uint64_t>size > limit:
                raise _errors.MessageTooLargeError(size, limit)
        while sent < n:
            rc = IGN_OK
            staged = 0
            while sent + staged < n:
                item = many[sent + staged]
                rc = self._push(<const uint8_t *>PyBytes_AS_STRING(item), <size_t>PyBytes_GET_SIZE(item), c_kind)
                if rc != IGN_OK:
                    break
                staged += 1
                if staged == PUBLISH_EVERY:
                    ign_channel_publish(self._channel)
                    sent += staged
                    staged = 0
            ign_channel_publish(self._channel)
            sent += staged
            if rc == IGN_OK:
                break
            if rc != IGN_FULL:
                if sent == 0:
                    self._fail(rc, 0)
                return sent
            if until == 0:
                until = ign_now_ns() + wait_ns
            spin = True
            try:
                if self._wait(IGN_PRODUCER, until, spin) == 0:
                    raise _errors.WaitTimeoutError(f"{self._name()}: no room within {wait_ns / 1e9:g} s")
                self._check()
            except _errors.IgnisError:
                if sent == 0:
                    raise
                return sent
        return sent

    # -- receiving --------------------------------------------------------------------------------------------------

    cdef const ign_message *_next(self, uint64_t wait_ns, bint waits) except? NULL:
        """Returns the next message without taking it; NULL when the time is up, or at once without `waits`.

        Between this and taking the message no object may be made that the garbage collector tracks: a collection can run Python
        code that receives from this channel.
        """
        cdef const ign_message *message = NULL
        cdef uint32_t got
        cdef uint64_t until
        cdef uint32_t slot
        cdef bint spin = True
        cdef int rc = ign_channel_peek(self._channel, &message, &got)
        if rc == IGN_EMPTY:
            # The channel is empty for now: return the finished buffers to the producer.
            ign_channel_flush(self._channel)
            if not waits:
                return NULL
            until = ign_now_ns() + wait_ns
            while rc == IGN_EMPTY:
                if self._wait(IGN_CONSUMER, until, spin) == 0:
                    return NULL
                spin = False
                self._check()
                rc = ign_channel_peek(self._channel, &message, &got)
        if rc != IGN_OK:
            self._fail(rc, 0)
        if message.code != IGN_OK:
            rc, slot = message.code, message.slot
            ign_channel_advance(self._channel, 1)
            raise_code(rc, f"{self._name()}: slot {slot}")
        return message

    cdef bytes _take(self, const ign_message *message):
        """Copies the message out, takes it and returns its slot."""
        cdef bytes data = PyBytes_FromStringAndSize(<const char *>message.bytes, <Py_ssize_t>message.length)
        cdef uint32_t slot = message.slot, generation = message.generation
        # If the file was cut during the copy, the bytes are zeros and no message.
        cdef int rc = ign_region_check(&self._channel.region)
        if rc != IGN_OK:
            raise_code(rc, self._name())
        ign_channel_advance(self._channel, 1)
        ign_channel_give_back(self._channel, slot, generation)
        return data

    def recv(self, timeout=30.0) -> bytes:
        """Receives the next message.

        Raises:
            WaitTimeoutError; ClosedError or PeerDiedError when the producer closed or died and everything it had sent was
            received; ForeignReferenceError for a reference outside the slab (it is skipped); RegionTruncatedError, ForkedHandleError.
        """
        cdef uint64_t wait_ns = timeout_ns(timeout)
        self._as(IGN_CONSUMER)
        cdef const ign_message *message = self._next(wait_ns, True)
        if message == NULL:
            raise _errors.WaitTimeoutError(f"{self._name()}: nothing received within {wait_ns / 1e9:g} s")
        return self._take(message)

    def try_recv(self):
        """Receives the next message; None when there is none at the moment."""
        self._as(IGN_CONSUMER)
        cdef const ign_message *message = self._next(0, False)
        return None if message == NULL else self._take(message)

    def recv_with_kind(self, timeout=30.0):
        """Receives as ``recv`` does, and returns (kind, message)."""
        cdef uint64_t wait_ns = timeout_ns(timeout)
        self._as(IGN_CONSUMER)
        cdef const ign_message *message = self._next(wait_ns, True)
        if message == NULL:
            raise _errors.WaitTimeoutError(f"{self._name()}: nothing received within {wait_ns / 1e9:g} s")
        cdef int kind = message.kind
        cdef bytes data = self._take(message)
        return kind, data

    def recv_many(self, max_messages: int, timeout=30.0) -> list:
        """Receives up to ``max_messages`` messages. Waits for the first, never for more. An empty list when the time is up.

        Raises:
            What ``recv`` raises, when there is nothing to return before the error.
        """
        cdef Py_ssize_t limit = _as_index(max_messages)
        cdef uint64_t wait_ns = timeout_ns(timeout)
        cdef const ign_message *messages
        cdef uint32_t got, i, taken
        cdef int rc
        cdef list out = []
        self._as(IGN_CONSUMER)
        if limit <= 0 or self._next(wait_ns, True) == NULL:
            return out
        while len(out) < limit and ign_channel_peek(self._channel, &messages, &got) == IGN_OK:
            if <Py_ssize_t>got > limit - len(out):
                got = <uint32_t>(limit - len(out))
            taken = 0
            try:
                for i in range(got):
                    if messages[i].code != IGN_OK:
                        break
                    if i + 4 < got:
                        ign_prefetch(messages[i + 4].bytes)
                        ign_prefetch(messages[i + 4].bytes + 64)
                    out.append(PyBytes_FromStringAndSize(<const char *>messages[i].bytes, <Py_ssize_t>messages[i].length))
                    taken += 1
            finally:
                # Taken first: a slot that was given back may be written anew while an entry that a successor reads still names it.
                ign_channel_advance(self._channel, taken)
                for i in range(taken):
                    ign_channel_give_back(self._channel, messages[i].slot, messages[i].generation)
            if taken < got:
                break  # a bad reference: the next call raises
        rc = ign_region_check(&self._channel.region)
        if rc != IGN_OK:  # what was copied last may be zeros: see _take
            raise_code(rc, self._name())
        return out

    def recv_views(self, max_messages: int, timeout=30.0) -> list:
        """Receives as ``recv_many`` does, without copying: the views read the slab itself, and each slot returns to the producer
        when its view is released. Messages of the byte ring (up to 1 KiB) are copied, which is quicker than a slot of their own.

        Hold few views for long: the producer cannot use their slots.
        """
        cdef Py_ssize_t limit = _as_index(max_messages)
        cdef uint64_t wait_ns = timeout_ns(timeout)
        cdef const ign_message *messages
        cdef uint32_t got
        cdef View view
        cdef list out = []
        self._as(IGN_CONSUMER)
        if limit <= 0 or self._next(wait_ns, True) == NULL:
            return out
        while len(out) < limit and ign_channel_peek(self._channel, &messages, &got) == IGN_OK:
            if messages.code != IGN_OK:
                break
            view = new_view()
            if messages.slot == IGN_BYTERING_SLOT:
                view._copy = PyBytes_FromStringAndSize(<const char *>messages.bytes, <Py_ssize_t>messages.length)
                view._bytes = <const uint8_t *>PyBytes_AS_STRING(view._copy)
            else:
                view._bytes = messages.bytes
            view._size = <Py_ssize_t>messages.length
            view._slot = messages.slot
            view._generation = messages.generation
            view.kind = messages.kind
            out.append(view)
            view._owner = self  # from here on the view owns the slot
            self._views += 1
            ign_channel_advance(self._channel, 1)
        return out

    # -- the rest ---------------------------------------------------------------------------------------------------

    def set_note(self, index: int, value: int) -> None:
        """Sets a note, one of eight 64-bit words that both sides can read at any time (release)."""
        cdef uint32_t i = note_index(index)
        cdef uint64_t c_value = _as_index(value)
        self._check()
        ign_region_set_note(&self._channel.region, i, c_value)

    def get_note(self, index: int) -> int:
        """Reads a note (acquire); 0 before it was set."""
        cdef uint32_t i = note_index(index)
        self._check()
        return ign_region_get_note(&self._channel.region, i)

    def peer_alive(self):
        """Whether the process in the other role lives; None when no process has had it yet. False after a clean close."""
        self._check()
        cdef int rc = ign_region_owner_state(
            &self._channel.region, IGN_CONSUMER if self._channel.produces else IGN_PRODUCER)
        return None if rc == IGN_EMPTY else rc == IGN_OK

    def depth(self) -> int:
        """Returns how many messages were sent and not received; a snapshot."""
        self._check()
        return ign_channel_depth(self._channel)

    def stats(self) -> dict:
        """Figures: capacity, depth, max_message_bytes, region_bytes, bytering_bytes, sent and received by this handle.

        A producer has the slab's counts too: active, allocated, released, refused, bytes, bad_returns, classes."""
        cdef ign_channel *c = self._channel
        cdef ign_slab_stats slab
        cdef uint64_t depth
        cdef uint32_t active = 0
        self._check()
        # First everything that needs the mapping: making the answer may run Python code, which may close the channel.
        depth = ign_channel_depth(c)
        if c.produces:
            ign_channel_collect(c)
            active = ign_slab_active(&c.slab)
        slab = c.slab.stats
        out = {
            "capacity": c.region.ring_capacity,
            "depth": depth,
            "max_message_bytes": c.region.max_message_bytes,
            "region_bytes": c.region.bytes,
            "bytering_bytes": c.region.bytering_bytes,
            "sent": c.sent,
            "received": c.received,
        }
        if c.produces:
            out.update(
                active=active, allocated=slab.allocated, released=slab.released, refused=slab.refused,
                bytes=slab.active_bytes, bad_returns=c.bad_returns, classes=slab_classes(&c.slab),
            )
        return out

    def classes(self) -> list:
        """The size classes of the slab as in `stats`; none on a consumer, after `close`, and for a parent's channel."""
        if self._closing or not self._channel.produces or ign_region_check(&self._channel.region) != IGN_OK:
            return []
        ign_channel_collect(self._channel)
        return slab_classes(&self._channel.slab)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closing

    @property
    def path(self):
        """The region's file, None on the heap."""
        return self._path

    cdef void _finish(self) noexcept:
        # Gives the role back when no view points into the region any more and no thread waits on the channel.
        if self._closing and self._views == 0 and self._waiting == 0:
            ign_channel_close(self._channel)

    def close(self, timeout=5.0) -> None:
        """Gives the role back. The other side gets the remaining messages, then ClosedError. Idempotent. The file stays.

        Threads that wait on this channel get ClosedError. While views are held the region stays mapped and the role taken;
        the last release finishes the close.

        Raises:
            WaitTimeoutError: a thread did not leave its wait in time. The last one that leaves finishes the close.
        """
        cdef uint64_t until = timeout_ns(timeout)
        until += ign_now_ns()
        self._closing = True
        if ign_region_check(&self._channel.region) != IGN_E_FORKED:
            ign_channel_interrupt(self._channel)
            while self._waiting:
                if ign_now_ns() >= until:
                    raise _errors.WaitTimeoutError(f"{self._name()}: {self._waiting} thread(s) still wait")
                time.sleep(0.0005)
                ign_channel_interrupt(self._channel)
        self._finish()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


include "_view.pxi"


def _error_for_code(code: int, what: str):
    """Returns the exception of a C error code, for the test that tries all of them."""
    return error_of(code, what)
