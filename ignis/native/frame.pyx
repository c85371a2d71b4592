# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False
"""Frames: ``int32 length | int16 command | int64 request_id | payload``, big-endian, length = 10 + payload.

Encoding and decoding are pure and safe from any thread; the bulk calls copy without the GIL. A :class:`FrameDecoder` is for one
stream and one thread at a time.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

include "_errors.pxi"
include "_arguments.pxi"

FRAME_HEADER_BYTES = IGN_FRAME_HEADER_BYTES
DEFAULT_MAX_FRAME_BYTES = 16 << 20

cdef enum:
    CHUNK = 128           # frames decoded between two visits to Python
    GIL_FREE_BYTES = 65536  # below this, giving the GIL up costs more than the copying


cdef struct Piece:
    int16_t command
    int64_t request_id
    const uint8_t *payload
    size_t size


cdef void put_pieces(uint8_t *dst, const Piece *pieces, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        ign_frame_put_header(dst, pieces[i].command, pieces[i].request_id, pieces[i].size)
        memcpy(dst + IGN_FRAME_HEADER_BYTES, pieces[i].payload, pieces[i].size)
        dst += IGN_FRAME_HEADER_BYTES + pieces[i].size


cdef bytes encode_pieces(Piece *pieces, Py_ssize_t n, size_t total):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    cdef uint8_t *dst = <uint8_t *>PyBytes_AS_STRING(out)
    if total < GIL_FREE_BYTES:
        put_pieces(dst, pieces, n)
    else:
        with nogil:
            put_pieces(dst, pieces, n)
    return out


cdef list as_bytes_list(object payloads):
    """The payloads as bytes objects: those that are something else are copied."""
    return [p if type(p) is bytes else bytes(memoryview(p)) for p in payloads]


cdef size_t set_payload(Piece *piece, object payload) except 0:
    piece.payload = <const uint8_t *>PyBytes_AS_STRING(payload)
    piece.size = <size_t>PyBytes_GET_SIZE(payload)
    if piece.size > IGN_FRAME_MAX_PAYLOAD:
        raise _errors.FrameTooLargeError(piece.size + IGN_FRAME_HEADER_BYTES, IGN_FRAME_MAX_PAYLOAD + IGN_FRAME_HEADER_BYTES)
    return IGN_FRAME_HEADER_BYTES + piece.size


def encode_frame(command: int, request_id: int, payload) -> bytes:
    """One frame. OverflowError when command or request id is outside int16 or int64."""
    cdef Piece piece
    if not PyBytes_CheckExact(payload):
        payload = bytes(memoryview(payload))
    cdef size_t total = set_payload(&piece, payload)
    piece.command = command
    piece.request_id = request_id
    return encode_pieces(&piece, 1, total)


def encode_frames(command: int, first_request_id: int, payloads) -> bytes:
    """Frames of one command with consecutive request ids, side by side.

    Args:
        command: int16. first_request_id: int64, of the first payload. payloads: bytes or buffers.
    """
    cdef list items = as_bytes_list(payloads)
    cdef Py_ssize_t n = len(items), i
    cdef size_t total = 0
    cdef int16_t c_command = command
    cdef int64_t first = first_request_id
    if n and first > 0x7FFFFFFFFFFFFFFF - (n - 1):
        raise OverflowError(f"request ids {first_request_id}..+{n} exceed int64")
    cdef Piece *pieces = <Piece *>malloc(<size_t>max(n, 1) * sizeof(Piece))
    if pieces == NULL:
        raise MemoryError(f"{n} frames")
    try:
        for i in range(n):
            pieces[i].command = c_command
            pieces[i].request_id = first + i
            total += set_payload(&pieces[i], items[i])
        return encode_pieces(pieces, n, total)
    finally:
        free(pieces)


def encode_frames_ids(commands, request_ids, payloads) -> bytes:
    """Frames with a request id each, and a command each or one for all.

    Raises:
        ValueError: the sequences differ in length.
    """
    cdef list items = as_bytes_list(payloads)
    cdef list ids = list(request_ids)
    cdef Py_ssize_t n = len(items), i
    cdef bint one_command = isinstance(commands, int)
    cdef list many = [] if one_command else list(commands)
    cdef size_t total = 0
    if len(ids) != n or not (one_command or len(many) == n):
        raise ValueError(f"{n} payloads, {len(ids)} request ids, {len(many)} commands")
    cdef int16_t command = commands if one_command else 0
    cdef Piece *pieces = <Piece *>malloc(<size_t>max(n, 1) * sizeof(Piece))
    if pieces == NULL:
        raise MemoryError(f"{n} frames")
    try:
        for i in range(n):
            pieces[i].command = command if one_command else many[i]
            pieces[i].request_id = ids[i]
            total += set_payload(&pieces[i], items[i])
        return encode_pieces(pieces, n, total)
    finally:
        free(pieces)


cdef int decode_into(list out, const uint8_t *src, size_t size, size_t limit, size_t *consumed, size_t *announced) except? -999:
    """Appends the complete frames of src to `out`; returns the code that ended it."""
    cdef ign_frame frames[CHUNK]
    cdef size_t count, used, i
    cdef int rc = IGN_OK
    consumed[0] = 0
    while rc == IGN_OK:
        rc = ign_frame_decode_many(src + consumed[0], size - consumed[0], limit, frames, CHUNK, &count, &used, announced)
        for i in range(count):
            out.append((
                frames[i].command, frames[i].request_id,
                PyBytes_FromStringAndSize(<const char *>frames[i].payload, <Py_ssize_t>frames[i].payload_len),
            ))
        consumed[0] += used
    return rc


cdef object decode_error(int rc, size_t announced, size_t limit):
    if rc == IGN_E_TOO_LARGE:
        return _errors.FrameTooLargeError(announced, limit)
    return error_of(rc, "frame")


def decode_frames(data, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES):
    """Decodes the complete frames at the start of ``data``.

    Args:
        data: any buffer. max_frame_bytes: limit of one frame, header included.

    Returns:
        The frames as (command, request_id, payload), and how many bytes they took.

    Raises:
        MalformedFrameError, FrameTooLargeError: the first frame is not one. Frames before a bad one are returned; the next call,
        which begins at the bad one, raises.
    """
    cdef Py_buffer view
    cdef size_t consumed = 0, announced = 0, limit = max_frame_bytes
    cdef list frames = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        rc = decode_into(frames, <const uint8_t *>view.buf, <size_t>view.len, limit, &consumed, &announced)
    finally:
        PyBuffer_Release(&view)
    if rc < 0 and not frames:
        raise decode_error(rc, announced, limit)
    return frames, consumed


@cython.no_gc_clear
cdef class FrameDecoder:
    """Frames out of a stream that arrives in pieces of any size.

    Args:
        max_frame_bytes: limit of one frame, header included; checked on the first four bytes of each.

    ``feed`` and ``frames`` by one thread at a time: NativeError for a call while ``frames`` is at work. After an error the
    stream is lost: every later call raises it again. Cannot be copied or pickled.
    """

    def __cinit__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES):
        if max_frame_bytes < <int>IGN_FRAME_HEADER_BYTES:
            raise ValueError(f"max_frame_bytes must be at least {IGN_FRAME_HEADER_BYTES}, got {max_frame_bytes}")
        self.max_frame_bytes = max_frame_bytes

    def __dealloc__(self):
        free(self._buffer)

    def __reduce__(self):
        refuse_copy(self)

    cdef int _check(self) except -1:
        if self._error is not None:
            raise self._error
        if self._busy:
            raise_code(IGN_E_THREAD, "frame decoder")
        return 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and are not part of a returned frame yet."""
        return self._end - self._begin

    def feed(self, data) -> None:
        """Appends a piece of the stream.

        Raises:
            MalformedFrameError, FrameTooLargeError: an earlier error of this stream.
        """
        cdef Py_buffer view
        cdef size_t size, room
        cdef uint8_t *grown
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)  # may run others' code: before the look
        try:
            self._check()
            size = <size_t>view.len
            if self._end + size > self._room and self._begin != 0:
                memmove(self._buffer, self._buffer + self._begin, self._end - self._begin)
                self._end -= self._begin
                self._begin = 0
            if self._end + size > self._room:
                room = max(<size_t>4096, self._room)
                while room < self._end + size:
                    room *= 2
                grown = <uint8_t *>realloc(self._buffer, room)
                if grown == NULL:
                    raise MemoryError(f"{room} bytes of buffered frames")
                self._buffer = grown
                self._room = room
            if size:
                memcpy(self._buffer + self._end, view.buf, size)
                self._end += size
        finally:
            PyBuffer_Release(&view)

    def frames(self) -> list:
        """The frames that are complete by now, as (command, request_id, payload).

        Raises:
            MalformedFrameError, FrameTooLargeError: the stream's next frame is not one. Frames before it were returned first.
        """
        cdef size_t consumed = 0, announced = 0
        cdef list out = []
        cdef int rc
        self._check()
        if self._begin == self._end:
            return out
        # The frames are made as Python objects while the buffer is read: nothing may move it meanwhile.
        self._busy = True
        try:
            rc = decode_into(
                out, self._buffer + self._begin, self._end - self._begin, self.max_frame_bytes, &consumed, &announced)
        finally:
            self._busy = False
        self._begin += consumed
        if self._begin == self._end:
            self._begin = self._end = 0
        if rc < 0:
            self._error = decode_error(rc, announced, self.max_frame_bytes)
            if not out:
                raise self._error
        return out
