# The outbox of a buffered publisher: a flusher of the same process drains it. Included by outbox.pyx.


@cython.final
@cython.no_gc_clear
cdef class Outbox(SendRing):
    """A ring of encoded messages on their way to a store, in this process's memory.

    Args:
        capacity: messages in flight, a power of two up to 2**24.
        size_classes: (bytes, count) of its slots; None chooses them.
        max_message_bytes: limit of a body.

    Any thread may send; one thread, the flusher, calls drain, settle and fail. A second
    `drain` while one is at work is refused. Cannot be copied or pickled.
    """

    def __cinit__(self, *, capacity: int = 65536, size_classes=None, max_message_bytes: int = 1 << 20):
        cdef ign_region_config config
        cdef int rc
        self._describe(&config, capacity, max_message_bytes, size_classes)
        # The messages of a batch are held beyond the read position, where a byte ring writes over them: each needs a slot of its own.
        config.bytering_bytes = 0
        self._allocate()
        rc = ign_channel_heap(self._channel, &config)
        if rc != IGN_OK:
            raise_code(rc, f"outbox with capacity={capacity}, size_classes={size_classes}")
        self._opened()

    def __dealloc__(self):
        free(self._taken)

    cdef int _wait_room(self, uint64_t seen, uint64_t left, bint spin, bint slots) except? -999:
        cdef int rc
        with nogil:
            rc = ign_channel_wait_space(self._channel, left, spin, slots)
        return rc

    # -- the flusher's side

    cdef int _wait_items(self, uint64_t until) except -1:
        """1: there is something; 0: the time is up."""
        cdef uint64_t now, left
        cdef bint spin = False  # the flusher comes from a transaction; burning a core for 20 us helps nobody
        cdef int rc
        while True:
            now = ign_now_ns()
            left = until - now if until > now else 0
            with nogil:
                rc = ign_channel_wait_items(self._channel, left, spin)
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
            # The memory goes with the object, so close() of another thread takes nothing away here.
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
        if n > self._sent - self._settled:
            raise ValueError(f"settle({n}): only {self._sent - self._settled} messages are pending")
        self._complete(self._settled + n)

    def fail(self, uint64_t n, error) -> None:
        """The next ``n`` messages were refused: their receipts raise ``error``."""
        if not isinstance(error, BaseException):
            raise TypeError(f"fail() takes an exception, got {error!r}")
        if self._closing or n == 0:
            return
        if n > self._sent - self._settled:
            raise ValueError(f"fail({n}): only {self._sent - self._settled} messages are pending")
        self._fail_up_to(self._settled + n, error)


cdef traverseproc traverse_outbox = (<PyTypeObject *>Outbox).tp_traverse


cdef int traverse_outbox_and_waiting(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef int rc = traverse_outbox(self, visit, arg)
    return rc if rc != 0 else visit_book(self, visit, arg)


(<PyTypeObject *>Outbox).tp_traverse = traverse_outbox_and_waiting


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
            if messages[i].code != IGN_OK or messages[i].slot == IGN_BYTERING_SLOT:
                return IGN_E_FOREIGN  # our own memory, and no byte ring in it: cannot happen
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
