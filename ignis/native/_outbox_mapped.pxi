# The outbox in a file: another process empties it, and what that has taken is settled. Included by outbox.pyx.


@cython.final
@cython.no_gc_clear
cdef class MappedOutbox(SendRing):
    """A ring of encoded messages in a file, in which they survive this process. An `Intake` of another process empties it.

    Args:
        path: of the file, which is made (0600).
        bell: the file of the `Bell` to ring after a message.
        capacity: messages in flight, a power of two up to 2**24.
        size_classes: (bytes, count) of its slots; None chooses them.
        max_message_bytes: limit of a body.
        label: bytes for whoever finds the file, up to 2,048.
        bytering_bytes: see `Channel.heap`.
        small_message_bytes: messages of up to this size, envelope included, lie in the byte ring and nowhere
            else; at most a quarter of it. 0: those of up to 1 KiB, and in a slot when it is full.

    Any thread may send. Cannot be copied or pickled.
    """

    def __cinit__(
        self, *, path, bell, capacity: int = 65536, size_classes=None, max_message_bytes: int = 1 << 20,
        bytes label not None=b"", bytering_bytes: int = 0, small_message_bytes: int = 0,
    ):
        cdef ign_region_config config
        cdef bytes encoded
        cdef int rc
        self._hooks = [None, None, None, None, None]
        self._describe(&config, capacity, max_message_bytes, size_classes)
        if not 0 <= bytering_bytes <= <int>IGN_BYTERING_MAX_BYTES or not ign_bytering_size_valid(bytering_bytes):
            raise ValueError(f"bytering_bytes must be 0 or a power of two from 2048, got {bytering_bytes}")
        if not 0 <= small_message_bytes <= bytering_bytes // 4:
            raise ValueError(
                f"small_message_bytes must be 0..{bytering_bytes // 4}, a quarter of bytering_bytes, got {small_message_bytes}")
        config.bytering_bytes = bytering_bytes
        config.label = <const uint8_t *>PyBytes_AS_STRING(label)
        config.label_bytes = <uint32_t>PyBytes_GET_SIZE(label)
        self._allocate()
        encoded = path_bytes(bell)
        rc = ign_board_open(&self._bell, encoded, 1)
        if rc != IGN_OK:
            raise_code(rc, str(bell))
        self._file = encoded = path_bytes(path)
        rc = ign_channel_create(self._channel, encoded, &config, IGN_PRODUCER)
        if rc != IGN_OK:
            raise_code(rc, f"outbox with capacity={capacity}, size_classes={size_classes}, path={path}")
        if small_message_bytes:
            ign_channel_set_small(self._channel, small_message_bytes)
        self._small = small_message_bytes
        self.path = path
        self._looked_us = now_us()
        self._look_us = LOOK_US
        self._looked_ns = ign_now_ns()
        ign_event_advance(self._bell.events)  # there is a new file to be found
        self._opened()

    def __dealloc__(self):
        ign_board_close(&self._bell)

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

    @property
    def on_loss(self):
        """Called once the file is lost, see `lost`: with the number of messages that were in it, whether it was moved, i.e. has
        another name, and whether anybody had ever taken messages from it. Returns the error of their receipts and of later
        calls; None: it was refused after all."""
        return self._hooks[3]

    @on_loss.setter
    def on_loss(self, fn):
        self._hooks[3] = fn

    @property
    def on_late_send(self):
        """Called with the arguments of a `send` that comes once the file is lost; its receipt is the call's."""
        return self._hooks[4]

    @on_late_send.setter
    def on_late_send(self, fn):
        self._hooks[4] = fn

    @property
    def lost(self) -> bool:
        """Whether the file is not at its path any more, with nobody who takes what is in it. Nothing can be sent then."""
        return self._lost != IGN_NAMED

    def look(self) -> bool:
        """Looks whether the file is at its path still, and says whether it is `lost`. All others look by themselves, now and then."""
        if not self._closing and ign_region_check(&self._channel.region) == IGN_OK:
            self._look()
        return self._lost != IGN_NAMED

    cdef int _note_waiter(self) except -1:
        if self._hooks[0] is not None:
            self._hooks[0]()
        return 0

    cdef object _timed_out(self, str text):
        return _errors.WaitTimeoutError(text) if self._hooks[1] is None else self._hooks[1](text)

    cdef object _refused(self):
        """The error that a consumer's refusal of this outbox means to its users."""
        if self._refusal is None and self._lost != IGN_NAMED:
            error = None
            if self._hooks[3] is not None:
                error = self._hooks[3](self._lost_count, self._lost == IGN_RENAMED, self._had_taker)
                if error is None:
                    self._lost = IGN_NAMED
            else:
                error = _errors.ClosedError(f"outbox {self.path}: its file is not there any more")
            if self._refusal is None:
                self._refusal = error
        if self._refusal is None:
            if self._hooks[2] is not None:
                self._refusal = self._hooks[2]()
            else:
                self._refusal = _errors.ClosedError(f"outbox {self.path}: refused by the process that empties it")
        return self._refusal

    # -- the file's name

    cdef int _look(self) noexcept:
        """Finds out whether the file is lost: it has lost its name, and nobody lives who takes what is in it.

        One that lives has the file mapped and goes on, whatever the name. Only where it has taken everything and the file is
        removed the file is given up: once it ends nobody could find the next message. The note makes all later calls see it, as a
        refusal. Runs no Python code.
        """
        cdef int naming, taker
        cdef uint64_t pos
        self._looked_ns = ign_now_ns()
        if ign_region_check(&self._channel.region) != IGN_OK:
            return 0
        if ign_region_get_note(&self._channel.region, IGN_NOTE_REFUSED) != 0:
            return 0
        naming = ign_region_naming(&self._channel.region, self._file)
        if naming == IGN_NAMED:
            return 0
        taker = ign_region_owner_state(&self._channel.region, IGN_CONSUMER)
        pos = ign_channel_read_pos(self._channel)  # behind that: what it took before it ended is seen
        if taker == IGN_OK and (naming == IGN_RENAMED or pos < self._sent):
            return 0
        self._lost = naming
        self._lost_count = self._sent - pos if pos < self._sent else 0
        self._had_taker = taker != IGN_EMPTY
        ign_region_set_note(&self._channel.region, IGN_NOTE_REFUSED, 1)
        return 0

    cdef int _look_at_times(self) noexcept:
        """For whoever waits: a look every 100 ms."""
        if ign_now_ns() - self._looked_ns >= <uint64_t>LOOK_NS:
            self._look()
        return 0

    cdef int _look_again(self, uint64_t now) except -1:
        self._looked_us = now
        self._look()
        return self._check()

    cdef int _no_room(self) except -1:
        self._look_at_times()
        return self._check()

    # -- sending

    def send(self, bytes body not None, int shard, int flags, bytes key=b"", bytes meta=b"", timeout=30.0):
        """Encodes one message into the ring, see `SendRing.send`. Once the file is `lost`, ``on_late_send`` is called instead."""
        try:
            return self._send(body, shard, flags, key, meta, timeout, NO_TIME, NO_TIME)
        except _errors.IgnisError:
            if self._lost == IGN_NAMED or self._hooks[4] is None:
                raise
        return self._hooks[4](body, shard, flags, key, meta, timeout)

    cdef int _check(self) except -1:
        SendRing._check(self)
        if ign_region_get_note(&self._channel.region, IGN_NOTE_REFUSED) != 0:
            raise self._refused()
        return 0

    cdef int _published(self) except -1:
        ign_event_notify(self._bell.events)  # S3 of the bell, after publish's S1
        if ign_region_check(&self._channel.region) != IGN_OK:
            self._check()  # the file was cut under the writing: the message is nowhere
        return 0

    cdef int _wait_room(self, uint64_t seen, uint64_t left, bint spin, bint slots) except? -999:
        # Not wait_space, which gives up when the consumer is gone: another will come.
        return self._wait_progress(seen, left, slots)

    cdef int _wait_progress(self, uint64_t seen, uint64_t left, bint slots) except? -999:
        cdef int rc
        self._inside += 1
        with nogil:
            rc = ign_channel_wait_progress(self._channel, seen, slots, left)
        self._inside -= 1
        return rc

    # -- what the other process has taken is settled

    cdef int _refresh(self) except -1:
        cdef uint64_t pos
        if ign_region_check(&self._channel.region) != IGN_OK:
            return 0
        if self._settled < self._sent:
            self._look_at_times()  # first: what was taken before the file was lost is seen below
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

    cdef int _wait(self, uint64_t sequence, uint64_t left, object named) except -1:
        cdef uint64_t until = ign_now_ns() + left
        while not self._is_settled(sequence):
            if self._closing:
                raise_code(IGN_E_CLOSED, "outbox")
            if not self._watch(until):
                self._refresh()
                if self._settled >= sequence:
                    break
                raise self._not_durable(sequence, named)
        return 0

    cdef bint _watch(self, uint64_t until) except -1:
        """One slice of waiting for the other process; false when the time is up."""
        cdef uint64_t now = ign_now_ns(), pos
        cdef int rc = ign_region_check(&self._channel.region)
        if rc != IGN_OK:
            raise_code(rc, f"outbox {self.path}")
        if now >= until:
            return False
        pos = self._settled
        rc = self._wait_progress(pos, until - now, False)
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

    def close(self, error=None) -> None:
        """Ends the outbox. Receipts that are still pending fail with ``error`` (ClosedError). Idempotent.

        It gives its file up to the process that empties it, with what is in it, once the threads that wait on it have left.

        Raises:
            WaitTimeoutError: a thread was still inside after 5 s. The outbox is closed all the same; the file is given up by
            the next `close`, or with the object.
        """
        cdef uint64_t until
        check_error(error)
        self._closing = True
        if ign_region_check(&self._channel.region) == IGN_E_FORKED:
            return
        ign_channel_interrupt(self._channel)
        try:
            self._refresh()
        except Exception as found:
            error = found  # positions that cannot be
        self._fail_rest(error)
        if ign_region_check(&self._channel.region) == IGN_E_CLOSED:
            return
        until = ign_now_ns() + <uint64_t>CLOSE_NS
        while self._inside and ign_now_ns() < until:  # they look at _closing within a slice
            time.sleep(0.0005)
            ign_channel_interrupt(self._channel)
        if self._inside:
            raise _errors.WaitTimeoutError(f"outbox {self.path}: {self._inside} thread(s) still wait")
        ign_channel_close(self._channel)
        ign_event_advance(self._bell.events)


cdef traverseproc traverse_mapped = (<PyTypeObject *>MappedOutbox).tp_traverse


cdef int traverse_mapped_and_waiting(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef int rc = traverse_mapped(self, visit, arg)
    return rc if rc != 0 else visit_book(self, visit, arg)


(<PyTypeObject *>MappedOutbox).tp_traverse = traverse_mapped_and_waiting
