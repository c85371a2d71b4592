# Reading a stored segment. Part of record.pyx.

cdef inline void put_item(list items, Py_ssize_t i, object value) noexcept:
    Py_INCREF(value)            # PyList_SET_ITEM takes a reference over
    PyList_SET_ITEM(items, i, value)


cdef inline bint skipped(const uint8_t *skip, size_t skip_len, uint32_t i) noexcept nogil:
    """Bit i of the bitmap, the lowest of a byte first; what lies behind its end is not set."""
    return (i >> 3) < skip_len and (skip[i >> 3] >> (i & 7)) & 1 != 0


cdef int raise_segment(int code, Input *taken) except -1:
    if code == IGN_E_VERSION:
        raise CorruptRecordError(
            f"segment of version {taken.data[0]}, this build reads version {IGN_SEGMENT_VERSION}")
    if code == IGN_E_CORRUPT:
        raise CorruptRecordError(f"the index of a segment of {taken.size} bytes does not match its checksum")
    raise CorruptRecordError(f"segment of {taken.size} bytes contradicts its own header")


cdef struct Place:
    uint32_t magazine_id
    uint16_t shard
    uint64_t first_pointer


cdef struct Slice:
    const uint8_t *data         # NULL: corrupt
    size_t size


cdef Py_ssize_t cut(const ign_segment *seg, uint32_t low, uint32_t high, const Place *place, const uint8_t *skip,
                    size_t skip_len, Slice *slices) noexcept nogil:
    """Fills slices with the records low..high-1 that are not skipped, and returns how many; no place = no check."""
    cdef Py_ssize_t n = 0
    cdef Place nowhere
    cdef bint verify = place != NULL
    cdef uint32_t i
    cdef int code
    if not verify:      # our own memory, perhaps not sealed yet: only where the records lie is asked for
        memset(&nowhere, 0, sizeof(Place))
        place = &nowhere
    for i in range(low, high):
        if skipped(skip, skip_len, i):
            continue
        code = ign_segment_get(seg, i, place.magazine_id, place.shard, place.first_pointer,
                               &slices[n].data, &slices[n].size)
        if code != IGN_OK and verify:
            slices[n].data = NULL
        n += 1
    return n


cdef list unpacked(const ign_segment *seg, uint32_t low, uint32_t high, const Place *place, const uint8_t *skip,
                   size_t skip_len):
    cdef Py_ssize_t i, n
    cdef list records
    if low >= high:
        return []
    cdef Slice *slices = <Slice *>malloc(<size_t>(high - low) * sizeof(Slice))
    if slices == NULL:
        raise MemoryError("unpack_segment")
    try:
        # Bytes per record on average: the whole data area is what the walk would touch at most.
        if seg.data_len // seg.count * (high - low) < NOGIL_FROM_BYTES:
            n = cut(seg, low, high, place, skip, skip_len, slices)
        else:
            with nogil:
                n = cut(seg, low, high, place, skip, skip_len, slices)
        records = PyList_New(n)
        for i in range(n):
            if slices[i].data == NULL:
                put_item(records, i, None)
            else:
                put_item(records, i, PyBytes_FromStringAndSize(<const char *>slices[i].data,
                                                               <Py_ssize_t>slices[i].size))
        return records
    finally:
        free(slices)


def unpack_segment(data, magazine_id, shard, last_pointer, start, stop, bytes skip=None):
    """The records of the pointers ``start``..``stop - 1`` of a sealed segment, in order, each verified.

    Args:
        data: the segment, any contiguous buffer; nobody may change it during the call.
        magazine_id, shard: where the segment is thought to be; another place makes every record corrupt.
        last_pointer: the pointer of the segment's last record (its key in the store).
        start, stop: the range; none outside the segment. An empty range gives an empty list.
        skip: a bitmap over the segment's indexes (bit ``i % 8`` of byte ``i // 8``); those set are left out of the
            list. May be shorter than the segment.

    Returns one entry per pointer that is not skipped: the record, or None when it does not match its checksum.

    Raises CorruptRecordError when the header or the index is damaged, or the segment does not reach back to
    ``start``; ValueError for a range that no segment with this key could have. Gives the GIL up for large ranges.
    """
    cdef Place place
    cdef ign_segment seg
    cdef Input taken
    cdef long long last = in_range(last_pointer, "last_pointer", 0, POINTER_MAX)
    cdef long long low = in_range(start, "start", 0, POINTER_MAX + 1)
    cdef long long high = in_range(stop, "stop", 0, POINTER_MAX + 1)
    cdef const uint8_t *bitmap = NULL
    cdef size_t bitmap_len = 0
    place.magazine_id = <uint32_t>in_range(magazine_id, "magazine_id", 0, UINT32_MAX)
    place.shard = <uint16_t>in_range(shard, "shard", 0, UINT16_MAX)
    if high < low or high - 1 > last:
        raise ValueError(f"pointers {low}..{high - 1} of a segment that ends at {last}")
    if skip is not None:
        bitmap = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>skip)
        bitmap_len = <size_t>PyBytes_GET_SIZE(<PyObject *>skip)
    take(data, &taken)
    try:
        code = ign_segment_open(taken.data, taken.size, &seg)
        if code != IGN_OK:
            raise_segment(code, &taken)
        if low == high:
            return []
        # The count comes from the stored bytes: a segment that somebody put under another key is caught here.
        if last - <long long>seg.count + 1 > low or <long long>seg.count > last + 1:
            raise CorruptRecordError(
                f"segment of {seg.count} records that ends at pointer {last} has no pointer {low}")
        place.first_pointer = <uint64_t>(last - <long long>seg.count + 1)
        return unpacked(&seg, <uint32_t>(low - <long long>place.first_pointer),
                        <uint32_t>(high - <long long>place.first_pointer), &place, bitmap, bitmap_len)
    finally:
        give_back(&taken)


def segment_info(data):
    """(number of records, expires_at_ms) of a segment, from its header; expires_at_ms 0 = never.

    Raises CorruptRecordError when the header or the index is damaged. The records are not looked at.
    """
    cdef ign_segment seg
    cdef Input taken
    take(data, &taken)
    try:
        code = ign_segment_open(taken.data, taken.size, &seg)
        if code != IGN_OK:
            raise_segment(code, &taken)
        return seg.count, seg.expires_at_ms
    finally:
        give_back(&taken)
