# Bodies, keys and metas packed into batches by shard. Part of record.pyx; `PackedBatch.pack_bodies` calls it.

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
    ign_uuid7(at_us, drawn, p.ids)  # all have its time
    for i in range(p.count):
        body = source_at(&p.bodies, i, &body_len)
        key = source_at(&p.keys, i, &key_len)
        meta = source_at(&p.metas, i, &meta_len)
        chunk = &p.chunks[p.chunk_of[i]]
        if p.has_ids:
            id = source_at(&p.given_ids, i, &id_len)
        else:
            ign_uuid7_next(p.ids, drawn, p.ids + i * ID_BYTES)
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
