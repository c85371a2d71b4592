# The outbox of a buffered publisher: a flusher of the same process drains it. Included by outbox.pyx.


@cython.final
@cython.no_gc_clear
cdef class Outbox(SendRing):
    """A ring of encoded messages on their way to a store, in this process's memory.

    Args:
        capacity: messages in flight, a power of two up to 2**24.
        size_classes: (bytes, count) of its slots; None chooses them.
        max_message_bytes: limit of a body.
        timed: its messages may have times, see `send_timed`.
        of_boottime_ms: what is added to the system's clock that only rises to get the time by which delays are reckoned.

    Any thread may send; one thread, the flusher, calls drain, settle and fail. A second
    `drain` while one is at work is refused. Cannot be copied or pickled.
    """

    def __cinit__(
        self, *, capacity: int = 65536, size_classes=None, max_message_bytes: int = 1 << 20, timed: bool = False,
        of_boottime_ms=None,
    ):
        cdef ign_region_config config
        cdef int rc
        self._describe(&config, capacity, max_message_bytes, size_classes)
        # The messages of a batch are held beyond the read position, where a byte ring writes over them: each needs a slot of its own.
        config.bytering_bytes = 0
        self._allocate()
        rc = ign_channel_heap(self._channel, &config)
        if rc != IGN_OK:
            raise_code(rc, f"outbox with capacity={capacity}, size_classes={size_classes}")
        if timed:
            self._times = <Times *>malloc(self._channel.region.ring_capacity * sizeof(Times))
            if self._times == NULL:
                raise MemoryError("outbox")
        self._until = NO_TIME
        self._of_boottime_ms = of_boottime_ms
        self._opened()

    def __dealloc__(self):
        free(self._taken)
        free(self._dues)

    cdef int _wait_room(self, uint64_t seen, uint64_t left, bint spin, bint slots) except? -999:
        cdef int rc
        with nogil:
            rc = ign_channel_wait_space(self._channel, left, spin, slots)
        return rc

    def send_timed(
        self, bytes body not None, int shard, int flags, bytes key=b"", bytes meta=b"", timeout=30.0, due_ms=None, until=None,
        delay_s=None,
    ):
        """`send` of a message with a time, where it is ``timed``.

        Args:
            due_ms: when it is due; None = it does not wait.
            until: only messages with the same one are drained together, as are only those that wait or those that do not.
            delay_s: in place of ``due_ms``: the message is due so many seconds from now on. Only with ``of_boottime_ms``.
        """
        cdef uint64_t due = NO_TIME
        if self._times == NULL:
            raise ValueError("this outbox is of messages without times")
        if delay_s is not None:
            due = due_after(delay_s, self._of_boottime_ms)
        elif due_ms is not None:
            due = due_ms
        return self._send(body, shard, flags, key, meta, timeout, due, NO_TIME if until is None else <uint64_t>until)

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
        self._check_drain(max_messages, any_shard, shards, chunk_records, chunk_bytes)
        self._draining = True
        try:
            count, out, _ = self._drain(max_messages, max_bytes, any_shard, shards, left, chunk_records, chunk_bytes)
            return count, out
        finally:
            self._draining = False

    def drain_timed(
        self, uint32_t max_messages, size_t max_bytes, uint32_t any_shard, uint32_t shards, timeout,
        uint32_t chunk_records=256, size_t chunk_bytes=32768,
    ):
        """`drain` of messages that may go to the store together, where they are ``timed``.

        Returns:
            How many, the batches, the due times of each batch's messages or None when they do not wait, and their ``until``.
        """
        cdef uint64_t left = timeout_ns(timeout)
        if self._times == NULL:
            raise ValueError("this outbox is of messages without times")
        self._check_drain(max_messages, any_shard, shards, chunk_records, chunk_bytes)
        self._draining = True
        try:
            count, out, dues = self._drain(max_messages, max_bytes, any_shard, shards, left, chunk_records, chunk_bytes)
            return count, out, dues, None if self._until == NO_TIME else self._until
        finally:
            self._draining = False

    cdef int _check_drain(
        self, uint32_t max_messages, uint32_t any_shard, uint32_t shards, uint32_t chunk_records, size_t chunk_bytes,
    ) except -1:
        if not 0 < shards < ANY or max_messages == 0 or chunk_records == 0 or any_shard >= shards:
            raise ValueError(f"drain: shards={shards}, any_shard={any_shard}, max_messages={max_messages}")
        if chunk_records > 1 << 20 or chunk_bytes > 1 << 31:
            raise ValueError(f"drain: chunk_records={chunk_records}, chunk_bytes={chunk_bytes}")
        self._check()
        if self._draining:
            raise_code(IGN_E_THREAD, "outbox: drain")
        return 0

    cdef tuple _drain(
        self, uint32_t max_messages, size_t max_bytes, uint32_t any_shard, uint32_t shards, uint64_t left,
        uint32_t chunk_records, size_t chunk_bytes,
    ):
        cdef uint32_t count, batches = 0, i
        cdef int rc = IGN_OK
        cdef Batch *built = NULL
        cdef list out, dues = None
        if self._taken_count == 0 and ign_channel_depth(self._channel) == 0:
            ign_channel_flush(self._channel)
            if self._wait_items(ign_now_ns() + left) == 0:
                self._until = NO_TIME
                return 0, [], None
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
            if self._dues != NULL and self._dues[0] != NO_TIME:
                dues = self._dues_by_batch(out)
            # Only now are the messages somebody else's.
            count = self._taken_count
            self._taken_count = 0
            with nogil:
                for i in range(count):
                    ign_channel_give_back(self._channel, self._taken[i].slot, self._taken[i].generation)
                ign_channel_flush(self._channel)
            return count, out, dues
        finally:
            free_batches(built, batches)

    cdef list _dues_by_batch(self, list batches):
        """Those of what was taken. Within a batch it lies in the order in which it was taken."""
        cdef list dues = [[] for _ in batches]
        cdef uint32_t i
        for i in range(self._taken_count):
            (<list>dues[self._taken[i].batch]).append(self._dues[i])
        return dues

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
    cdef uint32_t got, i, used
    cdef size_t total = 0
    cdef const Times *times
    cdef int rc
    while self._taken_count < max_messages:
        rc = ign_channel_peek(self._channel, &messages, &got)
        if rc == IGN_EMPTY:
            break
        if rc != IGN_OK:
            return rc if self._taken_count == 0 else IGN_OK
        if self._taken_count + got > self._taken_room:
            if not grow_taken(self):
                return IGN_E_NOMEM if self._taken_count == 0 else IGN_OK
        used = 0
        for i in range(got):
            if self._taken_count == max_messages or (self._taken_count != 0 and total + messages[i].length > max_bytes):
                break
            if messages[i].code != IGN_OK or messages[i].slot == IGN_BYTERING_SLOT:
                return IGN_E_FOREIGN  # our own memory, and no byte ring in it: cannot happen
            if self._times != NULL:
                times = &self._times[self._drained & (self._channel.region.ring_capacity - 1)]
                if self._taken_count == 0:
                    self._until = times.until
                elif times.until != self._until or (times.due_ms == NO_TIME) != (self._dues[0] == NO_TIME):
                    break
                self._dues[self._taken_count] = times.due_ms
            self._taken[self._taken_count].bytes = messages[i].bytes
            self._taken[self._taken_count].length = messages[i].length
            self._taken[self._taken_count].slot = messages[i].slot
            self._taken[self._taken_count].generation = messages[i].generation
            self._taken[self._taken_count].kind = messages[i].kind
            self._taken_count += 1
            self._drained += 1
            total += messages[i].length
            used += 1
        ign_channel_advance(self._channel, used)
        if used < got:
            break
    return IGN_OK


cdef bint grow_taken(Outbox self) noexcept nogil:
    """Room for twice as many; False: there is no memory."""
    cdef uint32_t room = self._taken_room * 2 if self._taken_room else 1024
    cdef uint64_t *dues
    cdef Taken *grown = <Taken *>realloc(self._taken, room * sizeof(Taken))
    if grown == NULL:
        return False
    self._taken = grown
    if self._times != NULL:
        dues = <uint64_t *>realloc(self._dues, room * sizeof(uint64_t))
        if dues == NULL:
            return False
        self._dues = dues
    self._taken_room = room
    return True


cdef uint64_t due_after(double delay_s, int64_t of_boottime_ms) except? NO_TIME:
    """The first millisecond that begins when so much time has passed; less than a microsecond of the last one is none."""
    if not 0.0 <= delay_s <= MOST_DELAY_S:
        raise ValueError(f"delay_s = {delay_s}")
    return <uint64_t>max(0, of_boottime_ms + <int64_t>((ignis_rising_ns() + <uint64_t>(delay_s * 1e9) + 998999) // 1000000))
