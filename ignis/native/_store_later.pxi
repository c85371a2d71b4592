# Messages that wait for their time: `csrc/ignis_store_later.h`. Part of store.pyx.

cdef enum:
    LATE_NS = 1000000           # what is due could not be moved a moment ago
    MOST_LATE_NS = 500000000    # ... and neither could it for a while: the disk is full
    LOOKING_NS = 150000         # a sleep ends up to so much late: the timer's slack, and a core that has to wake up first
    LISTED_RUNS = 4096          # a look at all of one time is made once for so many


cdef struct Moving:
    uint64_t pause_ns           # between two tries to move what is due
    uint64_t again_ns           # when the next one is


cdef uint64_t until_due(ign_store *store, uint32_t number, uint64_t ms, uint64_t began_ms, uint64_t left_ns, const Moving *moving,
                        bint *due) noexcept nogil:
    """So long, at most ``left_ns``, nothing comes to be due; ``due``: something is then.

    ``ms``: the time when the rising clock stood at ``began_ms``. ``due`` as it was after the last call: what was due then and could
    not be moved is not tried again at once."""
    cdef uint64_t at = IGN_DUE_NONE, wait_ns, rising_ns, now_ns
    cdef bint tried = due[0]
    due[0] = False
    if ign_store_next_due(store, number, &at) != IGN_OK or at == IGN_DUE_NONE:
        return left_ns
    rising_ns = ignis_rising_ns()
    wait_ns = ign_due_in_ns(at, ms + (rising_ns // 1000000 - began_ms), <uint32_t>(rising_ns % 1000000))
    if wait_ns == 0 and tried:
        wait_ns = LATE_NS
    now_ns = ign_now_ns() if moving.again_ns != 0 else 0
    if moving.again_ns > now_ns + wait_ns:
        wait_ns = moving.again_ns - now_ns
    if wait_ns > left_ns:
        return left_ns
    due[0] = True
    return wait_ns


cdef uint32_t await_due(ign_store *store, uint32_t number, uint32_t known, uint64_t left_ns, uint64_t spin_ns, bint due,
                        const Moving *moving) noexcept nogil:
    """`ign_store_await`; where something is ``due`` at the end of it, it sleeps until shortly before, and looks for the rest of the time.

    In one piece without the interpreter lock, which may be somebody else's for longer than that."""
    cdef uint64_t until_ns, now_ns
    cdef uint32_t found
    if not due or left_ns == 0 or moving.again_ns != 0:
        return ign_store_await(store, number, known, left_ns, spin_ns)
    until_ns = ign_now_ns() + left_ns
    if left_ns > LOOKING_NS:
        found = ign_store_await(store, number, known, left_ns - LOOKING_NS, spin_ns)
        if found != known:
            return found
        now_ns = ign_now_ns()
        if now_ns >= until_ns or until_ns - now_ns > LOOKING_NS:  # by a signal, which is the caller's
            return known
        left_ns = until_ns - now_ns
    return ign_store_await(store, number, known, left_ns, left_ns)


cdef uint32_t moved_due(ign_store *store, uint32_t number, uint64_t ms, uint32_t known, Moving *moving, uint64_t *late) noexcept nogil:
    """Moves what is due; returns the magazine's number, another one if something was. Where it cannot be moved, it is tried less and
    less often. ``late``: added to by what had expired."""
    cdef ign_store_moved moved
    cdef ign_store_mark mark
    if ign_store_move_due(store, number, ms, IGN_MOVE_RECORDS, IGN_MOVE_BYTES, &moved, NULL, &mark) == IGN_OK:
        moving.pause_ns = moving.again_ns = 0
    else:
        moving.pause_ns = min(max(2 * moving.pause_ns, <uint64_t>LATE_NS), <uint64_t>MOST_LATE_NS)
        moving.again_ns = ign_now_ns() + moving.pause_ns
    late[0] += moved.expired
    return ign_store_wait(store, number, known, 0)


cdef uint64_t *dues_open(Parts *parts, list packed, object dues) except NULL:
    """The due times of all records, one behind the other. The caller frees them."""
    cdef Py_ssize_t records = 0, at = 0
    cdef PackedBatch batch
    cdef uint64_t *made
    for batch in packed:
        records += batch.count
    made = <uint64_t *>malloc(<size_t>max(records, 1) * sizeof(uint64_t))
    if made == NULL:
        raise MemoryError("due times")
    try:
        for some in dues:
            for one in some:
                if at == records:
                    raise ValueError(f"more due times than the {records} records")
                made[at] = one
                at += 1
        if at != records:
            raise ValueError(f"{at} due times for {records} records")
    except BaseException:
        free(made)
        raise
    return made


def declare_later(Log log not None, uint32_t main, str name not None, int shards, *, durable=True):
    """Makes the later magazine of a main one known; returns its number, or None when something else has the name."""
    cdef bytes encoded = name.encode()
    cdef const char *text = PyBytes_AS_STRING(encoded)
    cdef uint16_t count = <uint16_t>whole(shards, "shards", 1, IGN_STORE_MAX_SHARDS)
    cdef uint32_t number = 0
    cdef Call call
    call_begin(&call, False, durable)
    log._enter()
    with nogil:
        call.rc = ign_store_declare_later(log._store, main, text, count, &number, &call.how, &call.mark)
        call_end(log._store, &call)
    if call.rc == IGN_E_MISMATCH:
        log._leave()
        return None
    log._check(call.rc)
    log._later = True
    return number


def load_later(Log log not None, uint32_t number, batches, dues, *, durable) -> list:
    """`Log.load` into a later magazine, with a due time for each record of each batch."""
    cdef Parts parts
    cdef Call call
    cdef uint64_t *times = NULL
    call_begin(&call, False, durable)
    cdef list packed = parts_open(&parts, batches)
    try:
        times = dues_open(&parts, packed, dues)
        log._enter()
        with nogil:
            call.rc = ign_store_load_later(log._store, number, parts.parts, <uint16_t>parts.count, times, &call.how, &call.mark)
            call_end(log._store, &call)
        parts.loaded = call.loaded
        log._checked(call.rc)
        return [parts.parts[i].first for i in range(parts.count)]
    finally:
        free(times)
        parts_close(&parts, packed)


def defer(Log log not None, uint32_t source, pointers, uint32_t later, batches, dues, *, durable, fence=None) -> bool:
    """`Log.transfer` into a later magazine, with a due time for each record of each batch."""
    cdef Call call
    cdef RunList runs
    cdef Parts parts
    cdef ign_store_change change
    cdef uint64_t *times = NULL
    cdef tuple held
    call_begin(&call, False, durable)
    if fence is not None:
        held = fenced(&call, &change, fence)  # keeps its bytes alive
    cdef list packed = parts_open(&parts, batches)
    runs.runs = NULL
    try:
        times = dues_open(&parts, packed, dues)
        runs_open(&runs, pointers)
        if runs.count == 0:
            raise ValueError("a transfer of nothing")
        log._enter()
        with nogil:
            call.rc = ign_store_defer(log._store, source, runs.runs, runs.count, later, parts.parts, <uint16_t>parts.count,
                                      times, &call.how, &call.mark)
            call_end(log._store, &call)
        parts.loaded = call.loaded
        return log._checked(call.rc) == IGN_OK
    finally:
        free(times)
        free(runs.runs)
        parts_close(&parts, packed)


def next_due(Log log not None, uint32_t number):
    """When something of the magazine is due, in ms; None when nothing is. It may be too early: `move_due` says better."""
    cdef uint64_t at = IGN_DUE_NONE
    cdef int rc
    log._enter()
    with nogil:
        rc = ign_store_next_due(log._store, number, &at)
    log._check(rc)
    if at == IGN_DUE_NONE:
        return None
    log._later = True
    return at


def move_due(Log log not None, uint32_t main, uint64_t ms, limit, *, fence=None) -> tuple:
    """Moves up to ``limit`` of what is due at ``ms``; returns how many, how many had expired, and when the next is due."""
    cdef Call call
    cdef ign_store_change change
    cdef ign_store_moved moved
    cdef uint64_t most = whole(limit, "limit", 1, 1 << 62)
    cdef tuple held
    call_begin(&call, False, False)
    if fence is not None:
        held = fenced(&call, &change, fence)
    log._enter()
    with nogil:
        call.rc = ign_store_move_due(log._store, main, ms, most, IGN_MOVE_BYTES, &moved, &call.how, &call.mark)
    log._note_late(main, moved.expired)
    log._checked(call.rc)
    return moved.moved, moved.expired, None if moved.next == IGN_DUE_NONE else moved.next


def list_later(Log log not None, uint32_t later, tuple after, uint32_t limit) -> list:
    """Up to ``limit`` runs (ms, shard, first pointer, last pointer) of what lives, by these, behind (ms, shard, pointer)."""
    cdef ign_due_run begin
    cdef ign_due_run *runs
    cdef uint32_t count = 0, i, room = min(max(limit, 1), LISTED_RUNS)
    cdef int rc
    begin.ms, begin.shard, begin.first = after
    begin.last = 0
    runs = <ign_due_run *>malloc(room * sizeof(ign_due_run))
    if runs == NULL:
        raise MemoryError("list")
    try:
        log._enter()
        with nogil:
            rc = ign_store_list_later(log._store, later, &begin, runs, room, &count)
        log._checked(rc)
        return [(runs[i].ms, runs[i].shard, runs[i].first, runs[i].last) for i in range(count)]
    finally:
        free(runs)
