# A part of lone.pyx: an acknowledgement that came alone, of what was delivered (ACK) or what the client has claimed (DELETE).

cdef extern from "ignis_wire_ack.h" nogil:
    enum:
        IGN_WIRE_LONE_MOST_RUNS
        IGN_WIRE_RESULT_FRAME_BYTES
        IGN_WIRE_DELETE

    ctypedef struct ign_wire_ack:
        const uint8_t *name
        size_t name_len
        const uint8_t *pointers
        uint32_t runs
        uint32_t count
        int64_t request_id
        int16_t command

    int ign_wire_ack_open(ign_wire_ack *ack, const uint8_t *src, size_t len, size_t max_frame_bytes)
    size_t ign_wire_put_result(uint8_t *dst, int64_t request_id, uint32_t number)


@cython.final
@cython.no_gc
cdef class LoneAck:
    """The ACK, or DELETE, of some messages that a connection has received and nothing else with it.

    First `look`; then `retire`, before anybody is given the area to read into; then `acknowledge`. Where one of the first two says
    None, nothing has happened and the bytes are as they were, for `FrameReader.received`.

    Args:
        area: what the connections read into.

    For one thread at a time: NativeError for a call while another thread is within `retire`. Cannot be copied or pickled.
    """

    cdef ReadArea _area
    cdef ign_wire_ack _ack          # points into the area
    cdef bint _known                # there is one
    cdef uint64_t _lent             # which time it was that the area was read into
    cdef bint _retired
    cdef bint _busy                 # the store is at it
    cdef bytes _name_bytes
    cdef str _name
    cdef uint32_t _count

    def __cinit__(self, ReadArea area not None):
        self._area = area
        self._name_bytes = b""
        self._name = ""

    def __reduce__(self):
        raise TypeError("a LoneAck cannot be pickled or copied")

    @property
    def request_id(self) -> int:
        return self._ack.request_id

    @property
    def deletes(self) -> bool:
        """Whether it is a DELETE."""
        return self._ack.command == IGN_WIRE_DELETE

    @property
    def runs(self) -> list:
        """[(shard, first pointer, behind the last)], ascending; none has anything in common with another."""
        cdef ign_wire_run run
        cdef uint32_t i
        cdef list found = []
        self._check_there()
        for i in range(self._ack.runs):
            ign_wire_pointers_get(self._ack.pointers, i, &run)
            found.append((run.shard, run.first, run.first + run.count))
        return found

    def look(self, FrameReader reader not None, Py_ssize_t size):
        """The name of the magazine, if the ``size`` bytes that the reader's connection has just received are such a request;
        else None."""
        self._check()
        self._known = self._retired = False
        if not alone_in(self._area, reader, size):
            return None
        if ign_wire_ack_open(&self._ack, self._area._data, <size_t>size, <size_t>reader._max_frame_bytes) != IGN_OK:
            return None
        if self._ack.name_len == 0 or not same_name(self._name_bytes, self._ack.name, self._ack.name_len):
            found = read_name(self._ack.name, self._ack.name_len)
            if found is None:
                return None
            self._name_bytes, self._name = found
        self._known = True
        self._lent = self._area._lent
        return self._name

    def retire(self, Log log not None, number):
        """Retires its messages, without waiting; returns how many were still there.

        None, and nothing happened, when it would have to wait, and when anything is wrong with it.

        Raises what `Log.retire` raises.
        """
        cdef uint32_t magazine = <uint32_t>whole(number, "number", 0, 0xFFFFFFFF)
        cdef ign_store_run runs[IGN_WIRE_LONE_MOST_RUNS]
        cdef ign_wire_run run
        cdef ign_store_how how
        cdef ign_store_mark mark
        cdef uint64_t retired = 0
        cdef uint32_t i
        cdef int rc
        self._check_there()
        for i in range(self._ack.runs):
            ign_wire_pointers_get(self._ack.pointers, i, &run)
            if run.first == 0 or run.first + run.count > MOST_POINTER:
                return None
            runs[i].shard = run.shard
            runs[i].first = run.first
            runs[i].last = run.first + run.count - 1
        how.at_once = True
        how.fence = NULL
        log._enter()
        self._busy = True
        with nogil:
            rc = ign_store_retire(log._store, magazine, runs, self._ack.runs, False, &retired, &how, &mark)
        self._busy = False
        if rc == IGN_EMPTY or rc == IGN_E_BUSY or rc == IGN_E_NOMEM or rc == IGN_E_INVALID or rc == IGN_E_UNKNOWN:
            log._leave()
            return None
        log._checked(rc)
        self._retired = True
        self._count = <uint32_t>retired
        return retired

    cdef int _check(self) except -1:
        if self._busy:
            raise_code(IGN_E_THREAD, "acknowledgement")
        return 0

    cdef int _check_there(self) except -1:
        self._check()
        if not self._known or self._retired or self._lent != self._area._lent:
            raise ValueError("there is no acknowledgement: look first")
        return 0

    cdef size_t _put(self, uint8_t *frame) except 0:
        self._check()
        if not self._retired:
            raise ValueError("the messages were not retired")
        return ign_wire_put_result(frame, self._ack.request_id, self._count)

    # -- its answer

    def answer(self) -> bytes:
        """The frame that answers it."""
        cdef uint8_t frame[IGN_WIRE_RESULT_FRAME_BYTES]
        cdef size_t size = self._put(frame)
        return PyBytes_FromStringAndSize(<const char *>frame, <Py_ssize_t>size)

    def acknowledge(self, int fd) -> tuple:
        """Sends the frame that answers it, without waiting. Returns how many bytes it has, and what of it the system did not
        take: none as a rule."""
        cdef uint8_t frame[IGN_WIRE_RESULT_FRAME_BYTES]
        cdef size_t size = self._put(frame)
        return send_answer(fd, frame, size)
