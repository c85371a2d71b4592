# A part of wire.pyx: what a client with one request under way sends and receives, one call of the system each.

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT

    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen

    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    ssize_t send(int fd, const void *data, size_t size, int flags)
    ssize_t recv(int fd, void *to, size_t size, int flags)

cdef extern from "<sys/types.h>" nogil:
    ctypedef Py_ssize_t ssize_t


cdef object socket_error(int number):
    return OSError(number, strerror(number).decode("utf-8", "replace"))


cdef bytes load_front(bytes name, uint64_t ttl_ms, uint16_t shard, size_t batch_bytes, size_t before, size_t behind):
    """The payload of a SEND_BATCH up to its one batch, with so much room before and behind it."""
    cdef size_t size = <size_t>len(name)
    cdef bytes front
    cdef uint8_t *at
    if size > 0xFFFF or batch_bytes > <size_t>IGN_FRAME_MAX_PAYLOAD - size - 18:
        raise ValueError(f"a batch of {batch_bytes} bytes for a name of {size} bytes")
    front = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(before + size + 18 + behind))
    at = <uint8_t *>PyBytes_AS_STRING(front) + before
    ign_put16(at, <uint16_t>size)
    memcpy(at + 2, PyBytes_AS_STRING(name), size)
    at += 2 + size
    ign_put64(at, ttl_ms)
    ign_put16(at + 8, 1)
    ign_put16(at + 10, shard)
    ign_put32(at + 12, <uint32_t>batch_bytes)
    return front


cdef ssize_t send_whole(int fd, const uint8_t *data, size_t size) except -1:
    """Sends without waiting. Returns how many bytes the system took; 0 when it has no room. Raises OSError."""
    cdef ssize_t sent
    cdef int number = 0
    while True:
        with nogil:
            sent = send(fd, data, size, MSG_DONTWAIT)
            number = errno
        if sent >= 0:
            return sent
        if number == EAGAIN:
            return 0
        if number != EINTR:
            raise socket_error(number)
        PyErr_CheckSignals()


@cython.final
@cython.no_gc       # refers to nothing that could refer back
cdef class Outgoing:
    """One request that a client sends by itself: nothing of it is copied or put together before the system takes it.

    Args:
        command: of the frame.
        payload: of it.

    Immutable, but for what `Outgoing.load` says of its batch. One of `load_body` is for one thread at a time. Cannot be copied or
    pickled.
    """
    cdef int16_t _command
    cdef bytes _front               # of the payload; behind it comes the batch, if there is one
    cdef PackedBatch _batch
    cdef readonly size_t nbytes
    cdef bint _headed               # the front begins with room for the frame's header, and is the whole frame
    cdef uint8_t _id[16]

    def __cinit__(self, int16_t command, bytes payload not None):
        if <size_t>len(payload) > <size_t>IGN_FRAME_MAX_PAYLOAD:
            raise OverflowError(f"a payload of {len(payload)} bytes")
        self._command = command
        self._front = payload
        self.nbytes = IGN_FRAME_HEADER_BYTES + <size_t>len(payload)

    def __reduce__(self):
        refuse_copy(self)

    @staticmethod
    def load(bytes name not None, uint64_t ttl_ms, shard, PackedBatch batch not None):
        """SEND_BATCH of one batch, which must not be sealed before the request was answered."""
        cdef uint16_t place = shard_of(shard)
        cdef Outgoing made = Outgoing.__new__(
            Outgoing, IGN_WIRE_SEND_BATCH, load_front(name, ttl_ms, place, batch._nbytes, 0, 0))
        made._batch = batch
        made.nbytes += batch._nbytes
        return made

    @staticmethod
    def load_body(bytes name not None, uint64_t ttl_ms, shard, bytes body not None, uint8_t flags):
        """SEND_BATCH of one message that has this body, no key, and a new id."""
        cdef uint16_t place = shard_of(shard)
        cdef size_t size = record_bytes(0, 0, <size_t>len(body)), segment_bytes
        cdef uint64_t at_us = now_us()
        cdef bytes front
        cdef uint8_t *segment
        cdef Outgoing made
        if size > <size_t>IGN_FRAME_MAX_PAYLOAD:
            raise ValueError(f"a body of {len(body)} bytes")
        segment_bytes = ign_segment_size(1, size)
        front = load_front(name, ttl_ms, place, segment_bytes, IGN_FRAME_HEADER_BYTES, segment_bytes)
        made = Outgoing.__new__(Outgoing, IGN_WIRE_SEND_BATCH, front)
        made._headed = True
        made.nbytes -= IGN_FRAME_HEADER_BYTES
        segment = <uint8_t *>PyBytes_AS_STRING(front) + <size_t>len(front) - segment_bytes
        next_id(at_us, made._id)
        put_alone(segment, segment_bytes, size, 0, flags & 15, made._id, at_us,
                  <const uint8_t *>PyBytes_AS_STRING(body), <size_t>len(body))
        return made

    @property
    def message_id(self) -> str:
        """Of the message of `load_body`."""
        return text_of_id(self._id)

    def send(self, int fd, int64_t request_id) -> int:
        """Sends the frame without waiting. Returns how many bytes of it the system took; 0 when it has no room.

        Raises OSError.
        """
        return self.send_frame(fd, request_id)

    cdef ssize_t send_frame(self, int fd, int64_t request_id) except -1:
        cdef uint8_t head[IGN_FRAME_HEADER_BYTES]
        cdef iovec parts[3]
        cdef msghdr message
        cdef ssize_t sent
        cdef Py_buffer view
        cdef int number = 0
        if self._headed:
            return send_whole(fd, self._with_header(request_id), self.nbytes)
        ign_frame_put_header(head, self._command, request_id, self.nbytes - IGN_FRAME_HEADER_BYTES)
        memset(&message, 0, sizeof(message))
        parts[0].iov_base = head
        parts[0].iov_len = IGN_FRAME_HEADER_BYTES
        parts[1].iov_base = PyBytes_AS_STRING(self._front)
        parts[1].iov_len = <size_t>len(self._front)
        message.msg_iov = parts
        message.msg_iovlen = 2
        if self._batch is not None:
            PyObject_GetBuffer(self._batch, &view, PyBUF_SIMPLE)
            parts[2].iov_base = view.buf
            parts[2].iov_len = <size_t>view.len
            message.msg_iovlen = 3
        try:
            while True:
                with nogil:
                    sent = sendmsg(fd, &message, MSG_DONTWAIT)
                    number = errno
                if sent >= 0:
                    return sent
                if number == EAGAIN:
                    return 0
                if number != EINTR:
                    raise socket_error(number)
                PyErr_CheckSignals()
        finally:
            if self._batch is not None:
                PyBuffer_Release(&view)

    cdef const uint8_t *_with_header(self, int64_t request_id) noexcept:
        """The frame of an Outgoing that has it whole. Nobody else has seen these bytes."""
        cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(self._front)
        ign_frame_put_header(at, self._command, request_id, self.nbytes - IGN_FRAME_HEADER_BYTES)
        return at

    def frame(self, int64_t request_id) -> bytes:
        """All of it, for who has to send it in parts."""
        if self._headed:
            return PyBytes_FromStringAndSize(<const char *>self._with_header(request_id), <Py_ssize_t>self.nbytes)
        return self._put_together(request_id)

    cdef bytes _put_together(self, int64_t request_id):
        cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>self.nbytes)
        cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(out)
        cdef size_t size = <size_t>len(self._front)
        cdef Py_buffer view
        ign_frame_put_header(at, self._command, request_id, self.nbytes - IGN_FRAME_HEADER_BYTES)
        memcpy(at + IGN_FRAME_HEADER_BYTES, PyBytes_AS_STRING(self._front), size)
        if self._batch is not None:
            PyObject_GetBuffer(self._batch, &view, PyBUF_SIMPLE)
            memcpy(at + IGN_FRAME_HEADER_BYTES + size, view.buf, <size_t>view.len)
            PyBuffer_Release(&view)
        return out


def pointer_in_ack(bytes payload not None) -> int:
    """The first pointer of a SEND_ACK of one group. Raises MalformedFrameError."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(payload)
    if len(payload) != 16 or ign_get16(at) != 1:
        raise malformed(f"SEND_ACK of {len(payload)} bytes is not of one group")
    return ign_get64(at + 4)


def unpack_send_ack(bytes payload not None) -> list:
    """(shard, first pointer, count) per group of a SEND_ACK. Raises MalformedFrameError."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(payload)
    cdef Py_ssize_t size = len(payload), i
    cdef list runs
    if size < 2 or size != 2 + 14 * <Py_ssize_t>ign_get16(at):
        raise malformed(f"SEND_ACK of {size} bytes does not have the groups that it announces")
    runs = PyList_New(size // 14)
    for i in range(size // 14):
        put_item(runs, i, (ign_get16(at + 2), ign_get64(at + 4), ign_get32(at + 12)))
        at += 14
    return runs


cdef ssize_t receive_once(FrameReader reader, int fd) except -2:
    """Receives once, as long as the socket itself waits, into the area of a reader that holds nothing of a frame. Returns how many
    bytes came; 0 at the end of the stream; -1 when nothing came, or the reader holds something. Raises OSError."""
    cdef ReadArea area = reader._area
    cdef ssize_t size
    cdef int number = 0
    area._check()
    if reader._carry is not None or reader._exports or reader._skipping or reader._error is not None:
        return -1
    while True:
        reader._lend()
        area._busy = True
        with nogil:
            size = recv(fd, area._data, <size_t>area._read, 0)
            number = errno
        area._busy = False
        if size >= 0:
            return size
        if number == EAGAIN:
            return -1
        if number != EINTR:
            raise socket_error(number)
        PyErr_CheckSignals()


cdef inline bint is_answer(FrameReader reader, ssize_t size, int64_t request_id, ign_frame *frame) noexcept:
    """Whether so many bytes of the area are one frame for that request, and nothing else."""
    cdef size_t consumed = 0
    return (
        size > 0
        and ign_frame_decode(reader._area._data, <size_t>size, <size_t>reader._max_frame_bytes, frame, &consumed) == IGN_OK
        and consumed == <size_t>size
        and frame.request_id == request_id
    )


def receive_answer(FrameReader reader not None, int fd, int64_t request_id, commands not None):
    """Receives once, as long as the socket itself waits, into a reader that holds nothing of a frame.

    Returns (command, payload) when what came is the answer to that request, of one of these commands, and nothing else; the reader
    knows nothing of it then.
    Otherwise how many bytes came, for `FrameReader.received`; 0 at the end of the stream; None when nothing came, or the reader
    holds something.

    Raises OSError.
    """
    cdef ssize_t size = receive_once(reader, fd)
    cdef ign_frame frame
    if size < 0:
        return None
    if is_answer(reader, size, request_id, &frame) and frame.command in commands:
        return frame.command, PyBytes_FromStringAndSize(<const char *>frame.payload, <Py_ssize_t>frame.payload_len)
    return size


def pack_send_batch(bytes name not None, uint64_t ttl_ms, batches) -> bytes:
    """The payload of SEND_BATCH: ``u16 name_bytes | name | u64 ttl_ms | u16 groups``, then per group ``u16 shard | u32 bytes |
    segment``.

    Args:
        batches: (shard, `PackedBatch`) each.

    Raises ValueError for what has no room in these numbers.
    """
    cdef list held = [(shard_of(shard), batch) for shard, batch in batches]
    cdef PackedBatch batch
    cdef size_t size = <size_t>len(name) + 12
    cdef Py_ssize_t count = len(held)
    cdef bytes out
    cdef uint8_t *at
    cdef Py_buffer view
    if count > 0xFFFF or len(name) > 0xFFFF:
        raise ValueError(f"{count} batches for a name of {len(name)} bytes: at most 65535 each")
    for _, one in held:
        if type(one) is not PackedBatch:
            raise TypeError(f"a batch is a PackedBatch, got {type(one).__name__}")
        batch = <PackedBatch>one
        if batch._nbytes > <size_t>0xFFFFFFFF:
            raise ValueError(f"a batch of {batch._nbytes} bytes")
        size += 6 + batch._nbytes
    out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    at = <uint8_t *>PyBytes_AS_STRING(out)
    ign_put16(at, <uint16_t>len(name))
    memcpy(at + 2, PyBytes_AS_STRING(name), <size_t>len(name))
    at += 2 + <size_t>len(name)
    ign_put64(at, ttl_ms)
    ign_put16(at + 8, <uint16_t>count)
    at += 10
    for shard, one in held:
        batch = <PackedBatch>one
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        ign_put16(at, <uint16_t>shard)
        ign_put32(at + 2, <uint32_t>view.len)
        memcpy(at + 6, view.buf, <size_t>view.len)
        at += 6 + <size_t>view.len
        PyBuffer_Release(&view)
    return out
