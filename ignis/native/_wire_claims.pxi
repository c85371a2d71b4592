# A part of wire.pyx: claims that are written into their frame as they are found.

cdef enum:
    # Before the claims: the frame's header, the head of the payload, and how many claims there are.
    FRAME_FRONT = 128
    FIRST_CLAIMS = 1024


@cython.no_gc       # refers to nothing that could refer back
cdef class ClaimsFrame:
    """A DELIVER, or a RESULT of FIRE, in the making: claims are added by a store, and `frame` makes it whole.

    One thread at a time, and no changes while a view of it is held. Cannot be copied or pickled.
    """

    def __cinit__(self):
        self.runs = []
        self._filled = self._front = FRAME_FRONT

    def __dealloc__(self):
        free(self._data)

    def __reduce__(self):
        refuse_copy(self)

    cdef uint8_t *room_for(self, size_t size) except NULL:
        """Where the next bytes go, so many at most; what was filled of them is said with `added`. The frame is not whole then."""
        cdef size_t want = self._filled + size, room = max(2 * self._room, <size_t>FIRST_CLAIMS)
        cdef uint8_t *grown
        if self._exports:
            raise BufferError("the frame is being read")
        self._whole = False
        if want > self._room:
            # The first claim mostly is the only one.
            if room < want or self._room == 0:
                room = want
            grown = <uint8_t *>realloc(self._data, room)
            if grown == NULL:
                raise MemoryError("claims")
            self._data = grown
            self._room = room
        return self._data + self._filled

    cdef int added(self, uint16_t shard, uint64_t first, uint32_t records, size_t size) except -1:
        """One claim of one run was put there."""
        self._filled += size
        self._claims += 1
        self.messages += records
        self._run(shard, first, first + records)
        return 0

    cdef int _run(self, uint16_t shard, uint64_t start, uint64_t stop) except -1:
        cdef Py_ssize_t last = len(self.runs) - 1
        if last >= 0:
            known, begin, end = self.runs[last]
            if known == shard and end == start:
                self.runs[last] = (known, begin, stop)
                return 0
        self.runs.append((shard, start, stop))
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes of the claims."""
        return self._filled - self._front

    def add(self, claims) -> None:
        """Adds claims as `pack_claims` takes them. Raises what that raises; nothing is added then."""
        cdef list held = list(claims)
        cdef bytes packed = pack_claims(held)
        cdef list found = []
        cdef size_t size = <size_t>len(packed) - 4
        cdef uint64_t messages = 0
        for shard, pointers, records in held:
            found += unpack_runs(pack_pointers([(shard, pointers)]))
            messages += <uint64_t>len(records)
        memcpy(self.room_for(size), PyBytes_AS_STRING(packed) + 4, size)
        self._filled += size
        self._claims += <uint32_t>len(held)
        self.messages += messages
        for shard, start, stop in found:
            self._run(shard, start, stop)

    def add_batch(self, shard, first, PackedBatch batch not None) -> None:
        """Adds the records of a batch that is being stored with pointers from ``first`` on."""
        cdef ign_segment segment
        cdef uint16_t number = shard_of(shard)
        cdef uint64_t pointer = first
        cdef uint32_t i, begin = 0, end
        cdef size_t head
        cdef uint8_t *to
        cdef Py_buffer view
        if pointer > IGN_WIRE_POINTER_MAX:
            raise ValueError(f"pointers from {first} on")
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            if ign_segment_open(<const uint8_t *>view.buf, <size_t>view.len, &segment) != IGN_OK:
                raise SystemError("a batch in memory does not match its own index")
            head = claim_head(segment.count)
            to = self.room_for(head + segment.data_len)
            put_claim_head(to, number, pointer, segment.count)
            for i in range(segment.count):
                end = ign_get32(segment.base + IGN_SEGMENT_HEADER_BYTES + <size_t>i * IGN_SEGMENT_INDEX_BYTES)
                ign_put32(to + head - 4 * <size_t>(segment.count - i), end - begin)
                begin = end
            memcpy(to + head, segment.data, segment.data_len)
            self.added(number, pointer, segment.count, head + segment.data_len)
        finally:
            PyBuffer_Release(&view)

    def frame(self, int16_t command, int64_t request_id, bytes head not None) -> memoryview:
        """The whole frame, with this head of its payload. It may be asked for again, with another head."""
        cdef size_t size = <size_t>len(head), front = IGN_FRAME_HEADER_BYTES + size + 4, more
        if self._exports:
            raise BufferError("the frame is being read")
        if self._data == NULL:
            self.room_for(0)
        if front > self._front:
            more = front - self._front
            self.room_for(more)
            memmove(self._data + front, self._data + self._front, self._filled - self._front)
            self._filled += more
            self._front = front
        if self._filled - self._front > <size_t>IGN_FRAME_MAX_PAYLOAD - size - 4:
            raise OverflowError("the claims are too large for a frame")
        self._begin = self._front - front
        self._whole = True
        ign_frame_put_header(self._data + self._begin, command, request_id, size + 4 + self._filled - self._front)
        memcpy(self._data + self._begin + IGN_FRAME_HEADER_BYTES, PyBytes_AS_STRING(head), size)
        ign_put32(self._data + self._front - 4, self._claims)
        return memoryview(self)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if not self._whole:
            raise BufferError("the frame is not whole")
        PyBuffer_FillInfo(view, self, self._data + self._begin, <Py_ssize_t>(self._filled - self._begin), 1, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._exports -= 1


cdef size_t claim_head(uint32_t records) noexcept nogil:
    """Bytes of a claim of one run, before its records."""
    return <size_t>IGN_WIRE_CLAIM_BYTES + <size_t>IGN_WIRE_CLAIM_RUN_BYTES + 4 * <size_t>records


cdef void put_claim_head(uint8_t *to, uint16_t shard, uint64_t first, uint32_t records) noexcept nogil:
    """All of it but the lengths."""
    ign_wire_put_claim(to, shard, records, 1)
    ign_put64(to + IGN_WIRE_CLAIM_BYTES, first)
    ign_put32(to + IGN_WIRE_CLAIM_BYTES + 8, records)
