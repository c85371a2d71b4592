# Claiming into a frame of the broker's: records go from the log to their place in it, without an object for any of them. Part of
# store.pyx.

cdef enum:
    SMALL_BATCH = 4096


def fire_into(Log log not None, ClaimsFrame frame not None, uint32_t number, limit, bytes owner not None, uint64_t ms, *,
              order=None, uint16_t begin=0, max_bytes=1 << 62, bint at_once=False, bint first=True) -> tuple:
    """`Log.fire` into a frame. Returns (shard that was served last or None, expired, more, shards)."""
    cdef Firing firing
    cdef Call call
    cdef uint64_t left = whole(limit, "limit", 0, 1 << 62), bytes_left = whole(max_bytes, "max_bytes", 0, 1 << 62), taken
    cdef uint32_t i
    cdef bint more = False
    cdef set expired = set()
    cdef object served = None
    firing_open(&firing, order, begin, owner, ms, left)
    try:
        while True:
            firing.fire.limit = left
            firing.fire.max_bytes = bytes_left
            call_begin(&call, at_once, False)
            log._enter()
            with nogil:
                call.rc = ign_store_fire_over(log._store, number, &firing.fire, &call.how, &call.mark)
                if call.rc == IGN_NEED_MORE:
                    size_first(log._store, &firing, bytes_left, &call)
            if call.rc == IGN_NEED_MORE:
                log._leave()
                if not first:
                    return served, sorted(expired), True, firing.fire.shards
                continue
            log._checked(call.rc)
            firing.fire.sized_count = 0
            more = firing.fire.more
            if firing.fire.later:
                log._later = True
            for i in range(firing.fire.expired_count):
                expired.add(firing.fire.expired[i])
            taken = 0
            for i in range(firing.fire.count):
                taken += firing.slices[i].stop - firing.slices[i].begin
                bytes_left -= min(bytes_left, <uint64_t>firing.slices[i].bytes)
                served = firing.slices[i].shard
                frame_slice(log, frame, number, &firing.slices[i], 0)
            left -= taken
            first = first and taken == 0
            if not firing.fire.full or at_once or left == 0:
                return served, sorted(expired), more, firing.fire.shards
    finally:
        log._note_late(number, firing.fire.late)
        firing_close(&firing)


cdef int frame_slice(Log log, ClaimsFrame frame, uint32_t number, ign_slice *at, int tries) except -1:
    """Adds one claim with the records of the slice. Where it was moved meanwhile it is looked up again."""
    cdef ign_slice slices[SLICES]
    cdef uint32_t records = at.stop - at.begin, count = 0, i
    cdef uint64_t first = at.first + at.begin, last = at.first + at.stop - 1
    cdef size_t head = claim_head(records), size = 0
    cdef uint8_t *to = frame.room_for(head + at.bytes)
    cdef int rc
    put_claim_head(to, at.shard, first, records)
    log._enter()
    frame._exports += 1     # so that no other thread moves the memory meanwhile
    with nogil:
        rc = fill_claim(log._store, number, at, to + head - 4 * <size_t>records, to + head, &size)
    frame._exports -= 1
    if rc != IGN_E_STALE:
        log._check(rc)
        frame.added(at.shard, first, records, head + size)
        return 0
    log._leave()
    if tries == MOST_MOVES:
        raise log_error(IGN_E_BUSY, 0, log)
    log._enter()
    with nogil:
        rc = ign_store_peek(log._store, number, at.shard, first, last, slices, SLICES, &count)
    log._checked(rc)
    for i in range(count):
        frame_slice(log, frame, number, &slices[i], tries + 1)
    if count == SLICES:
        slices[0] = slices[SLICES - 1]
        at.begin = <uint32_t>(slices[0].first + slices[0].stop - at.first)
        frame_slice(log, frame, number, at, tries)
    return 0


cdef int fill_claim(ign_store *store, uint32_t number, const ign_slice *at, uint8_t *lengths, uint8_t *to, size_t *size) noexcept nogil:
    """The lengths of the slice's records, and the records side by side at ``to``, where the whole batch has room."""
    cdef Reading reading
    cdef uint32_t i
    cdef int rc
    if at.bytes > SMALL_BATCH:
        rc = fill_at_its_place(store, number, at, lengths, to, size)
        if rc != IGN_E_CORRUPT:
            return rc
    # Small, or damaged: record by record.
    reading_begin(&reading)
    rc = reading_run(store, number, at, &reading)
    size[0] = 0
    if rc == IGN_OK:
        for i in range(at.stop - at.begin):
            if reading.damaged or reading.pieces[i].data == NULL:
                ign_put32(lengths + 4 * <size_t>i, IGN_WIRE_NO_RECORD)
                continue
            ign_put32(lengths + 4 * <size_t>i, <uint32_t>reading.pieces[i].size)
            memcpy(to + size[0], reading.pieces[i].data, reading.pieces[i].size)
            size[0] += reading.pieces[i].size
    reading_end(&reading)
    return rc


cdef int fill_at_its_place(ign_store *store, uint32_t number, const ign_slice *at, uint8_t *lengths, uint8_t *to, size_t *size) noexcept nogil:
    """The same of a batch that is whole: its records are read to where they are sent from. IGN_E_CORRUPT when it is not whole."""
    cdef uint8_t small[SMALL_BATCH]
    cdef uint8_t *index = small
    cdef size_t head
    cdef int rc = ign_store_fetch_part(store, at, 0, small, SMALL_BATCH)
    if rc != IGN_OK:
        return rc
    head = IGN_SEGMENT_HEADER_BYTES + <size_t>segment_count(small) * IGN_SEGMENT_INDEX_BYTES
    if head > at.bytes:
        return IGN_E_CORRUPT
    if head > SMALL_BATCH:
        index = <uint8_t *>malloc(head)
        if index == NULL:
            return IGN_E_NOMEM
        memcpy(index, small, SMALL_BATCH)
        rc = ign_store_fetch_part(store, at, SMALL_BATCH, index + SMALL_BATCH, head - SMALL_BATCH)
    if rc == IGN_OK:
        rc = fill_by_index(store, number, at, index, head, lengths, to, size)
    if index != small:
        free(index)
    return rc


cdef int fill_by_index(ign_store *store, uint32_t number, const ign_slice *at, uint8_t *index, size_t head, uint8_t *lengths,
                       uint8_t *to, size_t *size) noexcept nogil:
    cdef ign_segment segment
    cdef const uint8_t *record = NULL
    cdef uint8_t *entry
    cdef size_t record_bytes = 0
    cdef uint32_t i, begin, end
    cdef int rc
    if ign_segment_open(index, at.bytes, &segment) != IGN_OK or segment.count < at.stop:
        return IGN_E_CORRUPT
    begin = 0 if at.begin == 0 else index_end(index, at.begin - 1)
    end = index_end(index, at.stop - 1)
    size[0] = end - begin
    rc = ign_store_fetch_part(store, at, head + begin, to, size[0])
    if rc != IGN_OK:
        return rc
    # The index of a batch that begins with the slice's first record: what was read is compared where it lies.
    entry = index + IGN_SEGMENT_HEADER_BYTES + <size_t>at.begin * IGN_SEGMENT_INDEX_BYTES
    for i in range(at.stop - at.begin):
        ign_put32(entry + <size_t>i * IGN_SEGMENT_INDEX_BYTES, ign_get32(entry + <size_t>i * IGN_SEGMENT_INDEX_BYTES) - begin)
    segment.base = index + <size_t>at.begin * IGN_SEGMENT_INDEX_BYTES
    segment.data = to
    segment.data_len = size[0]
    for i in range(at.stop - at.begin):
        rc = ign_segment_get(&segment, i, number, at.shard, at.first + at.begin, &record, &record_bytes)
        if rc != IGN_OK:
            return IGN_E_CORRUPT
        ign_put32(lengths + 4 * <size_t>i, <uint32_t>record_bytes)
    return IGN_OK
