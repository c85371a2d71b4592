# The second part of wire.pyx: pointers and claims.

# -- pointers -----------------------------------------------------------------------------------------------------------

cdef int add_run(ign_wire_runs *runs, uint16_t shard, long long first, long long end) except? -1:
    if first < 0 or end - first > 0xFFFFFFFF:
        raise ValueError(f"a run of the pointers {first}..{end - 1}")
    return ign_wire_runs_add(runs, shard, <uint64_t>first, <uint32_t>(end - first))


cdef int add_pointers(ign_wire_runs *runs, uint16_t shard, object many) except -1:
    cdef long long first
    cdef int code = IGN_OK
    ign_wire_runs_break(runs)
    if type(many) is range and many.step == 1:
        if not len(many):
            return 0
        code = add_run(runs, shard, many.start, many.stop)
    elif (kept := getattr(many, "runs", None)) is not None:  # of ignis.storage.runs.Runs: (first, behind the last) each
        for start, stop in kept:
            code = add_run(runs, shard, start, stop)
            if code != IGN_OK:
                break
    else:
        for one in many:
            first = one  # may run others' code; the runs are the caller's alone
            if first < 0 or first == <long long>0x7FFFFFFFFFFFFFFF:
                raise ValueError(f"pointer {one} is outside 0..2**63-2")
            code = ign_wire_runs_add(runs, shard, <uint64_t>first, 1)
            if code != IGN_OK:
                break
    if code != IGN_OK:
        raise MemoryError("pointers")
    return 0


cdef uint16_t shard_of(object shard) except? 0xFFFF:
    cdef long long number
    try:
        number = shard
    except OverflowError:
        number = -1
    if not 0 <= number <= 0xFFFF:
        raise ValueError(f"shard {shard} is outside 0..65535")
    return <uint16_t>number


def pack_pointers(pointers) -> bytes:
    """Shard -> pointers as runs: ``u32 runs``, then ``u16 shard, u64 first, u32 count`` each.

    Args:
        pointers: a mapping of shard (0..65535) to pointers in any order; ranges and `Runs` are quick. A pair (shard, pointers) may come up
            several times in a sequence of pairs.

    Raises ValueError for a number outside its range.
    """
    cdef ign_wire_runs runs
    cdef bytes out
    memset(&runs, 0, sizeof(runs))
    try:
        for shard, many in (pointers.items() if hasattr(pointers, "items") else pointers):
            add_pointers(&runs, shard_of(shard), many)
        out = PyBytes_FromStringAndSize(NULL, 4 + <Py_ssize_t>runs.count * IGN_WIRE_RUN_BYTES)
        ign_wire_runs_put(&runs, <uint8_t *>PyBytes_AS_STRING(out))
        return out
    finally:
        ign_wire_runs_free(&runs)


def unpack_runs(data, size_t offset=0):
    """[(shard, first pointer, behind the last)] of `pack_pointers`, from ``offset`` to the end of the data.

    Raises MalformedFrameError: cut short, too long, an empty run, or over 1,048,576 pointers in all.
    """
    cdef Py_buffer view
    cdef ign_wire_run run
    cdef const uint8_t *src
    cdef uint32_t count = 0, i
    cdef list out
    whole(data, offset, &view, "pointers")
    try:
        src = <const uint8_t *>view.buf + offset
        code = ign_wire_pointers_open(src, <size_t>view.len - offset, &count)
        if code != IGN_OK:
            raise damaged(code, "pointers")
        out = PyList_New(count)
        for i in range(count):
            ign_wire_pointers_get(src, i, &run)
            put_item(out, i, (run.shard, run.first, run.first + run.count))
        return out
    finally:
        PyBuffer_Release(&view)


def count_runs(data, size_t offset=0) -> int:
    """How many runs `unpack_runs` would give. Raises what it raises."""
    cdef Py_buffer view
    cdef uint32_t count = 0
    whole(data, offset, &view, "pointers")
    try:
        code = ign_wire_pointers_open(<const uint8_t *>view.buf + offset, <size_t>view.len - offset, &count)
        if code != IGN_OK:
            raise damaged(code, "pointers")
        return count
    finally:
        PyBuffer_Release(&view)


def runs_between(bytes data not None, size_t offset, size_t first, size_t stop) -> list:
    """Runs ``first`` to ``stop - 1`` of `unpack_runs`, without looking at the others.

    Raises MalformedFrameError: there are not so many, or one of them is empty or beyond the last pointer.
    """
    cdef ign_wire_run run
    cdef size_t size = <size_t>len(data), i
    cdef const uint8_t *src = <const uint8_t *>PyBytes_AS_STRING(data) + offset
    cdef list out
    if offset > size or size - offset < 4 or first > stop or stop > (size - offset - 4) // IGN_WIRE_RUN_BYTES:
        raise damaged(IGN_E_TRUNCATED, "pointers")
    out = PyList_New(<Py_ssize_t>(stop - first))
    for i in range(first, stop):
        ign_wire_pointers_get(src, <uint32_t>i, &run)
        if run.count == 0 or run.first > IGN_WIRE_POINTER_MAX:
            raise damaged(IGN_E_TOO_LARGE, "pointers")
        put_item(out, <Py_ssize_t>(i - first), (run.shard, run.first, run.first + run.count))
    return out


# -- claims -------------------------------------------------------------------------------------------------------------

def pack_claims(claims) -> bytes:
    """Claims as DELIVER carries them: ``u32 claims``, then per claim ``u16 shard, u32 records, u32 runs``, the runs
    (``u64 first, u32 count``), a ``u32`` length per record (0xFFFFFFFF: corrupt, no bytes follow), and the records.

    Args:
        claims: (shard, pointers, records) each, as many pointers as records; records are bytes or None.

    Raises ValueError for a number outside its range, TypeError for a record that is something else.
    """
    cdef ign_wire_runs runs
    cdef list pieces = [None]
    cdef list records           # our own: an iteration below may change the caller's
    cdef bytes head
    cdef uint8_t *at
    cdef uint16_t number
    cdef uint32_t count = 0
    cdef Py_ssize_t i, n
    memset(&runs, 0, sizeof(runs))
    try:
        for shard, pointers, found in claims:
            number = shard_of(shard)
            if type(pointers) is not range:
                pointers = list(pointers)
            records = list(found)
            n = len(records)
            if n != len(pointers):
                raise ValueError(f"a claim of {len(pointers)} pointers and {n} records")
            runs.count = 0
            add_pointers(&runs, 0, pointers)
            head = PyBytes_FromStringAndSize(
                NULL, <Py_ssize_t>IGN_WIRE_CLAIM_BYTES + <Py_ssize_t>runs.count * <Py_ssize_t>IGN_WIRE_CLAIM_RUN_BYTES + n * 4)
            at = <uint8_t *>PyBytes_AS_STRING(head)
            ign_wire_put_claim(at, number, <uint32_t>n, runs.count)
            at += IGN_WIRE_CLAIM_BYTES
            ign_wire_runs_put_bare(&runs, at)
            at += <size_t>runs.count * IGN_WIRE_CLAIM_RUN_BYTES
            pieces.append(head)
            for i in range(n):
                record = records[i]
                if record is None:
                    ign_put32(at + i * 4, IGN_WIRE_NO_RECORD)
                elif not PyBytes_CheckExact(record):
                    raise TypeError(f"records[{i}] is {type(record).__name__}, expected bytes or None")
                else:
                    ign_put32(at + i * 4, <uint32_t>len(record))
                    pieces.append(record)
            count += 1
    finally:
        ign_wire_runs_free(&runs)
    head = PyBytes_FromStringAndSize(NULL, 4)
    ign_put32(<uint8_t *>PyBytes_AS_STRING(head), count)
    pieces[0] = head
    return b"".join(pieces)


cdef object pointers_of(const ign_wire_claim *claim):
    """A range where the pointers are one run, else a list."""
    cdef ign_wire_run run
    cdef uint32_t i
    cdef list many
    if claim.runs == 0:
        return range(0)
    ign_wire_claim_run(claim, 0, &run)
    if claim.runs == 1:
        return range(run.first, run.first + run.count)
    many = list(range(run.first, run.first + run.count))
    for i in range(1, claim.runs):
        ign_wire_claim_run(claim, i, &run)
        many.extend(range(run.first, run.first + run.count))
    return many


def unpack_claims(data, size_t offset=0):
    """[(shard, pointers, records)] of `pack_claims`; pointers are a range where they are one run, else a list.

    Raises MalformedFrameError.
    """
    cdef Py_buffer view
    cdef ign_wire_claims cursor
    cdef ign_wire_claim claim
    cdef const uint8_t *record
    cdef uint32_t length = 0, i
    cdef list out = [], records
    whole(data, offset, &view, "claims")
    try:
        code = ign_wire_claims_open(&cursor, <const uint8_t *>view.buf + offset, <size_t>view.len - offset)
        while code == IGN_OK:
            code = ign_wire_claims_next(&cursor, &claim)
            if code != IGN_OK:
                break
            pointers = pointers_of(&claim)
            records = PyList_New(claim.records)
            for i in range(<uint32_t>len(records)):
                record = ign_wire_claim_take(&claim, &length)
                put_item(records, i,
                         None if record == NULL else PyBytes_FromStringAndSize(<const char *>record, <Py_ssize_t>length))
            out.append((claim.shard, pointers, records))
        if code != IGN_EMPTY:
            raise damaged(code, "claims")
        return out
    finally:
        PyBuffer_Release(&view)
