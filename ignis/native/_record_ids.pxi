# Message ids and the clock that they rise with. Part of record.pyx.

cdef uint64_t now_us() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <uint64_t>now.tv_sec * 1000000 + <uint64_t>now.tv_nsec // 1000


cdef struct Generator:
    uint64_t s[4]               # xoshiro256++: unique, not secret; an id is no credential
    uint64_t last_us
    uint64_t last_drawn
    unsigned int generation

# One for the process on purpose: two could not promise rising ids. Guarded by the GIL; `forks` is written only in a
# child that has a single thread yet.
cdef Generator generator
cdef unsigned int forks = 1


cdef void count_fork() noexcept nogil:
    global forks
    forks += 1


cdef inline uint64_t rotated(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline uint64_t splitmix64(uint64_t *state) noexcept nogil:
    state[0] += <uint64_t>0x9E3779B97F4A7C15
    cdef uint64_t z = state[0]
    z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EB
    return z ^ (z >> 31)


cdef int refresh_generator() noexcept nogil:
    """Takes a new state from the system; 0, or -1 when the system gave none.

    Without the system's bytes the state that the parent has too is stirred with the time and the pid, so that parent
    and child part ways even then.
    """
    cdef uint64_t fresh[4]
    cdef uint64_t stir
    cdef int answer = getentropy(fresh, sizeof(fresh))
    cdef int i
    if answer != 0:
        stir = now_us() ^ (<uint64_t>getpid() << 40)
        for i in range(4):
            fresh[i] = generator.s[i] ^ splitmix64(&stir)
    for i in range(4):
        generator.s[i] = fresh[i]
    generator.s[0] |= 1         # an all-zero state would stay zero
    generator.last_us = 0
    generator.generation = forks
    return answer


cdef uint64_t random_u64() noexcept nogil:
    cdef uint64_t *s = generator.s
    if generator.generation != forks:
        refresh_generator()
    cdef uint64_t result = rotated(s[0] + s[3], 23) + s[0]
    cdef uint64_t t = s[1] << 17
    s[2] ^= s[0]
    s[3] ^= s[1]
    s[1] ^= s[2]
    s[0] ^= s[3]
    s[2] ^= t
    s[3] = rotated(s[3], 45)
    return result


cdef inline uint64_t first_drawn(uint64_t random) noexcept nogil:
    """Of the 62 random bits of an id the highest starts as 0, so that the steps that follow do not wrap."""
    return random >> 3


cdef inline uint64_t next_drawn(uint64_t drawn, uint64_t random) noexcept nogil:
    """Rises, by a step that nobody else takes: ids of one microsecond sort in the order in which they were drawn."""
    return drawn + <uint32_t>random + <uint64_t>1


cdef void next_id(uint64_t at_us, uint8_t *out) noexcept nogil:
    cdef uint64_t random = random_u64()     # first: after a fork it forgets last_us
    if at_us == generator.last_us:
        generator.last_drawn = next_drawn(generator.last_drawn, random)
    else:
        generator.last_us = at_us
        generator.last_drawn = first_drawn(random)
    ign_uuid7(at_us, generator.last_drawn, out)


def new_id():
    """A new message id: 16 bytes, a UUID of version 7.

    Ids rise with the clock and, within one microsecond of one process, in the order of the calls; a clock that is set
    back sets them back. Unique, not secret. Safe in threads and after ``fork``.
    """
    cdef uint8_t made[ID_BYTES]
    next_id(now_us(), made)
    return PyBytes_FromStringAndSize(<char *>made, ID_BYTES)


cdef const char *HEX_DIGITS = b"0123456789abcdef"


cdef str text_of_id(const uint8_t *id):
    cdef str text = PyUnicode_New(ID_TEXT_CHARS, 127)
    cdef uint8_t *at = <uint8_t *>PyUnicode_DATA(text)
    cdef int i
    for i in range(ID_BYTES):
        if i == 4 or i == 6 or i == 8 or i == 10:
            at[0] = c"-"
            at += 1
        at[0] = HEX_DIGITS[id[i] >> 4]
        at[1] = HEX_DIGITS[id[i] & 15]
        at += 2
    return text


def id_text(bytes id not None):
    """An id's 16 bytes as text, ``8-4-4-4-12`` hexadecimal digits: the form in which users see every id.

    Raises ValueError for another number of bytes.
    """
    if len(id) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(id)}")
    return text_of_id(<const uint8_t *>PyBytes_AS_STRING(<PyObject *>id))


if pthread_atfork(NULL, NULL, count_fork) != 0:
    raise MemoryError("pthread_atfork")
if refresh_generator() != 0:
    raise OSError("getentropy: the system gave no random bytes")
