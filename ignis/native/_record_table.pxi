# The last part of record.pyx: many records as columns.

cdef bytes new_bytes(size_t size):
    return PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)


cdef inline uint8_t *bytes_data(bytes made) noexcept:
    return <uint8_t *>PyBytes_AS_STRING(<PyObject *>made)


cdef inline void put_text(uint8_t *data, int32_t *offsets, Py_ssize_t n, const uint8_t *value, size_t size) noexcept nogil:
    if size != 0:
        memcpy(data + offsets[n], value, size)
    offsets[n + 1] = offsets[n] + <int32_t>size


def record_columns(records):
    """Takes many records apart, into the buffers of columns in Arrow's layout (integers little-endian).

    Args:
        records: bytes objects of `encode_record`, or None where one could not be read.

    Returns (count, bad, ids, enqueued_at_us, attempts, crashes, key_offsets, keys, meta_offsets, metas, body_offsets,
    bodies), all buffers as bytes:

    * count: records that were read; bad: the indexes of those that were not, which are left out of the columns
    * ids: 16 bytes each; enqueued_at_us: int64 each; attempts, crashes: int32 each
    * the offsets: count + 1 times int32 into the bytes beside them

    Raises ValueError when the keys, metas or bodies together have 2 GiB or more, TypeError. Does not give the GIL up.
    """
    cdef tuple held = all_bytes(records, "records", True)
    cdef PyObject *items = <PyObject *>held
    cdef Py_ssize_t i, n = 0, total = PyTuple_GET_SIZE(items)
    cdef size_t size = 0, key_bytes = 0, meta_bytes = 0, body_bytes = 0
    cdef const uint8_t *data
    cdef ign_record *rec
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
            key_bytes += taken[n].key_len
            meta_bytes += taken[n].meta_len
            body_bytes += taken[n].body_len
            n += 1
        if max(key_bytes, meta_bytes, body_bytes) > INT32_MAX:
            raise ValueError(f"{n} records with {body_bytes} bytes of bodies: a column holds at most {INT32_MAX} bytes")
        ids, stamps, attempts, crashes = new_bytes(16 * n), new_bytes(8 * n), new_bytes(4 * n), new_bytes(4 * n)
        key_ends, meta_ends, body_ends = new_bytes(4 * n + 4), new_bytes(4 * n + 4), new_bytes(4 * n + 4)
        keys, metas, bodies = new_bytes(key_bytes), new_bytes(meta_bytes), new_bytes(body_bytes)
        fill_columns(
            taken, n, bytes_data(ids), <int64_t *>bytes_data(stamps),
            <int32_t *>bytes_data(attempts), <int32_t *>bytes_data(crashes),
            <int32_t *>bytes_data(key_ends), bytes_data(keys), <int32_t *>bytes_data(meta_ends), bytes_data(metas),
            <int32_t *>bytes_data(body_ends), bytes_data(bodies),
        )
        return n, bad, ids, stamps, attempts, crashes, key_ends, keys, meta_ends, metas, body_ends, bodies
    finally:
        free(taken)


cdef void fill_columns(const ign_record *taken, Py_ssize_t count, uint8_t *ids, int64_t *stamps, int32_t *attempts,
                       int32_t *crashes, int32_t *key_ends, uint8_t *keys, int32_t *meta_ends, uint8_t *metas,
                       int32_t *body_ends, uint8_t *bodies) noexcept nogil:
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
