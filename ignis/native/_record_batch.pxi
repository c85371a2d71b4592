# Packed batches. Part of record.pyx.

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
    b.sizes[b.unchecked] = size
    b.unchecked += 1
    b.end += size
    b.filled += 1
    if b.unchecked == IGN_CRC_SIDE_BY_SIDE:
        builder_check(b)


cdef void builder_check(BatchBuilder *b) noexcept nogil:
    """Puts the last records into the index."""
    cdef uint32_t crcs[IGN_CRC_SIDE_BY_SIDE]
    cdef uint32_t i, count = b.unchecked
    cdef size_t at = b.end
    for i in range(count):
        at -= b.sizes[i]
    if count == IGN_CRC_SIDE_BY_SIDE:
        ign_crc32c_side_by_side(b.data + at, b.sizes, crcs)
    for i in range(count):
        if count != IGN_CRC_SIDE_BY_SIDE:
            crcs[i] = ign_crc32c(0, b.data + at, b.sizes[i])
        at += b.sizes[i]
        ign_segment_put_index(b.segment, b.filled - count + i, <uint32_t>at, crcs[i])
    b.unchecked = 0


cdef void builder_add(BatchBuilder *b, const uint8_t *record, size_t size) noexcept nogil:
    if size != 0:
        memcpy(b.data + b.end, record, size)
    builder_commit(b, size)


cdef PackedBatch builder_close(BatchBuilder *b):
    # A builder that is not full would leave bytes of the heap's past in the segment.
    if b.segment == NULL or b.filled != b.count or b.end != b.data_bytes:
        raise SystemError(f"batch closed with {b.filled} of {b.count} records, {b.end} of {b.data_bytes} bytes")
    builder_check(b)
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

include "_record_packing.pxi"


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
    def pack_bodies(bodies, *, flags, keys, shards, any_shard, metas=None, max_body_bytes=UINT32_MAX,
                    max_records=256, max_bytes=32768):
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
            max_body_bytes: a longer body is refused, 0..2**32-1.
            max_records: a batch takes no more records than this, 1..1,048,576.
            max_bytes: nor more bytes of records, 1..2**32-1; a larger record travels alone.

        Returns the batches as (shard, batch), in the order of their first bodies, and the ids of 16 bytes in the order of
        the bodies. A shard comes up again when a batch of it was full. Nothing in gives nothing out.

        Raises MessageTooLargeError, ValueError (a number outside its range; keys or metas of another length than
        bodies), TypeError (what is not exactly bytes). Gives the GIL up for large inputs.
        """
        cdef tuple held_bodies = all_bytes(bodies, "bodies", False)
        cdef tuple held_keys = all_bytes(keys, "keys", True) if keys is not None else None
        cdef tuple held_metas = all_bytes(metas, "metas", False) if metas is not None else None
        cdef Packing p
        cdef list batches
        memset(&p, 0, sizeof(Packing))
        p.bodies.items = <PyObject *>held_bodies
        p.count = PyTuple_GET_SIZE(p.bodies.items)
        p.max_body_bytes = <size_t>in_range(max_body_bytes, "max_body_bytes", 0, UINT32_MAX)
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
            return batches, PyBytes_FromStringAndSize(<char *>p.ids, p.count * ID_BYTES)
        finally:
            packing_free(&p)

    @staticmethod
    def pack_columns(bodies, *, flags, shards, any_shard, keys=None, ids=None, metas=None, max_body_bytes=UINT32_MAX,
                     max_records=8192, max_bytes=1048576):
        """`pack_bodies` for columns: no Python object is made for a row.

        Args:
            bodies: a column of binary or text values without nulls: any object with ``__arrow_c_array__`` (the Arrow
                C data interface), for example a ``pyarrow.Array``.
            flags, shards, any_shard: as for `pack_bodies`.
            keys: a column of as many values, null where a body has no key; or None.
            ids: a column of as many fixed-size binary values of 16 bytes, not null; None draws new ones.
            metas: a column of as many encoded metas, null where a body has none; or None.
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
        if metas is not None:
            take_column(metas, "metas", &p.metas, held)
            if p.metas.column.count != p.bodies.column.count:
                raise ValueError(f"metas has {p.metas.column.count} entries for {p.count} bodies")
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
