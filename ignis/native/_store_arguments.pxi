# What the calls of a Log are given, as C wants it. Part of store.pyx.

cdef struct Call:
    ign_store_how how
    ign_store_mark mark
    bint durable
    bint loaded             # it is in the log, whatever became of the flush
    int rc


cdef inline void call_begin(Call *call, bint at_once, bint durable) noexcept:
    call.how.at_once = at_once
    call.how.fence = NULL
    call.durable = durable
    call.loaded = False
    call.rc = IGN_OK


cdef inline void call_end(ign_store *store, Call *call) noexcept nogil:
    """The flush behind a call that is durable on return. What cannot be flushed is refused: nobody finds it later."""
    if call.rc != IGN_OK:
        return
    call.loaded = True
    if call.durable:
        call.rc = ign_store_flush(store, &call.mark, True)


cdef tuple fenced(Call *call, ign_store_change *change, object fence):
    """The call is made while the key has that value, or not at all."""
    key, value = fence
    memset(change, 0, sizeof(ign_store_change))
    cdef tuple held = fill_change(change, (key, value, None))
    call.how.fence = change
    return held


# -- batches

cdef struct Parts:
    ign_store_part *parts
    ign_store_part few[4]
    Py_ssize_t count
    bint loaded


cdef list parts_open(Parts *parts, object batches):
    """Takes (shard, batch) pairs and keeps the batches from being changed until `parts_close`, which is due after it unless it
    raises. Returns the batches: whoever holds them keeps their memory, whatever becomes of the argument."""
    cdef PackedBatch batch
    cdef Py_ssize_t i, shard
    cdef uint64_t bytes = 8
    cdef list asked = list(batches), held = []
    parts.count = len(asked)
    parts.loaded = False
    parts.parts = parts.few
    if not 0 < parts.count <= MOST_PARTS:
        raise ValueError(f"a load has 1..{<int>MOST_PARTS} batches, got {parts.count}")
    if parts.count > 4:
        parts.parts = <ign_store_part *>malloc(<size_t>parts.count * sizeof(ign_store_part))
        if parts.parts == NULL:
            raise MemoryError("load")
    try:
        for i in range(parts.count):
            number, given = asked[i]
            batch = <PackedBatch?>given
            shard = small_index(number)
            if not 0 <= shard <= 0xFFFF:
                raise NoShardError(f"shard {number}")
            batch._to_change()
            batch._finish()
            batch._sealed = True    # before the work, so that a second thread is refused
            batch._sealing = True
            held.append(batch)
            parts.parts[i].shard = <uint16_t>shard
            parts.parts[i].batch = batch._segment
            parts.parts[i].bytes = <uint32_t>batch._nbytes
            parts.parts[i].first = 0
            bytes += 16 + (<uint64_t>batch._nbytes + 7) // 8 * 8
        if bytes > IGN_ENTRY_MAX // 2:      # refused by the log as well, which does not say how much it was
            raise transaction_error(bytes, IGN_ENTRY_MAX // 2)
    except BaseException:
        parts_close(parts, held)
        raise
    return held


cdef int parts_close(Parts *parts, list held) except -1:
    cdef PackedBatch batch
    for batch in held:
        batch._sealing = False
        batch._sealed = parts.loaded
    if parts.parts != parts.few:
        free(parts.parts)
        parts.parts = parts.few
    return 0


cdef uint32_t id_count(bytes ids) except? 0xFFFFFFFF:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(ids)
    if size % 16 != 0 or size >= 1 << 32:
        raise ValueError(f"ids have 16 bytes each, got {size} in all")
    return <uint32_t>(size // 16)


# -- pointers

cdef struct RunList:
    ign_store_run *runs
    uint32_t count
    uint32_t room


cdef inline uint64_t clipped(object pointer, uint64_t low) except? 0xFFFFFFFFFFFFFFFF:
    """A number that a record can have, or the nearest."""
    cdef int over = 0
    cdef long long n = _as_long_long(pointer, &over)
    if over != 0:
        return MOST_POINTER if over > 0 else low
    if n < <long long>low:
        return low
    return MOST_POINTER if n > <long long>MOST_POINTER else <uint64_t>n


cdef int run_add(RunList *list_of, uint16_t shard, uint64_t first, uint64_t last) except -1:
    cdef uint32_t room
    cdef ign_store_run *grown
    if list_of.count == list_of.room:
        room = max(8, list_of.room * 2)
        grown = <ign_store_run *>realloc(list_of.runs, room * sizeof(ign_store_run))
        if grown == NULL:
            raise MemoryError("pointers")
        list_of.runs = grown
        list_of.room = room
    list_of.runs[list_of.count].shard = shard
    list_of.runs[list_of.count].first = first
    list_of.runs[list_of.count].last = last
    list_of.count += 1
    return 0


cdef int runs_open(RunList *found, object pointers) except -1:
    """shard -> pointers, as ascending runs. The caller frees ``found.runs``, also when this raises it is NULL then."""
    found.runs = NULL
    found.count = found.room = 0
    try:
        for shard, many in pointers.items():
            if 0 <= shard <= 0xFFFF:
                runs_of_shard(found, shard, many)
    except BaseException:
        free(found.runs)
        found.runs = NULL
        raise
    return 0


cdef int runs_of_shard(RunList *found, uint16_t shard, object many) except -1:
    cdef uint64_t first = 0, last = 0, pointer
    cdef uint32_t before = found.count
    cdef object each
    kept = getattr(many, "runs", None)  # of ignis.storage.runs.Runs: (first, behind the last) each
    if kept is not None:
        for start, stop in kept:
            first = clipped(start, 1)
            last = clipped(stop, 1)
            if first < last:
                run_add(found, shard, first, last - 1)
        return 0
    if type(many) is range and many.step == 1:
        first = clipped(many.start, 1)
        last = clipped(many.stop, 1)
        if first < last:
            run_add(found, shard, first, last - 1)
        return 0
    for each in many:
        pointer = clipped(each, 0)
        if pointer == 0:
            continue
        if first == 0:
            first = last = pointer
        elif pointer == last + 1:
            last = pointer
        elif pointer > last:
            run_add(found, shard, first, last)
            first = last = pointer
        elif pointer != last:
            found.count = before
            return runs_of_shard(found, shard, sorted(set(many)))
    if first != 0:
        run_add(found, shard, first, last)
    return 0
