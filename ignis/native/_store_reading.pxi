# Reading the records of a batch that lies in the log. Part of store.pyx.

cdef inline void reading_begin(Reading *reading) noexcept nogil:
    reading.batch = reading.small
    reading.pieces = reading.few
    reading.damaged = reading.opened = reading.whole = False


cdef inline void reading_end(Reading *reading) noexcept nogil:
    if reading.batch != reading.small:
        free(reading.batch)
    if reading.pieces != reading.few:
        free(reading.pieces)
    reading_begin(reading)


cdef int reading_open(ign_store *store, const ign_slice *at, Reading *reading) noexcept nogil:
    """Header, index and what of the records the slice names: all of a batch that is small, or wanted for the most part. Of a batch that
    is open already, only the records."""
    cdef int rc = IGN_OK
    if not reading.opened or not same_batch(&reading.place, at):
        reading_end(reading)
        rc = reading_index(store, at, reading)
    elif at.stop > reading.segment.count:
        reading.damaged = True
    if rc != IGN_OK or reading.damaged or reading.whole:
        return rc
    return reading_records(store, at, reading)


cdef inline bint same_batch(const ign_slice *one, const ign_slice *other) noexcept nogil:
    return (one.file_offset == other.file_offset and one.number == other.number and one.generation == other.generation
            and one.bytes == other.bytes)


cdef int reading_index(ign_store *store, const ign_slice *at, Reading *reading) noexcept nogil:
    cdef uint64_t head
    cdef uint32_t count
    cdef int rc
    if at.bytes > sizeof(reading.small):
        reading.batch = <uint8_t *>malloc(at.bytes)
        if reading.batch == NULL:
            reading.batch = reading.small
            return IGN_E_NOMEM
    if at.bytes <= READ_WHOLE:
        rc = ign_store_fetch(store, at, reading.batch)
        if rc == IGN_OK:
            reading_check(at, reading)
            reading.whole = True
        return rc
    rc = ign_store_fetch_part(store, at, 0, reading.batch, IGN_SEGMENT_HEADER_BYTES)
    if rc != IGN_OK:
        return rc
    count = segment_count(reading.batch)
    head = IGN_SEGMENT_HEADER_BYTES + <uint64_t>count * IGN_SEGMENT_INDEX_BYTES
    if head > at.bytes or count < at.stop:
        reading.damaged = True
        return IGN_OK
    rc = ign_store_fetch_part(store, at, IGN_SEGMENT_HEADER_BYTES, reading.batch + IGN_SEGMENT_HEADER_BYTES,
                              head - IGN_SEGMENT_HEADER_BYTES)
    if rc == IGN_OK:
        reading_check(at, reading)
    return rc


cdef int reading_records(ign_store *store, const ign_slice *at, Reading *reading) noexcept nogil:
    cdef uint64_t head = IGN_SEGMENT_HEADER_BYTES + <uint64_t>segment_count(reading.batch) * IGN_SEGMENT_INDEX_BYTES
    cdef uint64_t first = head + (0 if at.begin == 0 else index_end(reading.batch, at.begin - 1))
    cdef uint64_t last = head + index_end(reading.batch, at.stop - 1)
    return ign_store_fetch_part(store, at, first, reading.batch + first, last - first)


cdef void reading_fit(ign_store *store, ign_slice *at, uint64_t most, Reading *reading) noexcept nogil:
    """Cuts the slice where its records take more bytes than that, behind the first of them. What cannot be read is left to who reads it."""
    cdef uint64_t bytes = 0
    cdef uint32_t i
    if not reading.opened or not same_batch(&reading.place, at):
        reading_end(reading)
        if reading_index(store, at, reading) != IGN_OK or reading.damaged:
            return
    for i in range(at.begin, min(at.stop, reading.segment.count)):
        bytes += reading_size(reading, i)
        if bytes > most and i > at.begin:
            at.stop = i
            return


cdef void reading_check(const ign_slice *at, Reading *reading) noexcept nogil:
    reading.damaged = ign_segment_open(reading.batch, at.bytes, &reading.segment) != IGN_OK or reading.segment.count < at.stop
    reading.opened = not reading.damaged
    reading.place = at[0]


cdef int reading_mend(ign_store *store, uint32_t number, const ign_slice *at, Reading *reading) noexcept nogil:
    """The whole batch, with an index that fits those of its records that hold."""
    cdef int rc = ign_store_fetch(store, at, reading.batch)
    if rc == IGN_OK:
        batch_mend(reading.batch, at, number)
        reading_check(at, reading)
        reading.whole = True
    return rc


cdef void batch_mend(uint8_t *batch, const ign_slice *at, uint32_t number) noexcept nogil:
    cdef ign_segment segment
    cdef uint32_t count = 0
    if ign_segment_open(batch, at.bytes, &segment) != IGN_OK:
        ign_batch_mend(batch, at.bytes, number, at.shard, at.first, &count)


cdef int reading_run(ign_store *store, uint32_t number, const ign_slice *at, Reading *reading) noexcept nogil:
    """Reads and checks all records of the slice."""
    cdef uint32_t i, count = at.stop - at.begin
    cdef int rc = reading_open(store, at, reading)
    if rc == IGN_OK and reading.damaged:
        rc = reading_mend(store, number, at, reading)
    if rc != IGN_OK or reading.damaged:
        return rc
    if reading.pieces != reading.few:
        free(reading.pieces)
        reading.pieces = reading.few
    if count > 8:
        reading.pieces = <Piece *>malloc(count * sizeof(Piece))
        if reading.pieces == NULL:
            reading.pieces = reading.few
            return IGN_E_NOMEM
    for i in range(count):
        if ign_segment_get(&reading.segment, at.begin + i, number, at.shard, at.first,
                           &reading.pieces[i].data, &reading.pieces[i].size) != IGN_OK:
            reading.pieces[i].data = NULL
    return IGN_OK


cdef inline object reading_record(Reading *reading, uint32_t i):
    if reading.damaged or reading.pieces[i].data == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char *>reading.pieces[i].data, <Py_ssize_t>reading.pieces[i].size)


cdef inline uint64_t reading_bytes(Reading *reading, uint32_t count) noexcept nogil:
    """Of the records that `reading_run` has read."""
    cdef uint64_t bytes = 0
    cdef uint32_t i
    if not reading.damaged:
        for i in range(count):
            if reading.pieces[i].data != NULL:
                bytes += reading.pieces[i].size
    return bytes


cdef inline uint64_t reading_size(const Reading *reading, uint32_t i) noexcept nogil:
    if reading.damaged:
        return 0
    return index_end(reading.batch, i) - (0 if i == 0 else index_end(reading.batch, i - 1))


cdef inline uint32_t big_endian(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint32_t segment_count(const uint8_t *batch) noexcept nogil:
    return big_endian(batch + 4)


cdef inline uint32_t index_end(const uint8_t *batch, uint32_t i) noexcept nogil:
    return big_endian(batch + IGN_SEGMENT_HEADER_BYTES + <size_t>i * IGN_SEGMENT_INDEX_BYTES)


cdef uint32_t batch_count(bytes batch):
    """How many records its header says that it has."""
    if PyBytes_GET_SIZE(batch) < <Py_ssize_t>IGN_SEGMENT_HEADER_BYTES:
        return 0
    return min(segment_count(<const uint8_t *>PyBytes_AS_STRING(batch)), <uint32_t>(1 << 20))


cdef inline void put_item(list items, Py_ssize_t i, object value) noexcept:
    Py_INCREF(value)            # PyList_SET_ITEM takes a reference over
    PyList_SET_ITEM(items, i, value)
