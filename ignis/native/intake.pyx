# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, auto_pickle=False
"""Collects messages that other processes left in mapped outboxes. A message is taken out only when it is durable.

`Intake.hold` reads messages where they lie, `pack` copies those of many intakes into batches, and after the batches are
stored `Intake.acknowledge` takes them out. More may be held and packed while earlier ones are being stored. When the process
dies in between, the next consumer finds them. The files are made by other processes: every word in them is read once and
checked before it is used.
"""

import time

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport UINT32_MAX, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from ignis.native.channel cimport (
    IGN_BYTERING_SLOT, IGN_CONSUMER, IGN_NOTE_REFUSED, IGN_PRODUCER, ign_channel, ign_channel_close, ign_channel_depth,
    ign_channel_flush, ign_channel_give_back, ign_channel_open, ign_channel_survey, ign_channel_take,
    ign_channel_wait_any, ign_message, ign_now_ns, ign_prefetch, ign_region_check, ign_region_check_size,
    ign_region_label, ign_region_owner_state, ign_region_set_note,
)
from ignis.native.outbox cimport Taken
from ignis.native.record cimport (
    IGN_RECORD_HEADER_BYTES, BatchBuilder, builder_abort, builder_add, builder_close, builder_open, ign_record,
    ign_record_decode, ign_shard_for_key,
)
from ignis.native.ring cimport ign_ring_entry
from ignis.native.wait cimport ign_board, ign_board_check, ign_board_close, ign_board_open, ign_event_advance

include "_errors.pxi"
include "_arguments.pxi"
include "_time.pxi"
include "_packing.pxi"

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef enum:
    CODEC_BITS = 0x0F
    CLOSE_NS = 5000000000   # the longest that close() waits for threads inside


@cython.final
@cython.no_gc_clear
cdef class Intake:
    """Consumes one mapped outbox. Made by :meth:`open`. Cannot be copied or pickled.

    For one thread at a time: `hold`, `pack`, `acknowledge` and `let_go` raise NativeError while another of them runs.
    Any thread may call `close`, which waits for threads inside.
    """

    def __init__(self):
        raise TypeError("use Intake.open()")

    @staticmethod
    def open(path):
        """Takes the consumer's side of the file.

        Raises:
            RegionFormatError, RegionTruncatedError, NativeError: not a region, or one whose fields contradict each other.
            RegionBusyError: a living process collects from it. RegionIOError.
        """
        cdef bytes encoded = path_bytes(path)
        cdef Intake self = Intake.__new__(Intake)
        cdef size_t room
        cdef int rc
        self.path = path
        self._channel = <ign_channel *>aligned_alloc(128, sizeof(ign_channel))
        if self._channel == NULL:
            raise MemoryError("intake")
        memset(self._channel, 0, sizeof(ign_channel))
        rc = ign_channel_open(self._channel, encoded, IGN_CONSUMER)
        if rc != IGN_OK:
            raise_code(rc, str(path))
        self._channel.forward_in.check_thread = False  # one thread at a time, not always the same
        self._channel.back_out.check_thread = False
        room = self._channel.region.ring_capacity
        self._entries = <ign_ring_entry *>malloc(room * sizeof(ign_ring_entry))
        self._messages = <ign_message *>malloc(room * sizeof(ign_message))
        self._taken = <Taken *>malloc(room * sizeof(Taken))
        if self._entries == NULL or self._messages == NULL or self._taken == NULL:
            raise MemoryError("intake")
        return self

    def __dealloc__(self):
        free(self._entries)
        free(self._messages)
        free(self._taken)
        if self._channel != NULL:
            ign_channel_close(self._channel)
            free(self._channel)

    def __reduce__(self):
        refuse_copy(self)

    cdef Taken *_at(self, uint32_t i) noexcept nogil:
        return &self._taken[(self._first + i) & (self._channel.region.ring_capacity - 1)]

    cdef int _check(self) except -1:
        cdef int rc
        if self._channel == NULL or self._taken == NULL:
            raise TypeError("use Intake.open(), not Intake.__new__")
        rc = IGN_E_CLOSED if self._closed else ign_region_check(&self._channel.region)
        if rc != IGN_OK:
            raise_code(rc, str(self.path))
        return 0

    cdef int _check_alone(self) except -1:
        """`_check` for calls that change the list of held messages: raises NativeError while another one runs."""
        self._check()
        if self._busy:
            raise_code(IGN_E_THREAD, f"intake {self.path}")
        return 0

    @property
    def label(self) -> bytes:
        """The text that the file's maker wrote into its header: a copy, unchecked."""
        self._check()
        return PyBytes_FromStringAndSize(
            <const char *>ign_region_label(&self._channel.region), self._channel.region.label_bytes)

    @property
    def held(self) -> int:
        """How many messages are held: read, and neither acknowledged nor let go."""
        return self._count

    @property
    def waiting(self) -> int:
        """How many messages in the channel are not held; a snapshot."""
        self._check()
        cdef uint64_t depth = ign_channel_depth(self._channel)
        self._check()
        return depth - self._count if depth > self._count else 0

    @property
    def region_bytes(self) -> int:
        """Size of the file in bytes."""
        self._check()
        return self._channel.region.bytes

    def depth(self) -> int:
        """Returns how many messages are in the channel, those held included; a snapshot."""
        self._check()
        cdef uint64_t depth = ign_channel_depth(self._channel)
        self._check()
        return depth

    def producer_alive(self) -> bool:
        """Whether the producer lives and has not closed. What it had sent before is in the channel: ask `depth` after this."""
        self._check()
        return ign_region_owner_state(&self._channel.region, IGN_PRODUCER) == IGN_OK

    def check_size(self) -> None:
        """Raises RegionTruncatedError when the file was cut, also in a part that no call has touched yet."""
        self._check()
        cdef int rc = ign_region_check_size(&self._channel.region)
        if rc != IGN_OK:
            raise_code(rc, str(self.path))

    def hold(self, max_messages: int, max_bytes: int, shards: int, codec: int) -> int:
        """Checks the oldest messages that are not held yet, and holds them for `pack`. Returns how many.

        Args:
            max_messages: the most messages.
            max_bytes: the most bytes; one message is held in any case if there is one.
            shards: the queue's number of shards, 1 to 65534.
            codec: the queue's codec; a record of another codec is refused.

        Raises:
            ForeignReferenceError, UnreadableMessageError: the oldest of these lies outside the region, or is not a record of this
            codec; earlier ones stay held.
            NativeError: impossible ring positions; RegionTruncatedError. Nothing is held then.
        """
        cdef uint32_t got, i, limit, added = 0
        cdef size_t total = 0
        cdef size_t c_messages = max_messages
        cdef size_t c_bytes = max_bytes
        cdef uint16_t c_shards = shards
        cdef uint8_t c_codec = codec
        cdef int rc, bad = IGN_OK
        if c_shards == 0 or c_shards == ANY or c_messages == 0:
            raise ValueError(f"hold: max_messages={c_messages}, shards={c_shards}, allowed are 1 and more, and 1..65534")
        self._check_alone()
        limit = self._channel.region.ring_capacity
        if c_messages < limit:
            limit = <uint32_t>c_messages
        self._busy = True
        self._inside += 1
        with nogil:
            rc = ign_channel_survey(self._channel, self._count, self._entries, self._messages, limit, &got)
            if rc == IGN_OK:
                for i in range(got):
                    if i != 0 and total + self._messages[i].length > c_bytes:
                        break
                    if i + 4 < got:
                        ign_prefetch(self._messages[i + 4].bytes)
                    bad = check_record(&self._messages[i], self._at(self._count + i), c_shards, c_codec)
                    if bad != IGN_OK:
                        break  # those before it are good
                    total += self._messages[i].length
                    added += 1
        self._inside -= 1
        self._busy = False
        try:
            self._check()  # a file that was cut has zeros, which look like an empty ring
        except _errors.IgnisError:
            self._let_go(0)
            raise
        if rc == IGN_EMPTY:
            return 0
        if rc != IGN_OK:
            self._let_go(0)
            raise_code(rc, str(self.path))
        if added == 0 and bad == IGN_E_FOREIGN:
            raise_code(bad, str(self.path))
        if added == 0 and bad != IGN_OK:
            raise _errors.UnreadableMessageError(
                f"{self.path}: {self._messages[0].length} bytes that are no record of codec {c_codec}")
        self.bytes_taken += total
        self._count += added
        return added

    def let_go(self, uint32_t keep=0) -> None:
        """Lets go of all held messages but the oldest ``keep``. They stay in the channel, and the next `hold` finds
        them again."""
        if self._busy:
            raise_code(IGN_E_THREAD, f"intake {self.path}")
        self._let_go(keep)

    cdef void _let_go(self, uint32_t keep) noexcept:
        self._count = min(self._count, keep)
        self._packed = min(self._packed, keep)
        if self._count == 0:
            self._first = 0  # a channel with few messages then touches little of the memory

    def acknowledge(self, count=None) -> int:
        """Takes the oldest ``count`` held messages (default: all) out for good. Their receipts at the producer are done.

        Returns how many that was. Raises ValueError when fewer are held.
        """
        cdef bint all_of_them = count is None
        cdef uint32_t i, n = 0 if all_of_them else count
        self._check_alone()
        if all_of_them:
            n = self._count
        if n > self._count:
            raise ValueError(f"{self.path}: acknowledge({n}), {self._count} messages are held")
        if n == 0:
            return 0
        self._busy = True
        self._inside += 1
        with nogil:
            # In this order, see ign_channel_take.
            ign_channel_take(self._channel, n)
            for i in range(n):
                # Messages of the byte ring have no slot to return, and each return would wake a sleeping producer once more.
                if self._at(i).slot != IGN_BYTERING_SLOT:
                    ign_channel_give_back(self._channel, self._at(i).slot, self._at(i).generation)
            ign_channel_flush(self._channel)
        self._inside -= 1
        self._busy = False
        self._first += n
        self._count -= n
        self._packed -= n if n < self._packed else self._packed
        if self._count == 0:
            self._first = 0
        self.acknowledged += n
        return n

    def refuse(self) -> None:
        """Tells the producer that nothing more is taken from this file. Its sends and receipts raise from now on."""
        try:
            self._check()
        except _errors.RegionTruncatedError:
            pass  # also when the file was cut: the note is in its first page, which may still be there
        ign_region_set_note(&self._channel.region, IGN_NOTE_REFUSED, 1)
        ign_channel_flush(self._channel)  # wakes a producer that waits for progress

    def close(self) -> None:
        """Gives the consumer's side back; held messages stay in the file. Idempotent.

        Waits for the threads inside, which then raise ClosedError.

        Raises:
            WaitTimeoutError: one was still inside after 5 s. The intake is closed all the same; the next `close`, or the end of
            the object, gives the side back.
        """
        cdef uint64_t until
        self._closed = True
        if self._channel == NULL or ign_region_check(&self._channel.region) == IGN_E_CLOSED:
            return
        if ign_region_check(&self._channel.region) == IGN_E_FORKED:
            self._inside = 0  # the parent's threads are not here
        until = ign_now_ns() + <uint64_t>CLOSE_NS
        while self._inside and ign_now_ns() < until:  # none stays longer than a slice or the copying of the held messages
            time.sleep(0.0005)
        if self._inside:
            raise _errors.WaitTimeoutError(f"{self.path}: {self._inside} thread(s) are still at work on it")
        self._let_go(0)
        ign_channel_close(self._channel)

    @property
    def closed(self) -> bool:
        return self._closed

    def __repr__(self) -> str:
        return f"<Intake {self.path} held={self._count}>"


cdef int check_record(const ign_message *message, Taken *taken, uint16_t shards, uint8_t codec) noexcept nogil:
    """Checks a record and fills `taken`, from a private copy of the record's fixed part, since the original may change meanwhile.
    Then the stored record is at worst one that its reader sets aside, of exactly the length decided here."""
    cdef uint8_t fixed[36]
    cdef ign_record record
    cdef int rc
    if message.code != IGN_OK:
        return IGN_E_FOREIGN
    if message.length < IGN_RECORD_HEADER_BYTES:
        return IGN_E_MALFORMED
    memcpy(fixed, message.bytes, sizeof(fixed))
    # With the true length and the bytes of the header alone: decode reads no others.
    rc = ign_record_decode(fixed, message.length, &record)
    if rc != IGN_OK:
        return rc
    if (record.flags & CODEC_BITS) != codec:
        return IGN_E_VERSION
    taken.bytes = message.bytes
    taken.length = message.length
    taken.slot = message.slot
    taken.generation = message.generation
    taken.batch = 0
    taken.kind = ANY
    if record.key_len != 0:
        taken.kind = ign_shard_for_key(message.bytes + IGN_RECORD_HEADER_BYTES, record.key_len, shards)
    return IGN_OK


def pack(list intakes not None, int any_shard, int shards, int chunk_records=256, int chunk_bytes=32768) -> list:
    """Packs the messages that several intakes of one queue hold, and that are not packed yet, into batches.

    Args:
        intakes: their messages are packed one intake after the other, each in its own order.
        any_shard, shards, chunk_records, chunk_bytes: as for `Outbox.drain`.

    Returns:
        (shard, batch) in order. The messages stay held until they are acknowledged or let go.

    Raises:
        RegionTruncatedError: a file was cut meanwhile; its ``held`` messages are lost, let them go.
    """
    cdef list held = intakes_of(intakes)
    cdef Intake one
    cdef uint32_t batches = 0, i
    cdef size_t total = 0, at = 0
    cdef Taken *all = NULL
    cdef Batch *built = NULL
    cdef int rc
    if not 0 < shards < ANY or not 0 <= any_shard < shards or not 0 < chunk_records <= 1 << 20 or chunk_bytes < 0:
        raise ValueError(f"pack: shards={shards}, any_shard={any_shard}, chunk_records={chunk_records}")
    if len(set(held)) != len(held):
        raise ValueError("pack: an intake comes up twice")
    for one in held:
        one._check_alone()
        total += one._count - one._packed
    if total == 0:
        return []
    if total > UINT32_MAX:
        raise ValueError(f"pack: {total} messages at once")
    all = <Taken *>malloc(total * sizeof(Taken))
    if all == NULL:
        raise MemoryError("pack")
    # Between the check above and the end of the copy no Python code runs in this thread, only in others.
    for one in held:
        for i in range(one._packed, one._count):
            all[at] = one._at(i)[0]
            at += 1
        one._busy = True
        one._inside += 1
    with nogil:
        rc = pack_taken(all, <uint32_t>total, any_shard, shards, chunk_records, chunk_bytes, &built, &batches)
    for one in held:
        one._inside -= 1
    try:
        if rc != IGN_OK:
            raise_code(rc, "pack")
        for one in held:
            one._check()
        closed = close_batches(built, batches)
        for one in held:
            one._packed = one._count
        return closed
    finally:
        for one in held:
            one._busy = False
        free_batches(built, batches)
        free(all)


cdef list intakes_of(list intakes):
    """Returns a private copy of the list, and raises TypeError unless all in it are intakes."""
    cdef list held = intakes[:]
    for one in held:
        if type(one) is not Intake:
            raise TypeError(f"intakes holds {type(one).__name__}, expected Intake")
    return held


@cython.final
@cython.no_gc_clear
cdef class Bell:
    """Wakes a sleeping relay: producers ring the bell when they left a message. Cannot be copied or pickled.

    Args:
        path: a file that all of them map, made if it is not there.

    Raises:
        RegionFormatError, RegionTruncatedError, RegionIOError; ValueError for a path with a NUL byte.
    """

    def __cinit__(self, path):
        cdef bytes encoded = path_bytes(path)
        cdef int rc = ign_board_open(&self._board, encoded, 1)
        if rc != IGN_OK:
            raise_code(rc, str(path))
        self.path = path

    def __dealloc__(self):
        ign_board_close(&self._board)

    def __reduce__(self):
        refuse_copy(self)

    cdef int _check(self) except -1:
        cdef int rc = IGN_E_CLOSED if self._closed else ign_board_check(&self._board)
        if rc != IGN_OK:
            raise_code(rc, f"bell {self.path}")
        return 0

    def ring(self) -> None:
        """Wakes the thread that waits, or makes its next wait return at once. From any thread or process."""
        self._check()
        ign_event_advance(self._board.events)

    def wait(self, list intakes not None, timeout) -> bool:
        """Waits until one of the intakes has a message or the bell is rung; False when the time (seconds) is up. One thread.

        Raises:
            ClosedError: the bell or one of the intakes was closed meanwhile; raised within 100 ms.
        """
        cdef uint64_t until = timeout_ns(timeout), now
        cdef list held = intakes_of(intakes)
        cdef uint32_t count = 0
        cdef Intake one
        cdef int rc
        cdef ign_channel **channels = <ign_channel **>malloc((len(held) + 1) * sizeof(ign_channel *))
        if channels == NULL:
            raise MemoryError("bell")
        until += ign_now_ns()
        try:
            for one in held:
                one._check()
                channels[count] = one._channel
                count += 1
            while True:
                # Between two slices another thread, or a signal handler in this one, may have closed any of them.
                for one in held:
                    one._check()
                self._check()
                now = ign_now_ns()
                for one in held:
                    one._inside += 1
                self._inside += 1
                with nogil:
                    rc = ign_channel_wait_any(
                        self._board.events, &self._seen, channels, count, until - now if until > now else 0)
                self._inside -= 1
                for one in held:
                    one._inside -= 1
                PyErr_CheckSignals()
                if self._closed:
                    raise_code(IGN_E_CLOSED, f"bell {self.path}")  # it was close() that rang
                if rc == IGN_OK:
                    return True
                if ign_now_ns() >= until:
                    return False
        finally:
            free(channels)

    def close(self) -> None:
        """Closes the handle, not the file. Idempotent. A thread that waits on it is woken and raises ClosedError.

        Raises:
            WaitTimeoutError: it was still inside after 5 s. The bell is closed all the same; the next `close`, or the end of the
            object, frees its memory.
        """
        cdef uint64_t until = ign_now_ns() + <uint64_t>CLOSE_NS
        self._closed = True
        if ign_board_check(&self._board) == IGN_E_CLOSED:
            return
        if ign_board_check(&self._board) == IGN_E_FORKED:
            self._inside = 0  # the parent's threads are not here
        while self._inside and ign_now_ns() < until:
            if ign_board_check(&self._board) == IGN_OK:
                ign_event_advance(self._board.events)
            time.sleep(0.0005)
        if self._inside:
            raise _errors.WaitTimeoutError(f"bell {self.path}: {self._inside} thread(s) still wait")
        ign_board_close(&self._board)
