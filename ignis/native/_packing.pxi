# From messages that lie in a channel to packed batches by shard. Included by the modules that empty channels.

from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

cdef enum:
    ANY = 0xFFFF        # as a message's kind: whatever shard is next


cdef struct Batch:
    BatchBuilder builder
    uint32_t count
    size_t bytes
    uint32_t shard
    bint opened


cdef int pack_taken(
    Taken *taken, uint32_t n, uint32_t any_shard, uint32_t shards, uint32_t chunk_records, size_t chunk_bytes,
    Batch **result, uint32_t *result_count,
) noexcept nogil:
    """Groups taken messages and copies them into batches. The caller closes or aborts those that are `opened`."""
    cdef uint32_t i, shard, count = 0, room = 0, any_records = 0
    cdef size_t any_bytes = 0, size
    cdef int32_t *current = <int32_t *>malloc(shards * sizeof(int32_t))  # the shard's open batch, -1: none
    cdef Batch *batches = NULL
    cdef Batch *grown
    cdef Taken *message
    cdef int32_t b
    cdef int rc
    if current == NULL:
        return IGN_E_NOMEM
    memset(current, 0xFF, shards * sizeof(int32_t))
    for i in range(n):
        message = &taken[i]
        size = message.length
        if message.kind == ANY:
            if any_records == chunk_records or (any_records != 0 and any_bytes + size > chunk_bytes):
                any_shard = (any_shard + 1) % shards
                any_records = 0
                any_bytes = 0
            any_records += 1
            any_bytes += size
            shard = any_shard
        else:
            shard = message.kind % shards
        b = current[shard]
        if b < 0 or batches[b].count == chunk_records or batches[b].bytes + size > chunk_bytes:
            if count == room:
                room = room * 2 if room else 16
                grown = <Batch *>realloc(batches, room * sizeof(Batch))
                if grown == NULL:
                    free(current)
                    free(batches)
                    return IGN_E_NOMEM
                batches = grown
            b = <int32_t>count
            count += 1
            memset(&batches[b], 0, sizeof(Batch))
            batches[b].shard = shard
            current[shard] = b
        batches[b].count += 1
        batches[b].bytes += size
        message.batch = <uint32_t>b
    free(current)
    result[0] = batches
    result_count[0] = count
    for i in range(count):
        rc = builder_open(&batches[i].builder, batches[i].count, batches[i].bytes)
        if rc != IGN_OK:
            return rc
        batches[i].opened = True
    for i in range(n):
        if i + 4 < n:
            ign_prefetch(taken[i + 4].bytes)
            ign_prefetch(taken[i + 4].bytes + 64)
        message = &taken[i]
        builder_add(&batches[message.batch].builder, message.bytes, message.length)
    return IGN_OK


cdef list close_batches(Batch *built, uint32_t count):
    """(shard, batch) in order. What cannot be closed any more is the caller's to abort."""
    cdef uint32_t i
    cdef list out = []
    for i in range(count):
        out.append((built[i].shard, builder_close(&built[i].builder)))
        built[i].opened = False
    return out


cdef void free_batches(Batch *built, uint32_t count) noexcept nogil:
    cdef uint32_t i
    for i in range(count):
        if built[i].opened:
            builder_abort(&built[i].builder)
    free(built)
