# A claim, and what it brings, in one go without the interpreter lock. Part of store.pyx.

include "_rising.pxi"

cdef extern from *:
    """
    #define ignis_flag_set(flag, value) __atomic_store_n(&(flag), (value), __ATOMIC_SEQ_CST)
    #define ignis_flag(flag) __atomic_load_n(&(flag), __ATOMIC_SEQ_CST)
    """
    void ignis_flag_set(int flag, int value) nogil
    int ignis_flag(int flag) nogil


cdef struct Firing:
    ign_store_fire fire
    ign_slice few[4]
    ign_slice *slices
    uint16_t *shards        # the order, and behind it room for those with expired records
    Reading first           # of slices[0], if `read` is what reading it said
    int read


cdef int firing_open(Firing *firing, object order, uint16_t begin, bytes owner, uint64_t ms, uint64_t limit) except -1:
    cdef Py_ssize_t count = 0 if order is None else len(order), i = 0
    memset(&firing.fire, 0, sizeof(firing.fire))
    reading_begin(&firing.first)
    if count > <Py_ssize_t>IGN_STORE_MAX_SHARDS:
        raise NoShardError(f"{count} shards, a magazine has up to {<int>IGN_STORE_MAX_SHARDS}")
    firing.slices = firing.few
    firing.fire.room = 4
    firing.shards = <uint16_t *>malloc((<size_t>count + IGN_STORE_MAX_SHARDS) * sizeof(uint16_t))
    if limit > 4:
        firing.fire.room = <uint32_t>min(limit, <uint64_t>MOST_SLICES)
        firing.slices = <ign_slice *>malloc(firing.fire.room * sizeof(ign_slice))
    if firing.shards == NULL or firing.slices == NULL:
        firing_close(firing)
        raise MemoryError("fire")
    try:
        for i in range(count):
            firing.shards[i] = <uint16_t>whole(order[i], "shard", 0, 0xFFFF)
    except BaseException:
        firing_close(firing)
        raise
    firing.fire.order = NULL if order is None else firing.shards
    firing.fire.order_count = <uint32_t>count
    firing.fire.expired = firing.shards + count
    firing.fire.begin = begin
    firing.fire.owner = PyBytes_AS_STRING(owner)
    firing.fire.ms = ms
    firing.fire.slices = firing.slices
    return 0


cdef void firing_close(Firing *firing) noexcept:
    reading_end(&firing.first)
    free(firing.shards)
    firing.shards = NULL
    if firing.slices != firing.few:
        free(firing.slices)
    firing.slices = firing.few


cdef void firing_claim(ign_store *store, uint32_t number, Firing *firing, bint reading, Call *call) noexcept nogil:
    """Claims, and reads the first of what was claimed."""
    reading_end(&firing.first)
    firing.read = IGN_EMPTY
    call.rc = ign_store_fire_over(store, number, &firing.fire, &call.how, &call.mark)
    if call.rc == IGN_NEED_MORE:
        size_first(store, firing, firing.fire.max_bytes, call)
    if call.rc == IGN_OK and reading and firing.fire.count != 0:
        firing.read = reading_run(store, number, &firing.slices[0], &firing.first)


cdef void size_first(ign_store *store, Firing *firing, uint64_t max_bytes, Call *call) noexcept nogil:
    """The next batch alone is too large: how many of its records fit. One always does. Leaves IGN_NEED_MORE: try again."""
    cdef ign_slice *at = &firing.slices[0]
    cdef Reading reading
    cdef uint64_t bytes = 0
    cdef uint32_t i, fit = 0
    cdef int rc
    reading_begin(&reading)
    rc = reading_open(store, at, &reading)
    if rc == IGN_OK:
        for i in range(at.begin, at.stop):
            bytes += reading_size(&reading, i)
            if fit != 0 and bytes > max_bytes:
                break
            fit += 1
        firing.fire.sized_shard = at.shard
        firing.fire.sized_first = at.first + at.begin
        firing.fire.sized_count = max(fit, 1)
    elif rc != IGN_E_STALE:
        call.rc = rc
    reading_end(&reading)


cdef tuple piece_of(const ign_slice *at):
    return (at.shard, range(at.first + at.begin, at.first + at.stop), at.stop - at.begin, at.expires_at_ms)


cdef tuple piece_read(const ign_slice *at, Reading *reading):
    """(shard, pointers, records, expires_at_ms)."""
    cdef Py_ssize_t count = at.stop - at.begin, i
    cdef list records = PyList_New(count)
    for i in range(count):
        put_item(records, i, reading_record(reading, <uint32_t>i))
    return (at.shard, range(at.first + at.begin, at.first + at.stop), records, at.expires_at_ms)


@cython.final
@cython.no_gc
cdef class Recall:
    """Ends a `Log.fire_next` of another thread without a claim, also one that has not begun to wait. Who calls it back wakes it
    afterwards."""
    cdef int _flag

    def set(self) -> None:
        ignis_flag_set(self._flag, 1)

    def clear(self) -> None:
        """From now on a claim may be made."""
        ignis_flag_set(self._flag, 0)

    def is_set(self) -> bool:
        """Whether it was called back, and not cleared since."""
        return ignis_flag(self._flag) != 0


cdef int gather(Log log, list pieces, uint32_t number, Firing *firing, bint reading) except -1:
    """Adds what was claimed."""
    cdef uint32_t i
    for i in range(firing.fire.count):
        if not reading:
            pieces.append(piece_of(&firing.slices[i]))
        elif i == 0 and firing.read == IGN_OK:
            pieces.append(piece_read(&firing.slices[0], &firing.first))
        else:
            log._read(pieces, number, &firing.slices[i], 0, &firing.first)
    return 0
