# The last part of wire.pyx: the receiving side of a connection.

cdef class ReadArea:
    """Memory that all connections of one event loop read into, one after the other.

    What a connection receives is taken out of it before the next one reads; only the beginning of a frame that is not complete
    yet moves into the connection's own memory. So an idle connection holds no buffer. What was not taken out before the next
    one was given the area is refused from then on: it would be another connection's bytes.

    Args:
        size: bytes, 4,096 to 16 MiB.

    While one of its readers takes frames out, none of them may be read into or read from: NativeError. Cannot be copied or
    pickled.
    """

    def __cinit__(self, Py_ssize_t size=256 * 1024):
        if not 4096 <= size <= 16 * 1024 * 1024:
            raise ValueError(f"a read area of {size} bytes, allowed are 4096..16777216")
        self._data = <uint8_t *>calloc(<size_t>size, 1)
        if self._data == NULL:
            raise MemoryError("read area")
        self._size = self._read = size

    def __dealloc__(self):
        ign_wire_sorter_free(&self._sorter)
        free(self._data)

    def __reduce__(self):
        refuse_copy(self)

    cdef int _check(self) except -1:
        if self._busy:
            raise_code(IGN_E_THREAD, "read area")
        return 0

    @property
    def carried_bytes(self):
        """Memory of the frames that are not complete yet, over all readers of the area."""
        return self._carried

    @property
    def read_bytes(self):
        """Most that one read takes into the area; its size unless set to less. What is read may all be the beginning of a
        frame, so this is also what a connection may add to `carried_bytes` without being asked."""
        return self._read

    @read_bytes.setter
    def read_bytes(self, Py_ssize_t value):
        if not 1 <= value <= self._size:
            raise ValueError(f"reads of {value} bytes into an area of {self._size}")
        self._read = value


@cython.final
cdef class _Carry:
    """The memory of one frame that is not complete yet. It lives as long as somebody reads into it."""

    def __cinit__(self, Py_ssize_t room):
        self.data = <uint8_t *>malloc(<size_t>room)
        if self.data == NULL:
            raise MemoryError("frame")
        self.room = room

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data + self.filled, self.room - self.filled, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


@cython.no_gc       # refers to nothing that could refer back
cdef class FrameReader:
    """Frames out of one connection, for ``asyncio.BufferedProtocol``: `get_buffer`, then `received`.

    Args:
        area: shared with other connections of the same thread.
        max_frame_bytes: limit of one frame, header included; may be changed between two reads.
        sends: take SEND and SEND_BATCH apart into packed batches, as a broker does.

    One thread at a time. After an error the stream is lost: every later call raises it again. Cannot be copied or pickled.
    """

    def __cinit__(self, ReadArea area not None, Py_ssize_t max_frame_bytes, bint sends=False):
        self._area = area
        self._limit(max_frame_bytes)
        self._sends = sends

    def __reduce__(self):
        refuse_copy(self)

    cdef int _limit(self, Py_ssize_t value) except -1:
        if value < <int>IGN_FRAME_HEADER_BYTES:
            raise ValueError(f"max_frame_bytes must be at least {<int>IGN_FRAME_HEADER_BYTES}, got {value}")
        self._max_frame_bytes = value
        return 0

    @property
    def max_frame_bytes(self):
        """Limit of one frame, header included; may be changed between two reads."""
        return self._max_frame_bytes

    @max_frame_bytes.setter
    def max_frame_bytes(self, Py_ssize_t value):
        self._limit(value)

    def __dealloc__(self):
        if self._carry is not None:
            self._area._carried -= self._carry.room

    @property
    def buffered_bytes(self):
        """Bytes of a frame that is not complete yet."""
        return 0 if self._carry is None else self._carry.filled

    @property
    def frame_bytes(self):
        """Size of that frame, header included; 0 while it is not known."""
        return 0 if self._carry is None or self._carry.filled < 4 else <Py_ssize_t>ign_get32(self._carry.data) + 4

    @property
    def needs_bytes(self):
        """Memory that the next read takes in addition, for the frame that is not complete yet."""
        return 0 if self._carry is None else self._room_wanted() - self._carry.room

    def close(self):
        """Gives the memory back. What was buffered is lost."""
        self._drop()

    def head(self, Py_ssize_t most) -> bytes:
        """The first bytes of the frame that is not complete yet, ``most`` at most."""
        if most < 0:
            raise ValueError(f"{most} bytes of a head")
        self._area._check()
        if self._carry is None:
            return b""
        return PyBytes_FromStringAndSize(<const char *>self._carry.data, min(most, self._carry.filled))

    def skip(self):
        """Drops the frame that is not complete yet, and what is still to come of it. Returns how many bytes that is.

        Raises ValueError while its size is not known."""
        cdef Py_ssize_t size = self.frame_bytes
        self._area._check()
        if size <= 0 or size <= self._carry.filled:
            raise ValueError("there is no frame of which more is to come")
        self._skipping = size - self._carry.filled
        self._drop()
        return self._skipping

    @property
    def skipping_bytes(self):
        """What is still to come of a frame that `skip` has dropped."""
        return self._skipping

    @property
    def lost(self):
        """Why nothing more can be read, MalformedFrameError or FrameTooLargeError; else None."""
        if self._error is None:
            return None
        # A new one each time: with its traceback the exception would keep alive whoever was reading.
        kind, arguments = self._error
        return kind(*arguments)

    cdef Py_ssize_t _room_wanted(self):
        """Of the carry, for the next read. As much as the frame needs, found out in steps: what is only announced costs
        nothing, and at most twice of what came is held."""
        cdef Py_ssize_t want
        if self._carry.filled < self._carry.room:
            return self._carry.room
        want = max(2 * self._carry.filled, <Py_ssize_t>FIRST_CARRY)
        if self._carry.filled >= 4:
            want = min(want, max(<Py_ssize_t>ign_get32(self._carry.data) + 4, <Py_ssize_t>FIRST_CARRY))
        return want

    def get_buffer(self, sizehint=-1):
        """Writable memory for the next read: a view that must be released before the one after. What an event loop hints at is not
        heard."""
        cdef uint8_t *grown
        cdef Py_ssize_t want
        self._area._check()
        if self._exports or (self._carry is not None and self._carry.exports):
            raise BufferError("the last buffer is still in use")
        if self._carry is None:
            return memoryview(self)
        self._lent = 0
        want = self._room_wanted()
        if want > self._carry.room:
            grown = <uint8_t *>realloc(self._carry.data, <size_t>want)
            if grown == NULL:
                raise MemoryError("frame")
            self._area._carried += want - self._carry.room
            self._carry.data = grown
            self._carry.room = want
        return memoryview(self._carry)

    cdef void _lend(self) noexcept:
        """The next bytes go into the area, over what lies there."""
        self._area._lent += 1
        self._lent = self._area._lent

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._area._data, self._area._read, 0, flags)
        self._exports += 1
        self._lend()

    def __releasebuffer__(self, Py_buffer *view):
        self._exports -= 1

    def received(self, Py_ssize_t size) -> list:
        """What is complete after ``size`` bytes were written into the buffer: (command, request id, payload) each.

        With ``sends`` neighbouring SENDs to one queue come as one item, (SEND, request id of the first, (name, ttl_ms, [(shard,
        batch, request ids)])), and SEND_BATCH as (SEND_BATCH, request id, (name, ttl_ms, [(shard, batch)])); in place of a
        payload that breaks the rules stands its MalformedFrameError, or MessageTooLargeError for metadata over 128 KiB.

        Raises MalformedFrameError, FrameTooLargeError: what follows is no frame. Frames before it are returned first: then
        `lost` says so already. NativeError: another connection has been given the buffer since, or they were read into what was
        closed.
        """
        cdef list out = []  # made before the look, as it may run others' code
        cdef Py_ssize_t used, room, skipped = 0
        cdef _Carry carry
        if self._error is not None:
            raise self.lost
        self._area._check()
        carry = self._carry
        room = self._area._size if carry is None else carry.room - carry.filled
        if size < 0 or size > room:
            raise ValueError(f"{size} bytes were received into {room}")
        if size and self._lent != (self._area._lent if carry is None else 0):
            raise _errors.NativeError("read area: the bytes that were received are no longer there")
        if carry is None:
            if self._skipping:
                skipped = min(self._skipping, size)
                self._skipping -= skipped
            used = skipped + self._parse(out, self._area._data + skipped, size - skipped)
            if used < size and self._error is None:
                self._keep(self._area._data + used, size - used)
        else:
            carry.filled += size
            used = self._parse(out, carry.data, carry.filled)
            if used or self._error is not None:
                # Somebody may still hold a view of it, so what is left moves into memory of its own; it is little,
                # because nothing is read far behind the end of the frame.
                self._drop()
            if used and used < carry.filled and self._error is None:
                self._keep(carry.data + used, carry.filled - used)
        if self._error is not None and not out:
            raise self.lost
        return out

    def arrived(self, Py_ssize_t size) -> bytes:
        """The ``size`` bytes that were written into the buffer, of which `received` is not told now: feed them later. Raises
        ValueError, NativeError as `received`."""
        cdef _Carry carry = self._carry
        cdef Py_ssize_t room = self._area._size if carry is None else carry.room - carry.filled
        self._area._check()
        if size < 0 or size > room:
            raise ValueError(f"{size} bytes were received into {room}")
        if size and self._lent != (self._area._lent if carry is None else 0):
            raise _errors.NativeError("read area: the bytes that were received are no longer there")
        if carry is None:
            return PyBytes_FromStringAndSize(<const char *>self._area._data, size)
        return PyBytes_FromStringAndSize(<const char *>carry.data + carry.filled, size)

    def feed(self, data) -> list:
        """`received` for bytes that lie elsewhere: tests, and transports without buffers of their own."""
        cdef list out = []
        cdef memoryview rest = memoryview(data).cast("B")
        while len(rest):
            room = self.get_buffer()
            taken = min(len(room), len(rest))
            room[:taken] = rest[:taken]
            room.release()
            try:
                out += self.received(taken)
            except _errors.MalformedFrameError:
                if not out:
                    raise
                return out
            rest = rest[taken:]
        return out

    cdef int _keep(self, const uint8_t *src, Py_ssize_t size) except -1:
        cdef _Carry carry = _Carry.__new__(_Carry, max(size, <Py_ssize_t>FIRST_CARRY))
        memcpy(carry.data, src, <size_t>size)
        carry.filled = size
        self._carry = carry
        self._area._carried += carry.room
        return 0

    cdef int _drop(self) except -1:
        if self._carry is not None:
            self._area._carried -= self._carry.room
            self._carry = None
        return 0

    cdef Py_ssize_t _parse(self, list out, const uint8_t *src, Py_ssize_t size) except -1:
        # The bytes and the sorter are the area's: whoever is called back while frames become Python objects is refused.
        self._area._busy = True
        try:
            return self._parse_alone(out, src, size)
        finally:
            self._area._busy = False

    cdef Py_ssize_t _parse_alone(self, list out, const uint8_t *src, Py_ssize_t size) except -1:
        cdef Py_ssize_t used = 0
        cdef ign_frame frame
        cdef size_t consumed = 0
        cdef int rc
        while used < size:
            rc = ign_frame_decode(src + used, <size_t>(size - used), <size_t>self._max_frame_bytes, &frame, &consumed)
            if rc == IGN_NEED_MORE:
                break
            if rc == IGN_E_TOO_LARGE:
                self._error = _errors.FrameTooLargeError, (consumed, self._max_frame_bytes)
                break
            if rc != IGN_OK:
                self._error = _errors.MalformedFrameError, ("the bytes are not a frame",)
                break
            if self._sends and frame.command == IGN_WIRE_SEND:
                used += decode_sends(out, &self._area._sorter, src + used, size - used, <size_t>self._max_frame_bytes)
                continue
            if self._sends and frame.command == IGN_WIRE_SEND_BATCH:
                try:
                    payload = decode_send_batch(frame.payload, frame.payload_len)
                except (_errors.MalformedFrameError, _errors.MessageTooLargeError) as exc:
                    payload = exc
            else:
                payload = PyBytes_FromStringAndSize(<const char *>frame.payload, <Py_ssize_t>frame.payload_len)
            out.append((frame.command, frame.request_id, payload))
            used += <Py_ssize_t>consumed
        return used
