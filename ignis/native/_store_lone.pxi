# A message that comes alone: from its body into the log, and no batch, list or tuple is made of it. Part of store.pyx.

cdef enum:
    SMALL_SEGMENT = 2048    # bytes, which need no memory of their own


def load_body(Log log not None, uint32_t number, shard, bytes body not None, uint8_t flags, *, uint64_t expires_at_ms, bint durable):
    """`Log.load` of one message that has this body, no key, and a new id.

    Returns its id as text, its shard and its pointer; None, and nothing happened, where it is too long for a record. Raises what
    `Log.load` raises.
    """
    cdef size_t body_bytes = <size_t>PyBytes_GET_SIZE(body), size = record_bytes(0, 0, body_bytes), segment_bytes
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(body)
    cdef Py_ssize_t place = small_index(shard)
    cdef uint8_t small[SMALL_SEGMENT]
    cdef uint8_t id[16]
    cdef uint8_t *segment = small
    cdef uint64_t at_us = now_us()
    cdef ign_store_part part
    cdef Call call
    if size > IGN_ENTRY_MAX:
        return None
    if not 0 <= place <= 0xFFFF:
        raise NoShardError(f"shard {shard}")
    segment_bytes = ign_segment_size(1, size)
    if segment_bytes > SMALL_SEGMENT:
        segment = <uint8_t *>malloc(segment_bytes)
        if segment == NULL:
            raise MemoryError("load")
    call_begin(&call, False, durable)
    next_id(at_us, id)
    try:
        log._enter()
        with nogil:
            put_alone(segment, segment_bytes, size, expires_at_ms, flags & 15, id, at_us, data, body_bytes)
            part.shard = <uint16_t>place
            part.batch = segment
            part.bytes = <uint32_t>segment_bytes
            part.first = 0
            call.rc = ign_store_load(log._store, number, &part, 1, &call.how, &call.mark)
            call_end(log._store, &call)
        log._checked(call.rc)
    finally:
        if segment != small:
            free(segment)
    return text_of_id(id), place, part.first
