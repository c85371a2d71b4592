# Messages on their way out, whoever takes them: reserving, encoding, publishing. Included by outbox.pyx.


cdef str no_room(size_t size, str when, uint64_t waiting):
    return (f"publisher: no room for {size} bytes{when}; {waiting} messages are not durable yet "
            f"(publisher.capacity: how many it holds; publisher.send_timeout_s: how long a send waits)")


@cython.no_gc_clear
cdef class SendRing(ReceiptBook):
    """A ring of encoded messages. Any thread may send (the GIL makes them take turns). Cannot be copied or pickled.

    What the kinds have in common: `Outbox`, which a thread of this process drains, and `MappedOutbox`, which another process does.
    """

    def __dealloc__(self):
        if self._channel != NULL:
            ign_channel_close(self._channel)
            free(self._channel)
        free(self._times)

    @cython.final
    cdef int _describe(
        self, ign_region_config *config, object capacity, object max_message_bytes, object size_classes) except -1:
        """Fills in what kinds have in common. Raises ValueError for what cannot be."""
        if not 0 < capacity <= 1 << 24 or capacity & (capacity - 1):
            raise ValueError(f"capacity must be a power of two from 1 to 2**24, got {capacity}")
        if not 0 < max_message_bytes <= (1 << 30) - ENVELOPE_BYTES:
            raise ValueError(f"max_message_bytes must be 1..{(1 << 30) - ENVELOPE_BYTES}, got {max_message_bytes}")
        self._max_body = max_message_bytes
        if ign_region_config_default(config, capacity, max_message_bytes + ENVELOPE_BYTES) != IGN_OK:
            raise ValueError(f"no layout for capacity={capacity}, max_message_bytes={max_message_bytes}")
        if size_classes is not None:
            config.class_count = 0
            for size, count in size_classes:
                if config.class_count == 16:
                    raise ValueError("size_classes: at most 16 pairs")
                config.slot_bytes[config.class_count] = size
                config.slot_counts[config.class_count] = count
                config.class_count += 1
                config.max_message_bytes = size
        return 0

    @cython.final
    cdef int _allocate(self) except -1:
        self._look_us = NO_TIME
        self._channel = <ign_channel *>aligned_alloc(128, sizeof(ign_channel))
        if self._channel == NULL:
            raise MemoryError("outbox")
        memset(self._channel, 0, sizeof(ign_channel))
        return 0

    @cython.final
    cdef int _opened(self) except -1:
        """The channel is there."""
        self._channel.forward_out.check_thread = False  # senders take turns under the GIL
        self._channel.back_in.check_thread = False
        register(self)
        return 0

    # -- what a kind says

    cdef int _check(self) except -1:
        """Raises ClosedError, ForkedHandleError, NativeError where nothing can be sent any more."""
        cdef int rc = IGN_E_CLOSED if self._closing else ign_region_check(&self._channel.region)
        if rc != IGN_OK:
            raise_code(rc, "outbox")
        return 0

    cdef int _published(self) except -1:
        """A message is in the ring."""
        return 0

    cdef int _look_again(self, uint64_t now) except -1:
        """For a sender, every ``_look_us`` by the wall clock, with a place in the ring: runs no Python code unless it raises."""
        self._looked_us = now
        return 0

    cdef int _no_room(self) except -1:
        """A sender finds no room. Raises where there will be none any more."""
        return 0

    cdef int _wait_room(self, uint64_t seen, uint64_t left, bint spin, bint slots) except? -999:
        """Waits ``left`` nanoseconds until something was taken since the position ``seen``; the code of how that ended."""
        return IGN_TIMEOUT

    cdef int _check_process(self) except -1:
        if ign_region_check(&self._channel.region) == IGN_E_FORKED:
            raise_code(IGN_E_FORKED, "publisher")
        return 0

    # -- sending

    def send(self, bytes body not None, int shard, int flags, bytes key=b"", bytes meta=b"", timeout=30.0):
        """Encodes one message into the ring. Nothing is durable before the receipt is done.

        Args:
            body: up to ``max_message_bytes``; may be empty. shard: where it goes, 0xFFFF for any. flags: the record's, i.e. its codec.
            key: the record's, up to 65,535 bytes. meta: likewise, up to 65,600 bytes.
            timeout: seconds to wait while the ring is full; 0 does not wait.

        Returns:
            The message's Receipt.

        Raises:
            ChannelFullError (timeout 0), WaitTimeoutError, MessageTooLargeError, ClosedError, ForkedHandleError.
        """
        return self._send(body, shard, flags, key, meta, timeout, NO_TIME, NO_TIME)

    @cython.final
    cdef inline Receipt _send(
        self, bytes body, int shard, int flags, bytes key, bytes meta, object timeout, uint64_t due_ms, uint64_t until):
        cdef size_t body_len = <size_t>PyBytes_GET_SIZE(body)
        cdef size_t key_len = 0 if key is None else <size_t>PyBytes_GET_SIZE(key)
        cdef size_t meta_len = 0 if meta is None else <size_t>PyBytes_GET_SIZE(meta)
        cdef ign_slab_ref ref
        cdef uint8_t *at
        cdef uint64_t now, left = timeout_ns(timeout)
        cdef Receipt receipt = Receipt.__new__(Receipt)
        self._check()
        if body_len > self._max_body:
            raise _errors.MessageTooLargeError(body_len, self._max_body)
        if key_len > 0xFFFF:
            raise _errors.MessageTooLargeError(key_len, 0xFFFF, "key")
        if not 0 <= shard <= ANY or not 0 <= flags <= 255:
            raise ValueError(f"shard must be 0..65535 and flags 0..255, got {shard} and {flags}")
        self._reserve(record_bytes(key_len, meta_len, body_len), left, &ref, &at)
        now = now_us()
        if now - self._looked_us > self._look_us:
            self._look_again(now)
        next_id(now, receipt._id)
        encode_into(
            at, <uint8_t>flags, receipt._id, now,
            <const uint8_t *>PyBytes_AS_STRING(key) if key_len else NULL, key_len,
            <const uint8_t *>PyBytes_AS_STRING(meta) if meta_len else NULL, meta_len,
            <const uint8_t *>PyBytes_AS_STRING(body), body_len,
        )
        self._note_times(due_ms, until)
        ign_channel_stage(self._channel, &ref, <uint16_t>shard)
        self._sent += 1
        receipt._outbox = self
        receipt._sequence = self._sent
        ign_channel_publish(self._channel)
        self._published()
        return receipt

    def send_record(self, bytes record not None, timeout=30.0) -> int:
        """Sends a message that is encoded already; returns its number. Raises as `send`."""
        cdef size_t size = <size_t>PyBytes_GET_SIZE(record)
        cdef ign_slab_ref ref
        cdef uint8_t *at
        cdef uint64_t left = timeout_ns(timeout)
        self._check()
        self._reserve(size, left, &ref, &at)
        memcpy(at, PyBytes_AS_STRING(record), size)
        self._note_times(NO_TIME, NO_TIME)
        ign_channel_stage(self._channel, &ref, ANY)
        self._sent += 1
        ign_channel_publish(self._channel)
        self._published()
        return self._sent

    @cython.final
    cdef inline void _note_times(self, uint64_t due_ms, uint64_t until) noexcept:
        """Those of the message that is about to be staged. Its place in the ring was that of one that has been taken out."""
        cdef Times *at
        if self._times != NULL:
            at = &self._times[self._sent & (self._channel.region.ring_capacity - 1)]
            at.due_ms = due_ms
            at.until = until

    @cython.final
    cdef inline int _reserve(self, size_t size, uint64_t left, ign_slab_ref *ref, uint8_t **at) except -1:
        """Room for a message of that size, waiting up to ``left`` nanoseconds for it."""
        cdef int rc
        if size > self._channel.region.max_message_bytes:
            raise _errors.MessageTooLargeError(size, self._channel.region.max_message_bytes)
        rc = ign_channel_reserve(self._channel, size, ref, at)
        if rc == IGN_FULL:
            rc = self._reserve_slow(size, left, ref, at)
        if rc != IGN_OK:
            raise_code(rc, "outbox")
        return 0

    @cython.final
    cdef int _reserve_slow(self, size_t size, uint64_t left, ign_slab_ref *ref, uint8_t **at) except? -999:
        """The loop of who finds no room. The last look and the reservation are one, so nobody overtakes."""
        cdef uint64_t now = ign_now_ns(), until = now + left, seen
        cdef bint slots, spin = True
        cdef int rc
        while True:
            seen = ign_channel_read_pos(self._channel)  # before the attempt: what is taken after it ends the wait
            rc = ign_channel_reserve(self._channel, size, ref, at)
            if rc != IGN_FULL:
                return rc
            self._no_room()
            if left == 0:
                raise _errors.ChannelFullError(no_room(size, "", self._sent - self._settled))
            if now >= until:
                raise self._timed_out(no_room(size, " in time", self._sent - self._settled))
            slots = size > self._small and ign_channel_depth(self._channel) < self._channel.region.ring_capacity
            rc = self._wait_room(seen, until - now, spin, slots)
            PyErr_CheckSignals()
            self._check()
            if rc != IGN_OK and rc != IGN_TIMEOUT:
                raise_code(rc, "outbox")
            spin = rc == IGN_OK
            now = ign_now_ns()

    # -- looking

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

    # -- the end

    def close(self, error=None) -> None:
        """Ends the outbox. Receipts that are still pending fail with ``error`` (ClosedError). Idempotent."""
        check_error(error)
        if self._closing:
            return
        self._closing = True
        if ign_region_check(&self._channel.region) == IGN_E_FORKED:
            return
        ign_channel_interrupt(self._channel)
        self._fail_rest(error)

    @cython.final
    cdef int _fail_rest(self, object error) except -1:
        """What is pending fails with this error, or ClosedError."""
        if self._settled < self._sent:
            if error is None:
                error = _errors.ClosedError("publisher: closed before the message was durable")
            self._fail_up_to(self._sent, error)
        return 0


cdef int check_error(object error) except -1:
    if error is not None and not isinstance(error, BaseException):
        raise TypeError(f"close() takes an exception or None, got {error!r}")
    return 0
