# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, auto_pickle=False, annotation_typing=False
"""A request to load, or to acknowledge, that came alone: from the receive buffer into a log and to its answer, and to who waits
for its messages. ``csrc/ignis_wire_lone.h`` and ``ignis_wire_ack.h``.

No Python object is made of a message.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from ignis.native.gate cimport CallGate
from ignis.native.record cimport IGN_SEGMENT_HEADER_BYTES, IGN_SEGMENT_INDEX_BYTES, ign_segment, ign_segment_open
from ignis.native.store cimport (
    Interval, Log, ign_store_flush, ign_store_how, ign_store_interval_failures, ign_store_load, ign_store_load_claimed,
    ign_store_mark, ign_store_part, ign_store_retire, ign_store_run,
)
from ignis.native.wire cimport (
    IGN_WIRE_ACK_FRAME_BYTES, IGN_WIRE_SEND_BATCH, ClaimsFrame, FrameReader, ReadArea, claim_head, ign_get32, ign_put32,
    ign_wire_pointers_get, ign_wire_run, put_claim_head,
)

include "_errors.pxi"
include "_whole.pxi"

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen

    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    ssize_t send(int fd, const void *data, size_t size, int flags)

cdef extern from "<sys/types.h>" nogil:
    ctypedef Py_ssize_t ssize_t

cdef extern from "ignis_wait.h" nogil:
    uint64_t ign_now_ns()

cdef extern from "ignis_wire_lone.h" nogil:
    enum:
        IGN_WIRE_ANY_SHARD

    ctypedef struct ign_wire_lone:
        const uint8_t *name
        size_t name_len
        uint64_t ttl_ms
        int64_t request_id
        const uint8_t *data
        size_t data_len
        size_t segment_bytes
        int16_t command
        uint16_t shard

    int ign_wire_lone_open(ign_wire_lone *lone, const uint8_t *src, size_t len, size_t max_frame_bytes)
    int ign_wire_lone_shard(const ign_wire_lone *lone, uint16_t shards, uint16_t *shard)
    uint32_t ign_wire_lone_count(const ign_wire_lone *lone)
    int ign_wire_lone_put(const ign_wire_lone *lone, uint8_t *dst, uint64_t expires_at_ms, uint32_t *count)
    void ign_wire_lone_ack(const ign_wire_lone *lone, uint8_t *dst, uint16_t shard, uint64_t first, uint32_t count)
    size_t ign_wire_delivery_front(uint32_t count)
    void ign_wire_put_delivery(uint8_t *dst, int64_t subscription, uint16_t shard, uint64_t first, const ign_segment *segment)


cdef enum:
    MOST_NAME = 255
    SMALL_FRONT = 512       # of a delivery


cdef uint64_t MOST_POINTER = <uint64_t>1 << 62
cdef uint64_t OWN_TTL = <uint64_t>0xFFFFFFFFFFFFFFFF     # as its queue says


cdef inline bint alone_in(ReadArea area, FrameReader reader, Py_ssize_t size):
    """Whether what the reader's connection has just received lies in the area, whole and by itself."""
    return not (
        reader._area is not area or area._busy or reader._carry is not None or reader._skipping != 0
        or reader._error is not None or not 0 < size <= area._size or reader._lent != area._lent
    )


cdef inline bint same_name(bytes known, const uint8_t *name, size_t size):
    return <size_t>PyBytes_GET_SIZE(known) == size and memcmp(PyBytes_AS_STRING(known), name, size) == 0


cdef tuple read_name(const uint8_t *name, size_t size):
    """A name as bytes and as text; None when it cannot be a magazine's."""
    cdef bytes raw
    if size == 0 or size > MOST_NAME:
        return None
    raw = PyBytes_FromStringAndSize(<const char *>name, <Py_ssize_t>size)
    try:
        return raw, raw.decode("ascii")
    except UnicodeDecodeError:
        return None


cdef ssize_t send_parts(int fd, iovec *parts, size_t count) except -1:
    """Sends without waiting; returns how many bytes the system took: none when it has no room, or the connection is broken, which its
    transport finds out."""
    cdef msghdr message
    cdef ssize_t sent = 0
    cdef int number = 0
    memset(&message, 0, sizeof(message))
    message.msg_iov = parts
    message.msg_iovlen = count
    while True:
        with nogil:
            sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            number = errno
        if sent >= 0 or number != EINTR:
            return max(sent, 0)
        PyErr_CheckSignals()


cdef Py_ssize_t send_frame(int fd, const uint8_t *data, size_t size) except -1:
    """Sends without waiting; returns how many bytes the system took, as ``send_parts``."""
    cdef ssize_t sent
    cdef int number = 0
    while True:
        with nogil:
            sent = send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
            number = errno
        if sent >= 0 or number != EINTR:
            return max(sent, 0)
        PyErr_CheckSignals()


cdef tuple send_answer(int fd, const uint8_t *data, size_t size):
    """Sends a frame without waiting. Returns how many bytes it has, and what of it the system did not take."""
    cdef Py_ssize_t sent = send_frame(fd, data, size)
    if sent == <Py_ssize_t>size:
        return sent, b""
    return <Py_ssize_t>size, PyBytes_FromStringAndSize(<const char *>data + sent, <Py_ssize_t>size - sent)


@cython.final
@cython.no_gc
cdef class LoneRequest:
    """The SEND, or the SEND_BATCH of one group, that a connection has received and nothing else with it.

    First `look`; then `load`, before anybody is given the area to read into; then `acknowledge`. Where one of the first two says
    None, nothing has happened and the bytes are as they were, for `FrameReader.received`.

    Args:
        area: what the connections read into.

    For one thread at a time: NativeError for a call while another thread is within `load`. Cannot be copied or pickled.
    """

    cdef ReadArea _area
    cdef ign_wire_lone _lone        # points into the area
    cdef bint _known                # there is one
    cdef uint64_t _lent             # which time it was that the area was read into
    cdef bint _loaded
    cdef bint _busy                 # the store reads the segment
    cdef bytes _name_bytes
    cdef str _name
    cdef uint8_t *_segment
    cdef size_t _room
    cdef uint16_t _shard
    cdef uint32_t _count
    cdef uint64_t _first

    def __cinit__(self, ReadArea area not None):
        self._area = area
        self._name_bytes = b""
        self._name = ""

    def __dealloc__(self):
        free(self._segment)

    def __reduce__(self):
        raise TypeError("a LoneRequest cannot be pickled or copied")

    # -- what it is

    @property
    def request_id(self) -> int:
        return self._lone.request_id

    @property
    def is_batch(self) -> bool:
        """Whether it is a SEND_BATCH."""
        return self._lone.command == IGN_WIRE_SEND_BATCH

    @property
    def ttl_ms(self) -> int:
        return self._lone.ttl_ms

    @property
    def any_shard(self) -> bool:
        """Whether the receiver is to choose the shard."""
        return self._lone.shard == IGN_WIRE_ANY_SHARD

    @property
    def nbytes(self) -> int:
        """Of its records, with their index."""
        return self._lone.segment_bytes

    @property
    def count(self) -> int:
        """How many messages it has, by what it says itself; `load` takes nothing else."""
        return self._count

    def look(self, FrameReader reader not None, Py_ssize_t size):
        """The name of the magazine, if the ``size`` bytes that the reader's connection has just received are such a request;
        else None."""
        return self._look(reader, size)

    cdef object _look(self, FrameReader reader, Py_ssize_t size):
        self._check()
        self._known = self._loaded = False
        if not alone_in(self._area, reader, size):
            return None
        if ign_wire_lone_open(&self._lone, self._area._data, <size_t>size, <size_t>reader._max_frame_bytes) != IGN_OK:
            return None
        if self._lone.shard == IGN_WIRE_ANY_SHARD and ign_wire_lone_shard(&self._lone, 1, &self._shard) == IGN_EMPTY:
            return None  # before a turn is taken for it
        if self._lone.name_len == 0 or not same_name(self._name_bytes, self._lone.name, self._lone.name_len):
            found = read_name(self._lone.name, self._lone.name_len)
            if found is None:
                return None
            self._name_bytes, self._name = found
        self._known = True
        self._lent = self._area._lent
        self._count = ign_wire_lone_count(&self._lone)
        return self._name

    def load(self, Log log not None, number, shards, any_shard, expires_at_ms, bytes owner=None, ms=0):
        """Appends its messages, without waiting; returns the first one's pointer.

        Args:
            shards: of the magazine. any_shard: where a message goes that names neither a shard nor a key.
            owner, ms: as for `Log.load`.

        None, and nothing happened, when it would have to wait, when older messages go first, and when anything is wrong with it.

        Raises what `Log.load` raises.
        """
        cdef uint32_t magazine = <uint32_t>whole(number, "number", 0, 0xFFFFFFFF)
        cdef uint16_t most = <uint16_t>whole(shards, "shards", 1, 0xFFFF)
        cdef uint16_t chosen = <uint16_t>whole(any_shard, "any_shard", 0, 0xFFFF)
        cdef uint64_t expires = <uint64_t>whole(expires_at_ms, "expires_at_ms", 0, 1 << 62)
        cdef uint64_t at_ms = <uint64_t>whole(ms, "ms", 0, 1 << 62)
        cdef ign_store_mark mark
        self._check()
        if not self._known or self._loaded or self._lent != self._area._lent:
            raise ValueError("there is no request to load: look first")
        return self._first if self._load(log, magazine, most, chosen, expires, owner, at_ms, &mark) else None

    cdef bint _load(self, Log log, uint32_t magazine, uint16_t shards, uint16_t any_shard, uint64_t expires, bytes owner,
                    uint64_t at_ms, ign_store_mark *mark) except -1:
        """`load` of what was looked at. The mark: where the log ended behind it."""
        cdef const char *name = NULL if owner is None else PyBytes_AS_STRING(owner)
        cdef ign_store_part part
        cdef ign_store_how how
        cdef int rc = ign_wire_lone_shard(&self._lone, shards, &self._shard)
        if rc == IGN_FULL and any_shard < shards:
            self._shard = any_shard
        elif rc != IGN_OK:
            return False
        self._make_room()
        if ign_wire_lone_put(&self._lone, self._segment, expires, &self._count) != IGN_OK:
            return False
        part.shard = self._shard
        part.batch = self._segment
        part.bytes = <uint32_t>self._lone.segment_bytes
        part.first = 0
        how.at_once = True
        how.fence = NULL
        log._enter()
        self._busy = True
        with nogil:
            if name == NULL:
                rc = ign_store_load(log._store, magazine, &part, 1, &how, mark)
            else:
                rc = ign_store_load_claimed(log._store, magazine, &part, 1, name, at_ms, &how, mark)
        self._busy = False
        if rc == IGN_EMPTY or rc == IGN_E_BUSY or rc == IGN_E_NOMEM or rc == IGN_E_INVALID or rc == IGN_E_UNKNOWN:
            log._leave()
            return False
        log._checked(rc)
        self._loaded = True
        self._first = part.first
        return True

    cdef int _make_room(self) except -1:
        if self._room < self._lone.segment_bytes:
            free(self._segment)
            self._room = 0
            self._segment = <uint8_t *>malloc(self._lone.segment_bytes)
            if self._segment == NULL:
                raise MemoryError("request")
            self._room = self._lone.segment_bytes
        return 0

    cdef int _check(self) except -1:
        if self._busy:
            raise_code(IGN_E_THREAD, "request")
        return 0

    cdef int _check_loaded(self) except -1:
        self._check()
        if not self._loaded:
            raise ValueError("the request was not loaded")
        return 0

    # -- its answer

    def answer(self) -> bytes:
        """The frame that answers it."""
        cdef uint8_t frame[IGN_WIRE_ACK_FRAME_BYTES]
        self._check_loaded()
        ign_wire_lone_ack(&self._lone, frame, self._shard, self._first, self._count)
        return PyBytes_FromStringAndSize(<const char *>frame, IGN_WIRE_ACK_FRAME_BYTES)

    def acknowledge(self, int fd) -> tuple:
        """Sends the frame that answers it, without waiting. Returns how many bytes it has, and what of it the system did not
        take: none as a rule."""
        cdef uint8_t frame[IGN_WIRE_ACK_FRAME_BYTES]
        self._check_loaded()
        ign_wire_lone_ack(&self._lone, frame, self._shard, self._first, self._count)
        return send_answer(fd, frame, IGN_WIRE_ACK_FRAME_BYTES)

    # -- to who waits for its messages

    @property
    def run(self) -> tuple:
        """(shard, first pointer, behind the last) of its messages."""
        self._check_loaded()
        return self._shard, self._first, self._first + self._count

    def deliver(self, int fd, int64_t subscription) -> tuple:
        """Sends its messages, with the pointers that they were given, as the DELIVER of that subscription or request, without
        waiting: from where they lie. Returns how many bytes that has, and what of it the system did not take: none as a rule."""
        cdef uint8_t small[SMALL_FRONT]
        cdef uint8_t *front = small
        cdef size_t size, whole_size, left
        cdef ssize_t sent
        cdef ign_segment segment
        cdef iovec parts[2]
        cdef bytes rest = b""
        self._check_loaded()
        if ign_segment_open(self._segment, self._lone.segment_bytes, &segment) != IGN_OK:
            raise SystemError("a batch in memory does not match its own index")
        size = ign_wire_delivery_front(segment.count)
        whole_size = size + segment.data_len
        if size > SMALL_FRONT:
            front = <uint8_t *>malloc(size)
            if front == NULL:
                raise MemoryError("delivery")
        try:
            ign_wire_put_delivery(front, subscription, self._shard, self._first, &segment)
            parts[0].iov_base = front
            parts[0].iov_len = size
            parts[1].iov_base = <void *>segment.data
            parts[1].iov_len = segment.data_len
            self._busy = True       # the system reads the segment
            try:
                sent = send_parts(fd, parts, 2)
            finally:
                self._busy = False
            if <size_t>sent < whole_size:
                left = size - min(size, <size_t>sent)
                rest = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(whole_size - <size_t>sent))
                memcpy(PyBytes_AS_STRING(rest), front + (size - left), left)
                size -= left
                memcpy(PyBytes_AS_STRING(rest) + left, segment.data + (<size_t>sent - size), segment.data_len - (<size_t>sent - size))
        finally:
            if front != small:
                free(front)
        return <Py_ssize_t>whole_size, rest

    def put_into(self, ClaimsFrame claims not None) -> None:
        """Adds its messages, with the pointers that they were given, to claims."""
        cdef ign_segment segment
        cdef size_t head
        cdef uint8_t *to
        cdef uint32_t i, begin = 0, end
        self._check_loaded()
        if ign_segment_open(self._segment, self._lone.segment_bytes, &segment) != IGN_OK:
            raise SystemError("a batch in memory does not match its own index")
        head = claim_head(segment.count)
        to = claims.room_for(head + segment.data_len)
        put_claim_head(to, self._shard, self._first, segment.count)
        for i in range(segment.count):
            end = ign_get32(segment.base + IGN_SEGMENT_HEADER_BYTES + <size_t>i * IGN_SEGMENT_INDEX_BYTES)
            ign_put32(to + head - 4 * <size_t>(segment.count - i), end - begin)
            begin = end
        memcpy(to + head, segment.data, segment.data_len)
        claims.added(self._shard, self._first, segment.count, head + segment.data_len)


include "_lone_ack.pxi"
include "_lone_spin.pxi"
include "_lone_lane.pxi"
