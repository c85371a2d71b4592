# The second half of record.pyx: packed batches, and reading them back as stored segments.

# -- building from C pointers -----------------------------------------------------------------------------------------

cdef int builder_open(BatchBuilder *b, uint32_t count, size_t data_bytes) noexcept nogil:
    cdef size_t size = ign_segment_size(count, data_bytes)
    memset(b, 0, sizeof(BatchBuilder))
    if size == SIZE_MAX:
        return IGN_E_TOO_LARGE
    b.segment = <uint8_t *>malloc(size)
    if b.segment == NULL:
        return IGN_E_NOMEM
    ign_segment_begin(b.segment, count, 0)
    b.data = b.segment + (size - data_bytes)
    b.data_bytes = data_bytes
    b.count = count
    return IGN_OK


cdef uint8_t *builder_reserve(BatchBuilder *b) noexcept nogil:
    return b.data + b.end


cdef void builder_commit(BatchBuilder *b, size_t size) noexcept nogil:
    cdef uint32_t crc = ign_crc32c(0, b.data + b.end, size)
    b.end += size
    ign_segment_put_index(b.segment, b.filled, <uint32_t>b.end, crc)
    b.filled += 1


cdef void builder_add(BatchBuilder *b, const uint8_t *record, size_t size) noexcept nogil:
    if size != 0:
        memcpy(b.data + b.end, record, size)
    builder_commit(b, size)


cdef PackedBatch builder_close(BatchBuilder *b):
    # A builder that is not full would leave bytes of the heap's past in the segment.
    if b.segment == NULL or b.filled != b.count or b.end != b.data_bytes:
        raise SystemError(f"batch closed with {b.filled} of {b.count} records, {b.end} of {b.data_bytes} bytes")
    cdef PackedBatch batch = PackedBatch.__new__(PackedBatch)
    batch._segment = b.segment
    batch._nbytes = <size_t>(b.data - b.segment) + b.data_bytes
    batch._count = b.count
    b.segment = NULL
    return batch


cdef void builder_abort(BatchBuilder *b) noexcept nogil:
    free(b.segment)
    b.segment = NULL


# -- packing bodies ---------------------------------------------------------------------------------------------------

cdef struct Chunk:
    BatchBuilder builder
    size_t data_bytes
    uint32_t count
    uint16_t shard


cdef struct Packing:
    Source bodies
    Source keys
    Source metas
    Source given_ids            # used when has_ids, and then no ids are drawn
    bint has_ids
    Py_ssize_t count
    size_t max_body_bytes
    uint8_t flags
    uint16_t shards
    uint16_t any_shard
    uint32_t max_records
    size_t max_bytes
    # Owned.
    uint32_t *chunk_of          # per body
    uint8_t *ids                # per body, ID_BYTES each
    int32_t *open_chunk         # per shard: the chunk that still takes records, or -1
    Chunk *chunks
    uint32_t chunk_count
    uint32_t chunk_room


cdef void packing_free(Packing *p) noexcept nogil:
    cdef uint32_t i
    for i in range(p.chunk_count):
        builder_abort(&p.chunks[i].builder)
    free(p.chunks)
    free(p.open_chunk)
    free(p.ids)
    free(p.chunk_of)


cdef inline bint has_room(const Packing *p, int32_t index, size_t size) noexcept nogil:
    return (index >= 0 and p.chunks[index].count < p.max_records
            and p.chunks[index].data_bytes + size <= p.max_bytes)


cdef int32_t chunk_begin(Packing *p, uint16_t shard) noexcept nogil:
    """A new open chunk for the shard; -1 when there is no memory."""
    cdef uint32_t room
    cdef Chunk *grown
    if p.chunk_count == p.chunk_room:
        room = p.chunk_room * 2 if p.chunk_room != 0 else 8
        grown = <Chunk *>realloc(p.chunks, <size_t>room * sizeof(Chunk))
        if grown == NULL:
            return -1
        p.chunks = grown
        p.chunk_room = room
    memset(&p.chunks[p.chunk_count], 0, sizeof(Chunk))
    p.chunks[p.chunk_count].shard = shard
    p.open_chunk[shard] = <int32_t>p.chunk_count
    p.chunk_count += 1
    return p.open_chunk[shard]


cdef int pack_all(Packing *p, uint64_t at_us, uint64_t random) noexcept nogil:
    """Two walks over the bodies: the first says which chunk takes which, the second encodes each into its place.

    A shard has one open chunk at a time, so its records keep the order of the bodies.
    """
    cdef size_t body_len = 0, key_len = 0, meta_len = 0, id_len = 0, size
    cdef const uint8_t *body
    cdef const uint8_t *key
    cdef const uint8_t *meta
    cdef const uint8_t *id
    cdef uint64_t drawn
    cdef uint16_t shard, any_shard = p.any_shard
    cdef int32_t at
    cdef uint32_t c
    cdef int code
    cdef Py_ssize_t i
    cdef Chunk *chunk

    p.chunk_of = <uint32_t *>malloc(<size_t>p.count * sizeof(uint32_t))
    p.ids = <uint8_t *>malloc(<size_t>(1 if p.has_ids else p.count) * ID_BYTES)
    p.open_chunk = <int32_t *>malloc(<size_t>p.shards * sizeof(int32_t))
    if p.chunk_of == NULL or p.ids == NULL or p.open_chunk == NULL:
        return IGN_E_NOMEM
    memset(p.open_chunk, 0xFF, <size_t>p.shards * sizeof(int32_t))

    for i in range(p.count):
        source_at(&p.bodies, i, &body_len)
        key = source_at(&p.keys, i, &key_len)
        source_at(&p.metas, i, &meta_len)
        size = record_bytes(key_len, meta_len, body_len)
        shard = any_shard if key_len == 0 else ign_shard_for_key(key, key_len, p.shards)
        at = p.open_chunk[shard]
        if key_len == 0 and at >= 0 and not has_room(p, at, size):
            any_shard = <uint16_t>((any_shard + 1) % p.shards)
            shard = any_shard
            at = p.open_chunk[shard]
        if not has_room(p, at, size):
            at = chunk_begin(p, shard)
            if at < 0:
                return IGN_E_NOMEM
        p.chunks[at].count += 1
        p.chunks[at].data_bytes += size
        p.chunk_of[i] = <uint32_t>at

    for c in range(p.chunk_count):
        code = builder_open(&p.chunks[c].builder, p.chunks[c].count, p.chunks[c].data_bytes)
        if code != IGN_OK:
            return code

    # The process's generator was asked once, under the GIL; from there a private sequence.
    drawn = first_drawn(splitmix64(&random))
    for i in range(p.count):
        body = source_at(&p.bodies, i, &body_len)
        key = source_at(&p.keys, i, &key_len)
        meta = source_at(&p.metas, i, &meta_len)
        chunk = &p.chunks[p.chunk_of[i]]
        if p.has_ids:
            id = source_at(&p.given_ids, i, &id_len)
        else:
            ign_uuid7(at_us, drawn, p.ids + i * ID_BYTES)
            drawn = next_drawn(drawn, splitmix64(&random))
            id = p.ids + i * ID_BYTES
        encode_into(builder_reserve(&chunk.builder), p.flags, id, at_us,
                    key, key_len, meta, meta_len, body, body_len)
        builder_commit(&chunk.builder, record_bytes(key_len, meta_len, body_len))
    return IGN_OK


cdef int raise_packing(int code) except -1:
    if code == IGN_E_NOMEM:
        raise MemoryError("packed batch")
    raise ValueError(f"a batch holds 1..{IGN_SEGMENT_MAX_RECORDS} records and less than 4 GiB of them")


cdef int packing_options(Packing *p, flags, shards, any_shard, max_records, max_bytes) except -1:
    p.flags = <uint8_t>in_range(flags, "flags", 0, FLAGS_MAX)
    p.shards = <uint16_t>in_range(shards, "shards", 1, SHARDS_MAX)
    p.any_shard = <uint16_t>in_range(any_shard, "any_shard", 0, p.shards - 1)
    p.max_records = <uint32_t>in_range(max_records, "max_records", 1, IGN_SEGMENT_MAX_RECORDS)
    p.max_bytes = <size_t>in_range(max_bytes, "max_bytes", 1, UINT32_MAX)
    return 0


cdef list pack_sources(Packing *p):
    """The batches as (shard, batch); `packing_free` is due afterwards in any case."""
    cdef size_t body_len = 0, key_len = 0, meta_len = 0, size, total = 0
    cdef Py_ssize_t i
    cdef uint32_t c
    cdef int code
    cdef list batches = []
    if p.count == 0:
        return batches
    # Everything that can be refused is refused here, so that the walks without the GIL only run out of memory.
    for i in range(p.count):
        source_at(&p.bodies, i, &body_len)
        source_at(&p.keys, i, &key_len)
        source_at(&p.metas, i, &meta_len)
        size = record_bytes(key_len, meta_len, body_len)
        if size == SIZE_MAX:
            refuse_size(key_len, meta_len, body_len)
        if body_len > p.max_body_bytes:
            raise MessageTooLargeError(body_len, p.max_body_bytes, "queue.max_message_bytes")
        total += size
    cdef uint64_t at_us = now_us(), random = random_u64()
    if total < NOGIL_FROM_BYTES:
        code = pack_all(p, at_us, random)
    else:
        with nogil:
            code = pack_all(p, at_us, random)
    if code != IGN_OK:
        raise_packing(code)
    for c in range(p.chunk_count):
        batches.append((p.chunks[c].shard, builder_close(&p.chunks[c].builder)))
    return batches


@cython.final
cdef class PackedBatch:
    """A batch of records as a store keeps them: one block of memory, built by `pack` or `pack_bodies`.

    Supports the buffer protocol, read-only. The memory belongs to the batch and lives as long as a view of it does;
    while there is a view, ``set_expiry`` and ``seal`` raise BufferError. Reading is safe in threads; ``set_expiry``
    and ``seal`` belong to whoever loads the batch.
    """

    def __init__(self):
        raise TypeError("a PackedBatch is made by PackedBatch.pack or PackedBatch.pack_bodies")

    def __reduce__(self):
        raise TypeError("a PackedBatch cannot be pickled or copied; send bytes(batch)")

    def __dealloc__(self):
        free(self._segment)

    @staticmethod
    def pack(records, expires_at_ms=0):
        """A batch of ready-made records (see `encode_record`), whose bytes are copied and not looked into.

        Args:
            records: 1..1,048,576 bytes objects, less than 4 GiB in all.
            expires_at_ms: milliseconds since the Unix epoch, 0 = never.

        Raises ValueError (no record, or too many, or too large together), TypeError. Gives the GIL up for large
        batches.
        """
        cdef tuple held = all_bytes(records, "records", False)
        cdef PyObject *items = <PyObject *>held
        cdef Py_ssize_t i, count = PyTuple_GET_SIZE(items)
        cdef size_t data_bytes = 0, size = 0
        cdef const uint8_t *data
        cdef BatchBuilder builder
        cdef PackedBatch batch
        cdef long long expires = in_range(expires_at_ms, "expires_at_ms", 0, INT64_MAX)
        if count < 1 or count > <Py_ssize_t>IGN_SEGMENT_MAX_RECORDS:
            raise ValueError(f"batch of {count} records, allowed are 1..{IGN_SEGMENT_MAX_RECORDS}")
        for i in range(count):
            data_at(items, i, &size)
            data_bytes += size
        if data_bytes > UINT32_MAX:
            raise ValueError(f"batch of {data_bytes} bytes is over the limit of {UINT32_MAX} bytes")
        cdef int code = builder_open(&builder, <uint32_t>count, data_bytes)
        if code != IGN_OK:
            raise_packing(code)
        if data_bytes < NOGIL_FROM_BYTES:
            for i in range(count):
                data = data_at(items, i, &size)
                builder_add(&builder, data, size)
        else:
            with nogil:
                for i in range(count):
                    data = data_at(items, i, &size)
                    builder_add(&builder, data, size)
        try:
            batch = builder_close(&builder)
        finally:
            builder_abort(&builder)
        if expires != 0:
            ign_segment_begin(batch._segment, batch._count, <uint64_t>expires)
        return batch

    @staticmethod
    def pack_bodies(bodies, *, flags, keys, shards, any_shard, metas=None, max_records=256, max_bytes=32768):
        """Puts an envelope (new id, now) around each body and packs the records into batches by shard.

        A body with a key goes to the key's shard; one without (None or empty) to ``any_shard``, moving on to the
        next shard when the batch there is full. The order of the bodies is kept within a shard. The ids of one call
        rise in the order of the bodies.

        Args:
            bodies: bytes objects; may be empty ones.
            flags: the codec of all bodies, ``CODEC_*`` (0..15).
            keys: one per body, or None when no body has any; at most 65,535 bytes each.
            shards: 1..65535.
            any_shard: where the keyless ones begin, 0..shards-1.
            metas: one per body (a MessagePack map, or empty), or None.
            max_records: a batch takes no more records than this, 1..1,048,576.
            max_bytes: nor more bytes of records, 1..2**32-1; a larger record travels alone.

        Returns the batches as (shard, batch) in the order of their first bodies (a shard comes up again when a
        batch of it was full) and the ids in the order of the bodies. Nothing in gives nothing out.

        Raises MessageTooLargeError, ValueError (a number outside its range; keys or metas of another length than
        bodies), TypeError. Gives the GIL up for large inputs.
        """
        cdef tuple held_bodies = all_bytes(bodies, "bodies", False)
        cdef tuple held_keys = all_bytes(keys, "keys", True) if keys is not None else None
        cdef tuple held_metas = all_bytes(metas, "metas", False) if metas is not None else None
        cdef Py_ssize_t i
        cdef Packing p
        cdef list batches, ids
        memset(&p, 0, sizeof(Packing))
        p.bodies.items = <PyObject *>held_bodies
        p.count = PyTuple_GET_SIZE(p.bodies.items)
        p.max_body_bytes = UINT32_MAX
        packing_options(&p, flags, shards, any_shard, max_records, max_bytes)
        if held_keys is not None:
            if len(held_keys) != p.count:
                raise ValueError(f"keys has {len(held_keys)} entries for {p.count} bodies")
            p.keys.items = <PyObject *>held_keys
        if held_metas is not None:
            if len(held_metas) != p.count:
                raise ValueError(f"metas has {len(held_metas)} entries for {p.count} bodies")
            p.metas.items = <PyObject *>held_metas
        try:
            batches = pack_sources(&p)
            ids = PyList_New(p.count)
            for i in range(p.count):
                put_item(ids, i, PyBytes_FromStringAndSize(<char *>p.ids + i * ID_BYTES, ID_BYTES))
            return batches, ids
        finally:
            packing_free(&p)

    @staticmethod
    def pack_columns(bodies, *, flags, shards, any_shard, keys=None, ids=None, max_body_bytes=UINT32_MAX,
                     max_records=8192, max_bytes=1048576):
        """`pack_bodies` for columns: no Python object is made for a row.

        Args:
            bodies: a column of binary or text values without nulls: any object with ``__arrow_c_array__`` (the Arrow
                C data interface), for example a ``pyarrow.Array``.
            flags, shards, any_shard: as for `pack_bodies`.
            keys: a column of as many values, null where a body has no key; or None.
            ids: a column of as many fixed-size binary values of 16 bytes, not null; None draws new ones.
            max_body_bytes: a longer body is refused.
            max_records, max_bytes: as for `pack_bodies`, with larger defaults.

        Returns the batches as (shard, batch) in the order of their first bodies. Nothing in gives nothing out.

        Raises MessageTooLargeError (a body, a key over 65,535 bytes), ValueError (a null body or id, columns of
        different lengths, a number outside its range), TypeError (another column type). Gives the GIL up for large
        inputs.
        """
        cdef Packing p
        cdef list held = []     # the capsules: they own the memory that the columns lie in
        memset(&p, 0, sizeof(Packing))
        take_column(bodies, "bodies", &p.bodies, held)
        p.count = <Py_ssize_t>p.bodies.column.count
        if keys is not None:
            take_column(keys, "keys", &p.keys, held)
            if p.keys.column.count != p.bodies.column.count:
                raise ValueError(f"keys has {p.keys.column.count} entries for {p.count} bodies")
        if ids is not None:
            take_column(ids, "ids", &p.given_ids, held)
            p.has_ids = True
            if p.given_ids.column.count != p.bodies.column.count:
                raise ValueError(f"ids has {p.given_ids.column.count} entries for {p.count} bodies")
            if p.given_ids.column.value_bytes != ID_BYTES:
                raise TypeError(f"ids are not values of {ID_BYTES} bytes each")
            refuse_nulls(&p.given_ids, p.count, "ids")
        refuse_nulls(&p.bodies, p.count, "bodies")
        packing_options(&p, flags, shards, any_shard, max_records, max_bytes)
        p.max_body_bytes = <size_t>in_range(max_body_bytes, "max_body_bytes", 1, UINT32_MAX)
        try:
            return pack_sources(&p)
        finally:
            packing_free(&p)

    @property
    def count(self):
        """Number of records."""
        return self._count

    @property
    def nbytes(self):
        """Bytes of the whole segment, index included."""
        return self._nbytes

    @property
    def sealed(self):
        """Whether `seal` was called."""
        return self._sealed

    cdef int _to_change(self) except -1:
        if self._segment == NULL:
            raise ValueError("the batch is empty")
        if self._sealed:
            raise ValueError("the batch is sealed already")
        if self._exports != 0:
            raise BufferError(f"the batch has {self._exports} view(s) of its memory")
        return 0

    def set_expiry(self, expires_at_ms):
        """When the records expire: milliseconds since the Unix epoch, 0 = never.

        Raises ValueError when the batch is sealed or the number negative, BufferError while it has views.
        """
        cdef uint64_t expires = <uint64_t>in_range(expires_at_ms, "expires_at_ms", 0, INT64_MAX)
        self._to_change()
        ign_segment_begin(self._segment, self._count, expires)
        self._finished = False

    def seal(self, magazine_id, shard, first_pointer):
        """Binds every record's checksum to its place, in place and once.

        Args:
            magazine_id: 0..2**32-1.
            shard: 0..65535.
            first_pointer: the pointer of the first record; the others follow, up to 2**63-2.

        Raises ValueError (sealed already, a number outside its range), BufferError while the batch has views.
        """
        cdef uint32_t magazine = <uint32_t>in_range(magazine_id, "magazine_id", 0, UINT32_MAX)
        cdef uint16_t place = <uint16_t>in_range(shard, "shard", 0, UINT16_MAX)
        cdef uint64_t first = <uint64_t>in_range(first_pointer, "first_pointer", 0, POINTER_MAX - self._count + 1)
        self._to_change()  # last: a number's own code may have sealed it
        self._sealed = True     # before the work, so that a second thread is refused
        if self._count < NOGIL_FROM_RECORDS:
            ign_segment_finish(self._segment)
            ign_segment_seal(self._segment, magazine, place, first)
        else:
            self._sealing = True
            with nogil:
                ign_segment_finish(self._segment)
                ign_segment_seal(self._segment, magazine, place, first)
            self._sealing = False
        self._finished = True

    def ids(self):
        """The ids of the records in order, 16 bytes each; empty bytes for what is no record of this version."""
        cdef ign_segment seg
        cdef ign_record rec
        cdef const uint8_t *data = NULL
        cdef size_t size = 0
        cdef uint32_t i
        cdef list ids
        if self._segment == NULL or self._sealing:
            raise ValueError("the batch is empty or being sealed")
        self._finish()
        if ign_segment_open(self._segment, self._nbytes, &seg) != IGN_OK:
            raise SystemError("a batch in memory does not match its own index")
        ids = PyList_New(seg.count)
        for i in range(seg.count):
            ign_segment_get(&seg, i, 0, 0, 0, &data, &size)
            if ign_record_decode(data, size, &rec) == IGN_OK:
                put_item(ids, i, PyBytes_FromStringAndSize(<char *>rec.id, ID_BYTES))
            else:
                put_item(ids, i, b"")
        return ids

    def records(self):
        """The records in order, as new bytes objects."""
        cdef ign_segment seg
        if self._segment == NULL or self._sealing:
            raise ValueError("the batch is empty or being sealed")
        self._finish()
        if ign_segment_open(self._segment, self._nbytes, &seg) != IGN_OK:
            raise SystemError("a batch in memory does not match its own index")
        return unpacked(&seg, 0, seg.count, NULL, NULL, 0)

    cdef void _finish(self) noexcept:
        # Left until somebody looks, because the expiry is set after the batch was built and is part of the checksum.
        if not self._finished:
            ign_segment_finish(self._segment)
            self._finished = True

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self._segment == NULL or self._sealing:
            raise BufferError("the batch is empty or being sealed")
        self._finish()
        PyBuffer_FillInfo(view, self, self._segment, <Py_ssize_t>self._nbytes, 1, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._exports -= 1

    def __repr__(self):
        return f"<PackedBatch count={self._count} nbytes={self._nbytes} sealed={bool(self._sealed)}>"


# -- reading a stored segment ---------------------------------------------------------------------------------------

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
