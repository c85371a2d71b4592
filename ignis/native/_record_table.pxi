# Many records as columns. The last part of record.pyx.

cdef bytes new_bytes(size_t size):
    return PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)


cdef inline uint8_t *bytes_data(bytes made) noexcept:
    return <uint8_t *>PyBytes_AS_STRING(<PyObject *>made)


cdef inline void put_text(uint8_t *data, int32_t *offsets, Py_ssize_t n, const uint8_t *value, size_t size) noexcept nogil:
    if size != 0:
        memcpy(data + offsets[n], value, size)
    offsets[n + 1] = offsets[n] + <int32_t>size


def record_columns(records, *, lines=False):
    """Takes many records apart, into the buffers of columns in Arrow's layout (integers little-endian).

    Args:
        records: bytes objects of `encode_record`, or None where one could not be read.
        lines: a newline behind each body, which counts as part of it: what readers of JSON lines want.

    Returns (count, bad, ids, enqueued_at_us, attempts, crashes, key_offsets, keys, meta_offsets, metas, body_offsets,
    bodies), all buffers as bytes:

    * count: records that were read; bad: the indexes of those that were not, which are left out of the columns
    * ids: 16 bytes each; enqueued_at_us: int64 each; attempts, crashes: int32 each
    * the offsets: count + 1 times int32 into the bytes beside them

    Raises ValueError when the keys, metas or bodies together have 2 GiB or more, TypeError. Gives the GIL up for large ones.
    """
    cdef tuple held = all_bytes(records, "records", True)
    cdef PyObject *items = <PyObject *>held
    cdef Py_ssize_t i, n = 0, total = PyTuple_GET_SIZE(items)
    cdef bint with_newline = bool(lines)
    cdef size_t size = 0
    cdef const uint8_t *data
    cdef list bad = []
    cdef ign_record *taken = <ign_record *>malloc(<size_t>(total + 1) * sizeof(ign_record))
    if taken == NULL:
        raise MemoryError("record_columns")
    try:
        for i in range(total):
            data = data_at(items, i, &size)
            if data == NULL or ign_record_decode(data, size, &taken[n]) != IGN_OK:
                bad.append(i)
                continue
            n += 1
        return (n, bad) + column_buffers(taken, n, with_newline)
    finally:
        free(taken)


cdef struct Part:
    long long first, last, start, stop      # pointers: of the segment, and those wanted of it


def segment_columns(parts, magazine_id, shard, *, lines=False):
    """`record_columns` of records that still lie in their segments, each verified: no Python object is made for a record.

    Args:
        parts: of each segment (data, first_pointer, last_pointer, start, stop, skip): the pointers that its key names, and
            what is wanted of them, see `unpack_segment`; nobody may change the data during the call.
        magazine_id, shard: where the segments are thought to be.
        lines: see `record_columns`.

    Returns what `record_columns` does, and behind it the pointers of the good records, int64 each. ``bad`` has the pointers of
    the others: of records that do not match their checksum or are of another version, and of all records in a segment whose
    header is damaged or contradicts its key.

    Raises ValueError (see `record_columns`; a range outside the segment), TypeError. Gives the GIL up for large segments.
    """
    cdef list asked = list(parts)
    cdef Part *wanted = NULL
    cdef list held = []         # what the inputs lend from, and the bitmaps
    cdef bytes bitmap
    cdef bint with_newline = bool(lines)
    cdef Place place
    cdef Py_ssize_t i, n = 0, bad_count = 0, room = 1, opened = 0, count = len(asked)
    cdef Input *inputs = NULL
    cdef ign_record *taken = NULL
    cdef int64_t *numbers = NULL
    cdef int64_t *bad = NULL
    cdef bytes pointers
    place.magazine_id = <uint32_t>in_range(magazine_id, "magazine_id", 0, UINT32_MAX)
    place.shard = <uint16_t>in_range(shard, "shard", 0, UINT16_MAX)
    try:
        inputs = <Input *>malloc(<size_t>(count + 1) * sizeof(Input))
        wanted = <Part *>malloc(<size_t>(count + 1) * sizeof(Part))
        if inputs == NULL or wanted == NULL:
            raise MemoryError("segment_columns")
        # Each part is asked once, and what it said then is what counts: a second answer might be another one.
        for i in range(count):
            data, first, last, start, stop, skip = asked[i]
            if skip is not None and type(skip) is not bytes:
                raise TypeError(f"skip is {type(skip).__name__}, expected bytes or None")
            wanted[i].first = in_range(first, "first_pointer", 0, POINTER_MAX)
            wanted[i].last = in_range(
                last, "last_pointer", wanted[i].first,
                min(POINTER_MAX, wanted[i].first + <long long>IGN_SEGMENT_MAX_RECORDS - 1))
            wanted[i].start = in_range(start, "start", wanted[i].first, wanted[i].last + 1)
            wanted[i].stop = in_range(stop, "stop", wanted[i].start, wanted[i].last + 1)
            room += wanted[i].stop - wanted[i].start
            held.append((data, skip))
            take(data, &inputs[i])
            opened += 1
        taken = <ign_record *>malloc(<size_t>room * sizeof(ign_record))
        numbers = <int64_t *>malloc(<size_t>room * sizeof(int64_t))
        bad = <int64_t *>malloc(<size_t>room * sizeof(int64_t))
        if taken == NULL or numbers == NULL or bad == NULL:
            raise MemoryError("segment_columns")
        for i in range(count):
            bitmap = held[i][1]
            place.first_pointer = <uint64_t>wanted[i].first
            take_part(&inputs[i], &wanted[i], bitmap, &place, taken, numbers, &n, bad, &bad_count)
        pointers = new_bytes(8 * n)
        memcpy(bytes_data(pointers), numbers, 8 * n)
        return (n, [bad[i] for i in range(bad_count)], pointers) + column_buffers(taken, n, with_newline)
    finally:
        for i in range(opened):
            give_back(&inputs[i])
        free(inputs)
        free(wanted)
        free(taken)
        free(numbers)
        free(bad)


cdef int take_part(Input *data, const Part *wanted, bytes skip, const Place *place, ign_record *taken, int64_t *numbers,
                   Py_ssize_t *n, int64_t *bad, Py_ssize_t *bad_count) except -1:
    """Adds the wanted records of a segment that are not skipped to what is there already."""
    cdef uint32_t count = <uint32_t>(wanted.last - wanted.first + 1)
    cdef uint32_t low = <uint32_t>(wanted.start - wanted.first), high = <uint32_t>(wanted.stop - wanted.first)
    cdef ign_segment seg
    cdef const uint8_t *bitmap = NULL
    cdef size_t bitmap_len = 0
    cdef bint is_whole = ign_segment_open(data.data, data.size, &seg) == IGN_OK and seg.count == count
    if skip is not None:
        bitmap = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>skip)
        bitmap_len = <size_t>PyBytes_GET_SIZE(<PyObject *>skip)
    if data.size < NOGIL_FROM_BYTES:
        decode_part(&seg if is_whole else NULL, low, high, bitmap, bitmap_len, place, taken, numbers, n, bad, bad_count)
    else:
        with nogil:
            decode_part(
                &seg if is_whole else NULL, low, high, bitmap, bitmap_len, place, taken, numbers, n, bad, bad_count)
    return 0


cdef void decode_part(const ign_segment *seg, uint32_t low, uint32_t high, const uint8_t *skip, size_t skip_len,
                      const Place *place, ign_record *taken, int64_t *numbers, Py_ssize_t *n, int64_t *bad,
                      Py_ssize_t *bad_count) noexcept nogil:
    """No segment: none of its records can be read."""
    cdef const uint8_t *record = NULL
    cdef size_t size = 0
    cdef uint32_t i
    for i in range(low, high):
        if skipped(skip, skip_len, i):
            continue
        if seg != NULL and ign_segment_get(
            seg, i, place.magazine_id, place.shard, place.first_pointer, &record, &size
        ) == IGN_OK and ign_record_decode(record, size, &taken[n[0]]) == IGN_OK:
            numbers[n[0]] = <int64_t>(place.first_pointer + i)
            n[0] += 1
        else:
            bad[bad_count[0]] = <int64_t>(place.first_pointer + i)
            bad_count[0] += 1


cdef tuple column_buffers(const ign_record *taken, Py_ssize_t n, bint with_newline):
    """(ids, enqueued_at_us, attempts, ..., bodies) of `record_columns`."""
    cdef size_t key_bytes = 0, meta_bytes = 0, body_bytes = 0
    cdef Py_ssize_t i
    cdef uint8_t *at[10]
    cdef list made
    for i in range(n):
        key_bytes += taken[i].key_len
        meta_bytes += taken[i].meta_len
        body_bytes += taken[i].body_len + with_newline
    if max(key_bytes, meta_bytes, body_bytes) > INT32_MAX:
        raise ValueError(f"{n} records with {body_bytes} bytes of bodies: a column holds at most {INT32_MAX} bytes")
    made = [new_bytes(16 * n), new_bytes(8 * n), new_bytes(4 * n), new_bytes(4 * n), new_bytes(4 * n + 4),
            new_bytes(key_bytes), new_bytes(4 * n + 4), new_bytes(meta_bytes), new_bytes(4 * n + 4), new_bytes(body_bytes)]
    for i in range(10):
        at[i] = bytes_data(made[i])
    if body_bytes < NOGIL_FROM_BYTES:
        fill_columns(taken, n, at, with_newline)
    else:
        with nogil:
            fill_columns(taken, n, at, with_newline)
    return tuple(made)


cdef void fill_columns(const ign_record *taken, Py_ssize_t count, uint8_t **at, bint with_newline) noexcept nogil:
    cdef uint8_t *ids = at[0]
    cdef int64_t *stamps = <int64_t *>at[1]
    cdef int32_t *attempts = <int32_t *>at[2]
    cdef int32_t *crashes = <int32_t *>at[3]
    cdef int32_t *key_ends = <int32_t *>at[4]
    cdef int32_t *meta_ends = <int32_t *>at[6]
    cdef int32_t *body_ends = <int32_t *>at[8]
    cdef uint8_t *keys = at[5]
    cdef uint8_t *metas = at[7]
    cdef uint8_t *bodies = at[9]
    cdef Py_ssize_t i
    cdef const ign_record *rec
    key_ends[0] = meta_ends[0] = body_ends[0] = 0
    for i in range(count):
        rec = &taken[i]
        memcpy(ids + i * ID_BYTES, rec.id, ID_BYTES)
        stamps[i] = <int64_t>rec.enqueued_at_us
        attempts[i] = rec.attempts
        crashes[i] = rec.crashes
        put_text(keys, key_ends, i, rec.key, rec.key_len)
        put_text(metas, meta_ends, i, rec.meta, rec.meta_len)
        put_text(bodies, body_ends, i, rec.body, rec.body_len)
        if with_newline:
            bodies[body_ends[i + 1]] = 10
            body_ends[i + 1] += 1


cdef int compare_ids(const void *one, const void *other) noexcept nogil:
    return memcmp(one, other, ID_BYTES)


cdef void sort_ids(uint8_t *ids, size_t count) noexcept nogil:
    """What is in order already, as ids from a clock or a counter are, is only looked through."""
    cdef size_t i
    for i in range(1, count):
        if compare_ids(ids + (i - 1) * ID_BYTES, ids + i * ID_BYTES) > 0:
            qsort(ids, count, ID_BYTES, compare_ids)
            return


def id_keys(batches, bytes prefix not None):
    """The ids of the records of many batches as keys of a store: ``prefix`` and the id, sorted, each once.

    Args:
        batches: of `PackedBatch`.

    Returns (keys, repeated): the keys, and how many ids were left out because they come again. What is no record of this
    version has no id.

    Raises TypeError; ValueError for a batch that is empty or being sealed. Gives the GIL up to sort many.
    """
    cdef list held = list(batches), keys = []
    cdef size_t room = 0, count = 0, i, repeated = 0, size = <size_t>len(prefix)
    cdef uint8_t *ids
    cdef uint8_t *key
    cdef bytes made
    for item in held:
        if type(item) is not PackedBatch:
            raise TypeError(f"batches holds {type(item).__name__}, expected PackedBatch")
        room += (<PackedBatch>item)._count
    ids = <uint8_t *>malloc((room + 1) * ID_BYTES)
    if ids == NULL:
        raise MemoryError("id_keys")
    try:
        for item in held:
            count += copy_ids(<PackedBatch>item, ids + count * ID_BYTES)
        if count < NOGIL_FROM_RECORDS:
            sort_ids(ids, count)
        else:
            with nogil:
                sort_ids(ids, count)
        for i in range(count):
            if i != 0 and compare_ids(ids + (i - 1) * ID_BYTES, ids + i * ID_BYTES) == 0:
                repeated += 1
                continue
            made = new_bytes(size + ID_BYTES)
            key = bytes_data(made)
            memcpy(key, PyBytes_AS_STRING(<PyObject *>prefix), size)
            memcpy(key + size, ids + i * ID_BYTES, ID_BYTES)
            keys.append(made)
        return keys, repeated
    finally:
        free(ids)


cdef size_t copy_ids(PackedBatch batch, uint8_t *ids) except? 0:
    """The ids of a batch's records, side by side; returns how many it has."""
    cdef ign_segment seg
    cdef ign_record rec
    cdef const uint8_t *data = NULL
    cdef size_t size = 0, count = 0
    cdef uint32_t i
    open_batch(batch, &seg)
    for i in range(seg.count):
        ign_segment_get(&seg, i, 0, 0, 0, &data, &size)
        if ign_record_decode(data, size, &rec) == IGN_OK:
            memcpy(ids + count * ID_BYTES, rec.id, ID_BYTES)
            count += 1
    return count


cdef int open_batch(PackedBatch batch, ign_segment *seg) except -1:
    if batch._segment == NULL or batch._sealing:
        raise ValueError("the batch is empty or being sealed")
    batch._finish()
    if ign_segment_open(batch._segment, batch._nbytes, seg) != IGN_OK:
        raise SystemError("a batch in memory does not match its own index")
    return 0


def position_ids(bytes prefix not None, first, bodies):
    """Ids for the rows of a column that come from where a row stands and what it holds: never from when it was sent.

    The same row at the same place gets the same id however often it is sent, and another row at that place another one.
    The ids of one prefix rise with the row, so that they lie side by side where they are stored.

    Args:
        prefix: 6 bytes that name what the rows are rows of.
        first: the number of the first row, 0..2**32-1.
        bodies: a column without nulls, see `PackedBatch.pack_columns`.

    Returns 16 bytes per row: UUIDs of version 8 with the prefix, the row's number, ten bits of the body's length and its
    CRC32C.

    Raises ValueError (another length of prefix, numbers beyond 2**32-1, a null), TypeError.
    """
    cdef Source source
    cdef list held = []
    cdef Py_ssize_t i, count
    cdef bytes made
    cdef uint8_t *ids
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>prefix)
    if len(prefix) != 6:
        raise ValueError(f"prefix has {len(prefix)} bytes, expected 6")
    memset(&source, 0, sizeof(Source))
    take_column(bodies, "bodies", &source, held)
    count = <Py_ssize_t>source.column.count
    refuse_nulls(&source, count, "bodies")
    cdef uint32_t row = <uint32_t>in_range(first, "first", 0, UINT32_MAX)
    in_range(<long long>row + max(count, 1) - 1, "the last row's number", 0, UINT32_MAX)
    made = new_bytes(<size_t>count * ID_BYTES)
    ids = bytes_data(made)
    with nogil:
        for i in range(count):
            put_position_id(ids + i * ID_BYTES, start, row + <uint32_t>i, &source, i)
    return made


cdef void put_position_id(uint8_t *id, const uint8_t *prefix, uint32_t row, const Source *source,
                          Py_ssize_t i) noexcept nogil:
    cdef size_t size = 0
    cdef const uint8_t *data = source_at(source, i, &size)
    cdef uint32_t crc = ign_crc32c(0, data, size)
    memcpy(id, prefix, 6)
    id[6] = <uint8_t>(0x80 | row >> 28)
    id[7] = <uint8_t>(row >> 20)
    id[8] = <uint8_t>(0x80 | (row >> 14 & 0x3F))
    id[9] = <uint8_t>(row >> 6)
    id[10] = <uint8_t>((row & 0x3F) << 2 | (size >> 8 & 3))
    id[11] = <uint8_t>size
    id[12] = <uint8_t>(crc >> 24)
    id[13] = <uint8_t>(crc >> 16)
    id[14] = <uint8_t>(crc >> 8)
    id[15] = <uint8_t>crc
