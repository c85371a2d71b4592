# The last part of wire.pyx: the receiving side of a connection.

cdef class ReadArea:
    """Memory that all connections of one event loop read into, one after the other.

    What a connection receives is taken out of it before the next one reads; only the beginning of a frame that is not complete
    yet moves into the connection's own memory. So an idle connection holds no buffer.

    Args:
        size: bytes, 4,096 to 16 MiB.
    """

    def __cinit__(self, Py_ssize_t size=256 * 1024):
        if not 4096 <= size <= 16 * 1024 * 1024:
            raise ValueError(f"a read area of {size} bytes, allowed are 4096..16777216")
        self._data = <uint8_t *>malloc(<size_t>size)
        if self._data == NULL:
            raise MemoryError("read area")
        self._size = size

    def __dealloc__(self):
        ign_wire_sorter_free(&self._sorter)
        free(self._data)


cdef class FrameReader:
    """Frames out of one connection, for ``asyncio.BufferedProtocol``: `get_buffer`, then `received`.

    Args:
        area: shared with other connections of the same thread.
        max_frame_bytes: limit of one frame, header included; may be changed between two reads.
        sends: take SEND and SEND_BATCH apart into packed batches, as a broker does.

    One thread at a time. After an error the stream is lost: every later call raises it again.
    """

    def __cinit__(self, ReadArea area not None, Py_ssize_t max_frame_bytes, bint sends=False):
        self._area = area
        self.max_frame_bytes = max_frame_bytes
        self._sends = sends

    def __dealloc__(self):
        free(self._carry)

    @property
    def buffered_bytes(self):
        """Bytes of a frame that is not complete yet."""
        return self._filled

    def get_buffer(self):
        """Writable memory for the next read: a view that must be released before the one after."""
        cdef uint8_t *grown
        cdef Py_ssize_t want, announced
        if self._error is not None:
            raise self._error
        if self._exports:
            raise BufferError("the last buffer is still in use")
        self._into_carry = self._filled != 0
        if self._into_carry:
            # As much as the frame needs, found out in steps: what is only announced costs nothing.
            want = 2 * self._filled
            if self._filled >= 4:
                announced = <Py_ssize_t>ign_get32(self._carry) + 4
                want = min(want, announced)
            want = max(want, <Py_ssize_t>FIRST_CARRY)
            if want > self._room:
                grown = <uint8_t *>realloc(self._carry, <size_t>want)
                if grown == NULL:
                    raise MemoryError("frame")
                self._carry = grown
                self._room = want
        return memoryview(self)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self._into_carry:
            PyBuffer_FillInfo(view, self, self._carry + self._filled, self._room - self._filled, 0, flags)
        else:
            PyBuffer_FillInfo(view, self, self._area._data, self._area._size, 0, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._exports -= 1

    def received(self, Py_ssize_t size) -> list:
        """What is complete after ``size`` bytes were written into the buffer: (command, request id, payload) each.

        With ``sends`` neighbouring SENDs to one queue come as one item, (SEND, request id of the first, (name, ttl_ms, [(shard,
        batch, request ids)])), and SEND_BATCH as (SEND_BATCH, request id, (name, ttl_ms, [(shard, batch)])); in place of a
        payload that breaks the rules stands its MalformedFrameError.

        Raises MalformedFrameError, FrameTooLargeError: what follows is no frame. Frames before it were returned first.
        """
        cdef list out = []
        cdef Py_ssize_t used
        cdef uint8_t *whole
        if self._error is not None:
            raise self._error
        if self._into_carry:
            if size < 0 or size > self._room - self._filled:
                raise ValueError(f"{size} bytes were received into {self._room - self._filled}")
            self._filled += size
            whole = self._carry
            used = self._parse(out, whole, self._filled)
            if used:
                size = self._filled - used
                self._filled = 0
                if size == 0 and self._exports == 0:
                    free(self._carry)
                    self._carry = NULL
                    self._room = 0
                elif size:
                    self._carry_over(used, size)
        else:
            if size < 0 or size > self._area._size:
                raise ValueError(f"{size} bytes were received into {self._area._size}")
            used = self._parse(out, self._area._data, size)
            if used < size:
                self._keep(self._area._data + used, size - used)
        if self._error is not None and not out:
            raise self._error
        return out

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

    def _carry_over(self, Py_ssize_t start, Py_ssize_t size):
        """The rest of the carry moves to its front: never while somebody holds a view on memory that would move."""
        cdef Py_ssize_t i
        for i in range(size):
            self._carry[i] = self._carry[start + i]
        self._filled = size

    cdef int _keep(self, const uint8_t *src, Py_ssize_t size) except -1:
        cdef uint8_t *grown
        if size > self._room:
            grown = <uint8_t *>realloc(self._carry, <size_t>max(size, <Py_ssize_t>FIRST_CARRY))
            if grown == NULL:
                raise MemoryError("frame")
            self._carry = grown
            self._room = max(size, <Py_ssize_t>FIRST_CARRY)
        memcpy(self._carry, src, <size_t>size)
        self._filled = size
        return 0

    cdef Py_ssize_t _parse(self, list out, const uint8_t *src, Py_ssize_t size) except -1:
        cdef Py_ssize_t used = 0
        cdef ign_frame frame
        cdef size_t consumed = 0
        cdef int rc
        while used < size:
            rc = ign_frame_decode(src + used, <size_t>(size - used), <size_t>self.max_frame_bytes, &frame, &consumed)
            if rc == IGN_NEED_MORE:
                break
            if rc == IGN_E_TOO_LARGE:
                self._error = _errors.FrameTooLargeError(consumed, self.max_frame_bytes)
                break
            if rc != IGN_OK:
                self._error = error_of(rc, "frame")
                break
            if self._sends and frame.command == IGN_WIRE_SEND:
                used += decode_sends(out, &self._area._sorter, src + used, size - used, <size_t>self.max_frame_bytes)
                continue
            if self._sends and frame.command == IGN_WIRE_SEND_BATCH:
                try:
                    payload = decode_send_batch(frame.payload, frame.payload_len)
                except _errors.MalformedFrameError as exc:
                    payload = exc
            else:
                payload = PyBytes_FromStringAndSize(<const char *>frame.payload, <Py_ssize_t>frame.payload_len)
            out.append((frame.command, frame.request_id, payload))
            used += <Py_ssize_t>consumed
        return used
